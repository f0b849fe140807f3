-- What people look at: a task with its document and its costs on one line, pages of tasks, totals.
-- The console and the notifier read these, so that a page and its live stream never differ.

-- The order of the task list; a page starts at its cursor, however deep it is.
CREATE INDEX tasks_by_age ON lockkeeper.tasks (created_at DESC, id DESC);
-- Finds what changed lately at next to no cost for the writers: the log grows at its end.
CREATE INDEX task_events_by_time ON lockkeeper.task_events USING brin (at)
    WITH (pages_per_range = 16, autosummarize = on);
-- The retries of a task, and what was done anew from it.
CREATE INDEX tasks_by_source ON lockkeeper.tasks (source_task_id) WHERE source_task_id IS NOT NULL;
CREATE INDEX documents_by_age ON lockkeeper.documents (created_at DESC, id DESC);

CREATE VIEW lockkeeper.task_overview AS
SELECT t.id, t.agent, t.customer, t.priority, t.status, t.attempt, t.max_attempts, t.created_at, t.available_at,
       t.started_at, t.finished_at, t.estimated_tokens, t.version, t.verb, t.reason, t.step, t.pages_done,
       t.pages_total, t.confidence, t.labels, t.source_task_id, t.parent_task_id, t.created_by, t.error, t.oversized,
       t.document_id, d.name AS document_name, d.pages AS document_pages, d.bytes AS document_bytes,
       c.attempts, c.pages, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens,
       c.llm_cost, c.compute_cost, c.retry_cost, c.currency, c.cost_status
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.documents d ON d.id = t.document_id
  LEFT JOIN lockkeeper.task_costs c ON c.task_id = t.id;

-- A page of tasks, newest first, that ends before the cursor. NULL in a filter means any.
-- `with_text` is a LIKE pattern over the document's name, the customer and the id.
CREATE FUNCTION lockkeeper.find_tasks(
    statuses text[], agents text[], customers text[], from_at timestamptz, to_at timestamptz,
    with_text text, with_labels jsonb, label_keys text[], before_at timestamptz, before_id uuid, at_most integer)
