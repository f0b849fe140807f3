-- The ledger's lines behind the figures. Every statement here takes the filters of the cost page first ($1 to $8), so
-- that a figure and its lines mean the same tasks.

-- name: sum_lines
-- Tokens and amounts by model, or by how the attempt ended that they were spent on. $9 names the grouping.
WITH chosen AS MATERIALIZED (
    SELECT f.id FROM lockkeeper.find_costs($1, $2, $3, $4, $5, $6, $7, $8) f WHERE f.is_first
), line AS (
    SELECT coalesce(u.model, 'unnamed') AS key, u.task_id, u.attempt_id, NULL::integer AS pages, 'llm' AS kind,
           u.input_tokens, u.output_tokens, u.cache_read_tokens, u.cache_write_tokens, u.amount, u.currency, u.outcome
      FROM chosen c JOIN lockkeeper.model_usage u ON u.task_id = c.id
     WHERE $9::text = 'model'
    UNION ALL
    SELECT l.outcome, l.task_id, l.attempt_id, l.pages, l.kind, l.input_tokens, l.output_tokens, l.cache_read_tokens,
           l.cache_write_tokens, l.amount, l.currency, l.outcome
      FROM chosen c JOIN lockkeeper.cost_lines l ON l.task_id = c.id
     WHERE $9::text = 'outcome'
)
SELECT key, currency, count(DISTINCT task_id) AS tasks, count(DISTINCT attempt_id) AS attempts,
       sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(cache_read_tokens)::bigint AS cache_read_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
       sum(amount) FILTER (WHERE kind = 'llm') AS llm_cost, sum(amount) FILTER (WHERE kind = 'compute') AS compute_cost,
       sum(amount) FILTER (WHERE outcome <> 'completed') AS retry_cost,
       sum(amount) FILTER (WHERE outcome = 'superseded') AS superseded_cost,
       count(*) FILTER (WHERE amount IS NULL) AS unpriced_lines
  FROM line
 GROUP BY key, currency
 ORDER BY sum(amount) DESC NULLS LAST, key, currency

-- name: list_lines
-- The lines that make a figure, in the order of their key, each with the price that made it and how often it was
-- another. $9 to $11: the row of a grouping; $12 to $14: which lines make the figure; $15 to $18: the page.
WITH chosen AS MATERIALIZED (
    SELECT f.id
      FROM lockkeeper.find_costs($1, $2, $3, $4, $5, $6, $7, $8) f
     WHERE f.is_first
       AND ($9::text IS NULL OR $9 IN ('model', 'outcome')
            OR lockkeeper.cost_key($9, $10, f.agent, f.customer, f.status, f.created_at, f.id) IS NOT DISTINCT FROM $11)
)
SELECT l.source, l.record_id, l.attempt_id, l.task_id, l.attempt, l.outcome, l.run_id, l.agent, l.customer, l.kind,
       l.model, l.input_tokens, l.output_tokens, l.cache_read_tokens, l.cache_write_tokens, l.quantity, l.unit, l.sku,
       l.amount, l.list_amount, l.currency, l.priced_by, l.price_id, l.record_type, l.usage_start_at, l.usage_end_at,
       l.recorded_at, l.version, l.reason, l.parts, b.status AS bill_status,
       p.input_price, p.output_price, p.cache_read_price, p.cache_write_price, p.valid_from, p.valid_to,
       p.note AS price_note, p.retired_at
  FROM chosen c
  JOIN lockkeeper.cost_lines l ON l.task_id = c.id
  LEFT JOIN lockkeeper.prices_ever p ON p.id = l.price_id
  LEFT JOIN lockkeeper.run_bills b ON b.run_id = l.run_id AND l.kind = 'compute'
 WHERE l.kind = ANY ($12::text[])
   AND ($13::text[] IS NULL OR l.outcome <> ALL ($13))
   AND ($14::text IS NULL OR l.currency = $14)
   AND ($9::text IS DISTINCT FROM 'outcome' OR l.outcome = $11)
   AND ($9::text IS DISTINCT FROM 'model' OR coalesce(l.model, 'unnamed') = $11
        OR EXISTS (SELECT FROM jsonb_array_elements(l.parts) e WHERE e ->> 'model' = $11))
   AND ($15::uuid IS NULL OR (l.attempt_id, l.source, l.record_id) > ($15, $16, $17))
 ORDER BY l.attempt_id, l.source, l.record_id
 LIMIT $18

