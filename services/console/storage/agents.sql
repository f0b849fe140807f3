-- Agents: settings, their use, their history.

-- name: list_agents
-- All agents, or one, with how far their limits are used now.
SELECT a.*, w.running, w.reserved_tpm, w.used_tpm, CASE WHEN a.max_concurrent_tasks IS NOT NULL
            THEN greatest(a.max_concurrent_tasks - w.running, 0) END AS slots,
       CASE WHEN a.max_tpm IS NOT NULL
            THEN greatest(a.max_tpm - w.reserved_tpm - w.used_tpm, 0) END AS tokens_left,
       w.waiting, w.deferred, w.oldest_waiting_seconds,
       h.circuit, h.circuit_until, coalesce(cardinality(c.failed_tasks), 0) AS failed_in_a_row,
       b.spent_today, b.spent_this_month, b.reserved_this_month, b.cost_left, b.renewed_at,
       e.samples, e.tokens AS learned_tokens, e.seconds AS learned_seconds, e.tokens_per_page AS learned_tokens_per_page,
       e.cost AS learned_cost
  FROM lockkeeper.agents a
  JOIN lockkeeper.queue_state w ON w.agent = a.name
  JOIN lockkeeper.agent_headroom h ON h.agent = a.name
  LEFT JOIN lockkeeper.agent_circuits c ON c.agent = a.name
  LEFT JOIN lockkeeper.budget_state b ON b.scope = 'agent' AND b.name = a.name
  LEFT JOIN lockkeeper.agent_estimates e ON e.agent = a.name
 WHERE $1::text IS NULL OR a.name = $1
 ORDER BY a.name

-- name: lock_agent
-- Hold an agent's row, so that its next version follows from the one that was read.
-- locks: agents
SELECT name FROM lockkeeper.agents WHERE name = $1 FOR NO KEY UPDATE

-- name: read_agent
-- An agent's settings as they are now.
SELECT * FROM lockkeeper.agents WHERE name = $1

-- name: create_agent
-- Make an agent; no row when somebody else just made it.
-- owner: console
INSERT INTO lockkeeper.agents
       (name, target, description, max_concurrent_tasks, max_tpm, lease_seconds, max_attempts, expected_seconds,
        max_run_seconds, default_tokens, tokens_per_page, backfill, fair_share, tasks_per_run, paused, options,
        backfill_limit, customer_weights, daily_budget, monthly_budget, expected_cost, circuit_failures,
        circuit_seconds, learn_estimates, updated_by)
VALUES ($1, $2, coalesce($3, ''), $4, $5, coalesce($6, 300), coalesce($7, 3), coalesce($8, 60), coalesce($9, 86400),
        coalesce($10, 4000), coalesce($11, 1500), coalesce($12, false), coalesce($13, false), coalesce($14, 1),
        coalesce($15, false), coalesce($16, '{}'::jsonb), coalesce($17, 10), coalesce($18, '{}'::jsonb), $19, $20,
        coalesce($21, 0.05), $22, coalesce($23, 60), coalesce($24, true), $25)
    ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: change_agent
-- Write an agent's next version.
-- owner: console
-- locks: agents, held by lock_agent; then the guard of limits, which lets claims in flight end first
UPDATE lockkeeper.agents
   SET target = $2, description = $3, max_concurrent_tasks = $4, max_tpm = $5, lease_seconds = $6, max_attempts = $7,
       expected_seconds = $8, max_run_seconds = $9, default_tokens = $10, tokens_per_page = $11, backfill = $12,
       fair_share = $13, tasks_per_run = $14, paused = $15, options = $16, backfill_limit = $17,
       customer_weights = $18, daily_budget = $19, monthly_budget = $20, expected_cost = $21, circuit_failures = $22,
       circuit_seconds = $23, learn_estimates = $24, version = version + 1,
       updated_at = lockkeeper.clock(), updated_by = $25
 WHERE name = $1
RETURNING name

-- name: list_changes
-- An agent's versions, newest first.
SELECT version, changed_at, changed_by, settings
  FROM lockkeeper.agent_changes
 WHERE agent = $1
 ORDER BY version DESC
 LIMIT $2
