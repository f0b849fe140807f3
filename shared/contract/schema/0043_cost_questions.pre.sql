-- What people, programs and BI ask the ledger. The console reads the same views, so no two answers differ.

-- The lines that count, each with what it belongs to. What an agent said of its usage does not count where a
-- trace says it.
CREATE VIEW lockkeeper.cost_lines AS
SELECT c.source, c.record_id, c.attempt_id, c.task_id, c.kind, c.model, c.input_tokens, c.output_tokens,
       c.cache_read_tokens, c.cache_write_tokens, c.quantity, c.unit, c.sku, c.amount, c.list_amount, c.currency,
       c.priced_by, c.price_id, c.record_type, c.usage_start_at, c.usage_end_at, c.recorded_at, c.is_whole, c.version,
       c.reason, c.parts, coalesce(c.agent, x.agent, CASE c.source WHEN 'underwriting' THEN 'underwriting' END) AS agent,
       coalesce(c.customer, t.customer, r.applicant) AS customer, x.attempt,
       -- How the attempt ended that it was spent on; a model call of the underwriter is its own attempt.
       coalesce(x.status, CASE c.source WHEN 'underwriting' THEN 'completed' END) AS outcome,
       x.run_id, x.pages, coalesce(t.created_at, r.created_at) AS task_created_at
  FROM lockkeeper.cost_entries c
  LEFT JOIN lockkeeper.task_attempts x ON x.id = c.attempt_id
  LEFT JOIN lockkeeper.tasks t ON t.id = c.task_id
  LEFT JOIN agent_ops.agent_runs r ON c.source = 'underwriting' AND r.run_id = c.task_id
 WHERE NOT (c.source = 'callback' AND c.kind = 'llm' AND EXISTS (
       SELECT FROM lockkeeper.cost_entries o WHERE o.attempt_id = c.attempt_id AND o.source = 'trace'));

CREATE OR REPLACE VIEW lockkeeper.task_costs AS
SELECT t.id AS task_id, t.agent, t.customer, t.status, t.created_at, t.finished_at, t.document_id,
       c.attempts, c.pages, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens,
       c.llm_cost, c.compute_cost, c.retry_cost, coalesce(c.currency, 'USD') AS currency,
       coalesce(c.cost_status, 'pending') AS cost_status,
       c.superseded_cost, coalesce(c.compute_status, 'pending') AS compute_status
  FROM lockkeeper.tasks t
  LEFT JOIN LATERAL (
       SELECT count(*) AS attempts, max(x.pages) AS pages, sum(x.input_tokens)::bigint AS input_tokens,
              sum(x.output_tokens)::bigint AS output_tokens, sum(x.cache_read_tokens)::bigint AS cache_read_tokens,
              sum(x.cache_write_tokens)::bigint AS cache_write_tokens,
              sum(x.llm_cost) AS llm_cost, sum(x.compute_cost) AS compute_cost,
              sum(coalesce(x.llm_cost, 0) + coalesce(x.compute_cost, 0))
                  FILTER (WHERE x.status <> 'completed' AND (x.llm_cost IS NOT NULL OR x.compute_cost IS NOT NULL)) AS retry_cost,
              min(x.currency) AS currency,
              CASE WHEN bool_or(x.cost_status = 'pending') THEN 'pending'
                   WHEN bool_or(x.cost_status = 'unknown') THEN 'unknown'
                   WHEN bool_or(x.cost_status = 'partial') THEN 'partial' ELSE 'final' END AS cost_status,
              sum(coalesce(x.llm_cost, 0) + coalesce(x.compute_cost, 0))
                  FILTER (WHERE x.status = 'superseded' AND (x.llm_cost IS NOT NULL OR x.compute_cost IS NOT NULL))
                  AS superseded_cost,
              -- An attempt without a run has a compute cost only where somebody vouches for it: that one is final.
              CASE WHEN bool_or(x.compute_cost IS NULL AND b.status IS DISTINCT FROM 'unknown') THEN 'pending'
                   WHEN bool_or(b.status = 'unknown') THEN 'unknown'
                   WHEN bool_or(x.run_id IS NOT NULL AND b.status IS DISTINCT FROM 'final') THEN 'preliminary'
                   ELSE 'final' END AS compute_status
         FROM lockkeeper.task_attempts x
         LEFT JOIN lockkeeper.run_bills b ON b.run_id = x.run_id
        WHERE x.task_id = t.id AND x.status <> 'released') c ON true;

