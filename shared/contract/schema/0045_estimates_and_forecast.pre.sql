-- Estimate against bill with the gap explained: per task, part and currency, so that every filter and grouping adds
-- up; the reasons of a row add up to its gap.
--   llm      estimate: the usage at our price table; bill: what the ledger counts
--   compute  estimate: measured seconds at what a second of the same agent's runs cost in the 30 days before,
--            so never from the bill that it is compared with; bill: the platform's
CREATE VIEW lockkeeper.cost_reconciliation AS
WITH second AS (
    SELECT d.agent, d.day, sum(d.cost) OVER before / nullif(sum(d.seconds) OVER before, 0) AS price
      FROM (SELECT x.agent, (x.leased_at AT TIME ZONE 'UTC')::date AS day, sum(x.compute_cost) AS cost,
                   sum(extract(epoch FROM x.finished_at - coalesce(x.started_at, x.submitted_at, x.leased_at)))
                       FILTER (WHERE x.compute_cost IS NOT NULL) AS seconds
              FROM lockkeeper.task_attempts x
             WHERE x.run_id IS NOT NULL
             GROUP BY 1, 2) d
    WINDOW before AS (PARTITION BY d.agent ORDER BY d.day
                      RANGE BETWEEN interval '30 days' PRECEDING AND interval '1 day' PRECEDING)
), compute AS (
    SELECT x.task_id, x.agent, x.compute_cost AS bill,
           CASE WHEN x.run_id IS NOT NULL THEN round(s.price * extract(
               epoch FROM x.finished_at - coalesce(x.started_at, x.submitted_at, x.leased_at)), 9) END AS estimate,
           coalesce(c.corrections, 0) AS corrections, coalesce(c.unpriced, 0) AS unpriced
      FROM lockkeeper.task_attempts x
      LEFT JOIN second s ON s.agent = x.agent AND s.day = (x.leased_at AT TIME ZONE 'UTC')::date
      LEFT JOIN LATERAL (
           SELECT sum(c.amount) FILTER (WHERE c.record_type <> 'ORIGINAL' AND c.currency = 'USD') AS corrections,
                  count(*) FILTER (WHERE c.amount IS NULL) AS unpriced
             FROM lockkeeper.cost_entries c WHERE c.attempt_id = x.id AND c.kind = 'compute') c ON true
     WHERE x.status <> 'released'
), line AS (
    SELECT l.*, CASE l.priced_by WHEN 'price_table' THEN coalesce(l.list_amount, l.amount) ELSE l.list_amount END AS listed
      FROM lockkeeper.cost_lines l WHERE l.kind = 'llm'
)
SELECT l.task_id, l.agent, 'llm' AS part, l.currency, sum(l.listed) AS estimate, sum(l.amount) AS bill,
       coalesce(sum(l.amount), 0) - coalesce(sum(l.listed), 0) AS gap,
       coalesce(sum(l.amount - l.listed) FILTER (WHERE l.priced_by = 'trace'), 0) AS named_by_trace,
       coalesce(sum(l.amount) FILTER (WHERE l.listed IS NULL), 0) AS not_in_table,
       coalesce(sum(l.amount - l.listed) FILTER (WHERE l.priced_by = 'price_table'), 0) AS older_price,
       0::numeric AS not_billed_yet, 0::numeric AS no_estimate, 0::numeric AS corrections, 0::numeric AS rate,
       0::bigint AS pending_attempts, count(*) FILTER (WHERE l.amount IS NULL) AS unpriced_lines
  FROM line l
 GROUP BY l.task_id, l.agent, l.currency
UNION ALL
SELECT c.task_id, c.agent, 'compute', 'USD', sum(c.estimate), sum(c.bill),
       coalesce(sum(c.bill), 0) - coalesce(sum(c.estimate), 0), 0, 0, 0,
       -coalesce(sum(c.estimate) FILTER (WHERE c.bill IS NULL), 0),
       coalesce(sum(c.bill) FILTER (WHERE c.estimate IS NULL), 0),
       coalesce(sum(c.corrections) FILTER (WHERE c.bill IS NOT NULL AND c.estimate IS NOT NULL), 0),
       coalesce(sum(c.bill - c.estimate - c.corrections), 0),
       count(*) FILTER (WHERE c.bill IS NULL), sum(c.unpriced)::bigint
  FROM compute c
 GROUP BY c.task_id, c.agent;

-- What each waiting task will cost: its estimated tokens at what an estimated token of the same agent's latest
-- finished tasks (a thousand at most, of the last 30 days) cost, retries included. NULL without such tasks.
CREATE VIEW lockkeeper.cost_forecast AS
WITH history AS MATERIALIZED (
    SELECT a.name AS agent, h.*
      FROM lockkeeper.agents a
     CROSS JOIN LATERAL (
           SELECT count(c.llm_cost) AS llm_tasks, sum(c.llm_cost) AS llm_cost,
                  sum(p.tokens) FILTER (WHERE c.llm_cost IS NOT NULL) AS llm_tokens,
                  count(c.compute_cost) AS compute_tasks, sum(c.compute_cost) AS compute_cost,
                  sum(p.tokens) FILTER (WHERE c.compute_cost IS NOT NULL) AS compute_tokens
             FROM (SELECT t.id, coalesce(t.estimated_tokens, a.default_tokens) AS tokens
                     FROM lockkeeper.tasks t
                    WHERE t.agent = a.name AND t.status IN ('completed', 'failed', 'cancelled')
                      AND t.created_at >= lockkeeper.clock() - interval '30 days'
                    ORDER BY t.created_at DESC, t.id DESC
                    LIMIT 1000) p
             JOIN lockkeeper.task_costs c ON c.task_id = p.id
            WHERE c.attempts > 0) h
)
SELECT t.id AS task_id, t.agent, t.customer, t.created_at, coalesce(t.estimated_tokens, a.default_tokens) AS tokens,
       coalesce(t.estimated_tokens, a.default_tokens) * h.llm_cost / nullif(h.llm_tokens, 0) AS llm_forecast,
       coalesce(t.estimated_tokens, a.default_tokens) * h.compute_cost / nullif(h.compute_tokens, 0) AS compute_forecast,
       'USD' AS currency, coalesce(h.llm_tasks, 0) AS llm_tasks, coalesce(h.compute_tasks, 0) AS compute_tasks
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.agents a ON a.name = t.agent
  LEFT JOIN history h ON h.agent = t.agent
 WHERE t.status = 'enqueued';