-- name: sum_chosen_lines
-- What the lines of a figure add up to, by currency: the figure itself, added up anew.
WITH chosen AS MATERIALIZED (
    SELECT f.id
      FROM lockkeeper.find_costs($1, $2, $3, $4, $5, $6, $7, $8) f
     WHERE f.is_first
       AND ($9::text IS NULL OR $9 IN ('model', 'outcome')
            OR lockkeeper.cost_key($9, $10, f.agent, f.customer, f.status, f.created_at, f.id) IS NOT DISTINCT FROM $11)
)
SELECT l.currency, count(*) AS lines, count(DISTINCT l.task_id) AS tasks, sum(l.amount) AS amount,
       sum(l.input_tokens)::bigint AS input_tokens, sum(l.output_tokens)::bigint AS output_tokens,
       sum(l.cache_read_tokens)::bigint AS cache_read_tokens, sum(l.cache_write_tokens)::bigint AS cache_write_tokens,
       count(*) FILTER (WHERE l.amount IS NULL) AS unpriced_lines
  FROM chosen c
  JOIN lockkeeper.cost_lines l ON l.task_id = c.id
 WHERE l.kind = ANY ($12::text[])
   AND ($13::text[] IS NULL OR l.outcome <> ALL ($13))
   AND ($14::text IS NULL OR l.currency = $14)
   AND ($9::text IS DISTINCT FROM 'outcome' OR l.outcome = $11)
   AND ($9::text IS DISTINCT FROM 'model' OR coalesce(l.model, 'unnamed') = $11
        OR EXISTS (SELECT FROM jsonb_array_elements(l.parts) e WHERE e ->> 'model' = $11))
 GROUP BY l.currency
 ORDER BY l.currency

-- name: list_line_versions
-- What these lines said before, oldest first.
SELECT v.source, v.record_id, v.attempt_id, v.version, v.amount, v.currency, v.quantity, v.input_tokens,
       v.output_tokens, v.cache_read_tokens, v.cache_write_tokens, v.priced_by, v.price_id, v.reason, v.recorded_at,
       v.replaced_at
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS g (attempt_id, source, record_id)
  JOIN lockkeeper.cost_entry_versions v USING (attempt_id, source, record_id)
 ORDER BY v.attempt_id, v.source, v.record_id, v.version

-- name: reconcile_costs
-- Estimate against bill by agent, with the reasons of the gap.
SELECT r.agent, r.part, r.currency, sum(r.estimate) AS estimate, sum(r.bill) AS bill, sum(r.gap) AS gap,
       sum(r.named_by_trace) AS named_by_trace, sum(r.not_in_table) AS not_in_table, sum(r.older_price) AS older_price,
       sum(r.not_billed_yet) AS not_billed_yet, sum(r.no_estimate) AS no_estimate, sum(r.corrections) AS corrections,
       sum(r.rate) AS rate, sum(r.pending_attempts)::bigint AS pending_attempts,
       sum(r.unpriced_lines)::bigint AS unpriced_lines
  FROM (SELECT f.id FROM lockkeeper.find_costs($1, $2, $3, $4, $5, $6, $7, $8) f WHERE f.is_first) c
  JOIN lockkeeper.cost_reconciliation r ON r.task_id = c.id
 GROUP BY r.agent, r.part, r.currency
 ORDER BY r.agent, r.part, r.currency

-- name: forecast_costs
-- What the waiting tasks of each agent will cost; NULL where nothing of the kind has finished yet.
SELECT f.agent, f.currency, count(*) AS waiting_tasks, sum(f.tokens)::bigint AS waiting_tokens,
       round(sum(f.llm_forecast), 9) AS llm_forecast, round(sum(f.compute_forecast), 9) AS compute_forecast,
       round(sum(f.llm_forecast), 9) + round(sum(f.compute_forecast), 9) AS total_forecast,
       max(f.llm_tasks) AS llm_tasks, max(f.compute_tasks) AS compute_tasks
  FROM (SELECT w.id FROM lockkeeper.find_costs($1, $2, $3, $4, $5, $6, $7, $8) w
         WHERE w.is_first AND w.status = 'enqueued') c
  JOIN lockkeeper.cost_forecast f ON f.task_id = c.id
 GROUP BY f.agent, f.currency
 ORDER BY f.agent

-- name: list_budgets
-- Every budget with what is spent, reserved and left of it now.
SELECT scope, name, daily_budget, monthly_budget, spent_today, spent_this_month, reserved_today, reserved_this_month,
       cost_left, renewed_at
  FROM lockkeeper.budget_state
 WHERE daily_budget IS NOT NULL OR monthly_budget IS NOT NULL
 ORDER BY scope, name

-- name: list_budget_alerts
-- What was told of budgets, newest first.
SELECT scope, name, period, begins, share, budget, spent, reserved, at
  FROM lockkeeper.budget_alerts
 ORDER BY at DESC, scope, name, period, share
 LIMIT $1