-- One row per task and currency, runs of the underwriter among them: the ground of sums, medians and averages.
-- A task's row in US dollars is its first; rows in other currencies hold nothing but their money.
CREATE VIEW lockkeeper.work_costs AS
SELECT t.id, t.agent, t.customer, t.status, t.created_at, t.labels, d.name AS document_name, c.currency,
       true AS is_first, c.attempts, c.pages, c.input_tokens, c.output_tokens, c.cache_read_tokens,
       c.cache_write_tokens, c.llm_cost, c.compute_cost, c.retry_cost, c.superseded_cost,
       CASE WHEN c.attempts = 0 THEN 'final' ELSE c.cost_status END AS cost_status,
       CASE WHEN c.attempts = 0 THEN 'final' ELSE c.compute_status END AS compute_status
  FROM lockkeeper.tasks t
  JOIN lockkeeper.task_costs c ON c.task_id = t.id
  LEFT JOIN lockkeeper.documents d ON d.id = t.document_id
UNION ALL
SELECT t.id, t.agent, t.customer, t.status, t.created_at, t.labels, d.name, l.currency, false, 0, NULL::integer,
       NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, l.llm_cost, l.compute_cost, l.retry_cost,
       l.superseded_cost, 'final', 'final'
  FROM (SELECT c.task_id, c.currency, sum(c.amount) FILTER (WHERE c.kind = 'llm') AS llm_cost,
               sum(c.amount) FILTER (WHERE c.kind = 'compute') AS compute_cost,
               sum(c.amount) FILTER (WHERE c.outcome <> 'completed') AS retry_cost,
               sum(c.amount) FILTER (WHERE c.outcome = 'superseded') AS superseded_cost
          FROM lockkeeper.cost_lines c WHERE c.currency <> 'USD' GROUP BY c.task_id, c.currency) l
  JOIN lockkeeper.tasks t ON t.id = l.task_id
  LEFT JOIN lockkeeper.documents d ON d.id = t.document_id
UNION ALL
SELECT r.run_id, 'underwriting', r.applicant,
       CASE r.state WHEN 'starting' THEN 'enqueued' WHEN 'running' THEN 'processing'
            WHEN 'awaiting_review' THEN 'processing' WHEN 'expired' THEN 'failed' ELSE r.state END,
       r.created_at, '{}'::jsonb, NULL, coalesce(l.currency, 'USD'), coalesce(l.is_first, true), coalesce(l.calls, 0),
       NULL::integer, l.input_tokens, l.output_tokens, l.cache_read_tokens, l.cache_write_tokens, l.llm_cost,
       -- The underwriter's worker is a standing service: its runs have no compute of their own.
       CASE WHEN l.is_first THEN 0::numeric END, NULL::numeric, NULL::numeric,
       CASE WHEN l.is_unpriced THEN 'partial' ELSE 'final' END, 'final'
  FROM agent_ops.agent_runs r
  LEFT JOIN LATERAL (
       SELECT c.currency, min(c.currency) OVER () = c.currency AS is_first, count(*) AS calls,
              sum(c.input_tokens)::bigint AS input_tokens, sum(c.output_tokens)::bigint AS output_tokens,
              sum(c.cache_read_tokens)::bigint AS cache_read_tokens,
              sum(c.cache_write_tokens)::bigint AS cache_write_tokens, sum(c.amount) AS llm_cost,
              bool_or(c.amount IS NULL) AS is_unpriced
         FROM agent_ops.agent_messages m
         JOIN lockkeeper.cost_entries c ON c.attempt_id = m.message_id AND c.source = 'underwriting'
        WHERE m.run_id = r.run_id
        GROUP BY c.currency) l ON true;

