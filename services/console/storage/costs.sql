-- What was spent, and the asking for the bill.

-- name: sum_costs
-- Costs by agent, customer, status, day or month, currencies apart. Medians and the price of a page leave out tasks
-- whose cost is pending; they are amounts that tasks really had, or the middle of two.
WITH priced AS (
    SELECT lockkeeper.cost_key($1, $2, f.agent, f.customer, f.status, f.created_at, f.id) AS key, f.*,
           CASE WHEN f.is_first THEN f.llm_cost + f.compute_cost END AS total_cost,
           f.is_first AND f.attempts > 0 AND (f.llm_cost IS NULL OR f.compute_cost IS NULL) AS is_pending
      FROM lockkeeper.find_costs($3, $4, $5, $6, $7, $8, $9, $10) f
)
SELECT key, currency, count(*) AS tasks, sum(attempts)::bigint AS attempts, sum(pages)::bigint AS pages,
       sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(cache_read_tokens)::bigint AS cache_read_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
       sum(llm_cost) AS llm_cost, sum(compute_cost) AS compute_cost, sum(retry_cost) AS retry_cost,
       sum(superseded_cost) AS superseded_cost,
       (percentile_disc(0.5) WITHIN GROUP (ORDER BY llm_cost)
        + percentile_disc(0.5) WITHIN GROUP (ORDER BY llm_cost DESC)) / 2 AS median_llm_cost,
       (percentile_disc(0.5) WITHIN GROUP (ORDER BY total_cost)
        + percentile_disc(0.5) WITHIN GROUP (ORDER BY total_cost DESC)) / 2 AS median_cost,
       percentile_disc(0.95) WITHIN GROUP (ORDER BY total_cost) AS p95_cost,
       round(sum(total_cost) FILTER (WHERE pages > 0) / nullif(sum(pages) FILTER (WHERE total_cost IS NOT NULL), 0), 9)
           AS cost_per_page,
       count(*) FILTER (WHERE is_pending) AS pending_tasks,
       count(*) FILTER (WHERE NOT is_pending AND compute_status = 'preliminary') AS preliminary_tasks
  FROM priced
 GROUP BY key, currency
 ORDER BY CASE WHEN $1 IN ('day', 'month') THEN key END,
          sum(coalesce(llm_cost, 0) + coalesce(compute_cost, 0)) DESC, key, currency

-- name: list_task_costs
-- A page of tasks with their costs, newest first.
SELECT f.*, c.superseded_cost, c.compute_status
  FROM lockkeeper.find_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) f
  JOIN lockkeeper.task_costs c ON c.task_id = f.id
 ORDER BY f.created_at DESC, f.id DESC

-- name: lock_requests
-- Let one person at a time ask for the bill.
-- locks: a transaction-wide advisory lock
SELECT pg_advisory_xact_lock(4951, 2)

-- name: read_open_request
-- A request for the same range that is not answered yet.
SELECT id FROM lockkeeper.cost_requests
 WHERE status IN ('pending', 'running') AND from_at = $1 AND to_at = $2
 ORDER BY requested_at
 LIMIT 1

-- name: request_costs
-- Ask the cost attributor for the bill of a range.
-- owner: console
INSERT INTO lockkeeper.cost_requests (requested_by, from_at, to_at) VALUES ($1, $2, $3) RETURNING id

-- name: read_request
-- How far a request is.
SELECT id AS request_id, status, requested_by, requested_at, from_at, to_at, attempts_billed, records, error, finished_at
  FROM lockkeeper.cost_requests
 WHERE id = $1