RETURNS SETOF lockkeeper.task_overview
LANGUAGE sql STABLE
AS $$
    SELECT o.*
      FROM lockkeeper.task_overview o
     WHERE (statuses IS NULL OR o.status = ANY (statuses))
       AND (agents IS NULL OR o.agent = ANY (agents))
       AND (customers IS NULL OR o.customer = ANY (customers))
       AND o.created_at >= coalesce(from_at, '-infinity')
       AND o.created_at < coalesce(to_at, 'infinity')
       AND (with_text IS NULL OR o.document_name ILIKE with_text OR o.customer ILIKE with_text
            OR o.id::text ILIKE with_text)
       AND (with_labels IS NULL OR o.labels @> with_labels)
       AND (label_keys IS NULL OR o.labels ?& label_keys)
       AND (o.created_at, o.id)
         < (coalesce(before_at, 'infinity'), coalesce(before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY o.created_at DESC, o.id DESC
     LIMIT at_most
$$;

-- Totals over the same filters. Response time is from accepted to finished, of completed tasks. A cost that is
-- not known yet is left out of its sum and counted in the columns `…_pending`, in attempts.
CREATE FUNCTION lockkeeper.task_summary(
    statuses text[], agents text[], customers text[], from_at timestamptz, to_at timestamptz,
    with_text text, with_labels jsonb, label_keys text[])
RETURNS TABLE (
    enqueued bigint, processing bigint, completed bigint, failed bigint, cancelled bigint,
    median_seconds double precision, p95_seconds double precision, confidence double precision,
    oldest_waiting_at timestamptz, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
    cache_write_tokens bigint, llm_cost numeric, compute_cost numeric, currency text,
    llm_cost_pending bigint, compute_cost_pending bigint, attempts bigint)
LANGUAGE sql STABLE
AS $$
    WITH chosen AS MATERIALIZED (
        SELECT t.id, t.status, t.confidence, t.created_at, t.finished_at
          FROM lockkeeper.tasks t
         WHERE (statuses IS NULL OR t.status = ANY (statuses))
           AND (agents IS NULL OR t.agent = ANY (agents))
           AND (customers IS NULL OR t.customer = ANY (customers))
           AND t.created_at >= coalesce(from_at, '-infinity')
           AND t.created_at < coalesce(to_at, 'infinity')
           AND (with_text IS NULL OR t.customer ILIKE with_text OR t.id::text ILIKE with_text
                OR EXISTS (SELECT FROM lockkeeper.documents d WHERE d.id = t.document_id AND d.name ILIKE with_text))
           AND (with_labels IS NULL OR t.labels @> with_labels)
           AND (label_keys IS NULL OR t.labels ?& label_keys)
    ), counted AS (
        SELECT count(*) FILTER (WHERE status = 'enqueued') AS enqueued,
               count(*) FILTER (WHERE status = 'processing') AS processing,
               count(*) FILTER (WHERE status = 'completed') AS completed,
               count(*) FILTER (WHERE status = 'failed') AS failed,
               count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)::float8)
                   FILTER (WHERE status = 'completed') AS median_seconds,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)::float8)
                   FILTER (WHERE status = 'completed') AS p95_seconds,
               avg(confidence::float8) FILTER (WHERE status = 'completed') AS confidence,
               min(created_at) FILTER (WHERE status = 'enqueued') AS oldest_waiting_at
          FROM chosen
    ), spent AS (
        SELECT sum(x.input_tokens)::bigint AS input_tokens, sum(x.output_tokens)::bigint AS output_tokens,
               sum(x.cache_read_tokens)::bigint AS cache_read_tokens,
               sum(x.cache_write_tokens)::bigint AS cache_write_tokens,
               sum(x.llm_cost) AS llm_cost, sum(x.compute_cost) AS compute_cost,
               coalesce(min(x.currency), 'USD') AS currency,
               count(*) FILTER (WHERE x.llm_cost IS NULL) AS llm_cost_pending,
               count(*) FILTER (WHERE x.compute_cost IS NULL) AS compute_cost_pending,
               count(*) AS attempts
          FROM chosen c
          JOIN lockkeeper.task_attempts x ON x.task_id = c.id AND x.status <> 'released'
    )
    SELECT c.enqueued, c.processing, c.completed, c.failed, c.cancelled, c.median_seconds, c.p95_seconds,
           c.confidence, c.oldest_waiting_at, s.input_tokens, s.output_tokens, s.cache_read_tokens,
           s.cache_write_tokens, s.llm_cost, s.compute_cost, s.currency, s.llm_cost_pending,
           s.compute_cost_pending, s.attempts
      FROM counted c, spent s
$$;

-- Why each of these tasks waits, in one word, for a whole page at the price of one look at each agent.
-- `lockkeeper.waiting` says it for one task exactly, with its place.
CREATE FUNCTION lockkeeper.waiting_reasons(of_tasks uuid[])
RETURNS TABLE (task_id uuid, reason text)
LANGUAGE sql STABLE
AS $$
    WITH me AS (
        SELECT t.id, t.agent, t.available_at, t.attempt, t.estimated_tokens
          FROM lockkeeper.tasks t
         WHERE t.id = ANY (of_tasks) AND t.status = 'enqueued'
    ), room AS MATERIALIZED (
        SELECT h.*
          FROM (SELECT DISTINCT agent FROM me) named
          JOIN lockkeeper.agent_headroom h ON h.agent = named.agent
    )
    SELECT me.id,
           CASE WHEN room.agent IS NULL THEN 'no_such_agent'
                WHEN me.available_at > lockkeeper.clock() AND me.attempt > 0 THEN 'backoff'
                WHEN me.available_at > lockkeeper.clock() THEN 'scheduled'
                WHEN room.paused THEN 'paused'
                WHEN room.cooldown_until > lockkeeper.clock() THEN 'backoff'
                WHEN room.slots = 0 THEN 'agent_full'
                WHEN room.tokens_left < coalesce(me.estimated_tokens, room.default_tokens) AND room.running > 0
                     THEN 'token_budget'
                WHEN room.tokens_left = 0 THEN 'token_budget'
                ELSE 'next' END
      FROM me LEFT JOIN room ON room.agent = me.agent
$$;