-- The same filters as find_tasks, in the same order; NULL means any.
CREATE FUNCTION lockkeeper.find_costs(
    statuses text[], agents text[], customers text[], from_at timestamptz, to_at timestamptz,
    with_text text, with_labels jsonb, label_keys text[])
RETURNS SETOF lockkeeper.work_costs
LANGUAGE sql STABLE
AS $$
    SELECT w.*
      FROM lockkeeper.work_costs w
     WHERE (statuses IS NULL OR w.status = ANY (statuses))
       AND (agents IS NULL OR w.agent = ANY (agents))
       AND (customers IS NULL OR w.customer = ANY (customers))
       AND w.created_at >= coalesce(from_at, '-infinity')
       AND w.created_at < coalesce(to_at, 'infinity')
       AND (with_text IS NULL OR w.document_name ILIKE with_text OR w.customer ILIKE with_text
            OR w.id::text ILIKE with_text)
       AND (with_labels IS NULL OR w.labels @> with_labels)
       AND (label_keys IS NULL OR w.labels ?& label_keys)
$$;

-- Usage by model, one row per line and model. Of a line that several models share, each has what its own price
-- makes of its tokens; the first also has what is left of the line, so that models add up to their lines.
CREATE VIEW lockkeeper.model_usage AS
SELECT l.task_id, l.attempt_id, l.source, l.record_id, l.agent, l.customer, l.outcome, l.currency, l.task_created_at,
       u.model, u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens, u.amount
  FROM lockkeeper.cost_lines l
 CROSS JOIN LATERAL (
       SELECT l.model, l.input_tokens, l.output_tokens, l.cache_read_tokens, l.cache_write_tokens, l.amount
        WHERE l.parts IS NULL
       UNION ALL
       SELECT p.model, p.input_tokens, p.output_tokens, p.cache_read_tokens, p.cache_write_tokens,
              CASE WHEN l.amount IS NULL THEN NULL
                   WHEN p.number = 1 THEN l.amount - coalesce(sum(own.amount) OVER (), 0) + coalesce(own.amount, 0)
                   ELSE own.amount END
         FROM ROWS FROM (jsonb_to_recordset(l.parts) AS (
              model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
              cache_write_tokens bigint)) WITH ORDINALITY
              AS p (model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, number)
         LEFT JOIN LATERAL (
              SELECT (p.input_tokens * m.input_price + p.output_tokens * m.output_price
                      + p.cache_read_tokens * m.cache_read_price + p.cache_write_tokens * m.cache_write_price)
                     * 0.000001 AS amount
                FROM lockkeeper.model_prices m
               WHERE m.model = p.model AND m.currency = l.currency AND m.valid_from <= l.usage_start_at
                 AND (m.valid_to IS NULL OR l.usage_start_at < m.valid_to)
               ORDER BY m.valid_from DESC
               LIMIT 1) own ON true
        WHERE l.parts IS NOT NULL) u
 WHERE l.kind = 'llm' AND (l.model IS NOT NULL OR l.input_tokens > 0 OR l.output_tokens > 0);

-- What a row of a grouping is called; a day and a month are those of the named zone.
CREATE FUNCTION lockkeeper.cost_key(
    group_by text, zone text, agent text, customer text, status text, created_at timestamptz, id uuid)
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE group_by WHEN 'agent' THEN agent WHEN 'customer' THEN customer WHEN 'status' THEN status
                         WHEN 'day' THEN to_char(created_at AT TIME ZONE zone, 'YYYY-MM-DD')
                         WHEN 'month' THEN to_char(created_at AT TIME ZONE zone, 'YYYY-MM')
                         WHEN 'task' THEN id::text END
$$;
