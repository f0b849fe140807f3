-- Agents: settings, their use, their history.

-- name: list_agents
-- All agents, or one, with how far their limits are used now.
SELECT a.*, w.running, w.reserved_tpm, w.used_tpm, CASE WHEN a.max_concurrent_tasks IS NOT NULL
            THEN greatest(a.max_concurrent_tasks - w.running, 0) END AS slots,
       CASE WHEN a.max_tpm IS NOT NULL
            THEN greatest(a.max_tpm - w.reserved_tpm - w.used_tpm, 0) END AS tokens_left,
       w.waiting, w.deferred, w.oldest_waiting_seconds
  FROM lockkeeper.agents a
  JOIN lockkeeper.queue_state w ON w.agent = a.name
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
        max_run_seconds, default_tokens, tokens_per_page, backfill, fair_share, tasks_per_run, paused, options, updated_by)
VALUES ($1, $2, coalesce($3, ''), $4, $5, coalesce($6, 300), coalesce($7, 3), coalesce($8, 60), coalesce($9, 86400),
        coalesce($10, 4000), coalesce($11, 1500), coalesce($12, false), coalesce($13, false), coalesce($14, 1),
        coalesce($15, false), coalesce($16, '{}'::jsonb), $17)
    ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: change_agent
-- Write an agent's next version.
-- owner: console
-- locks: agents, held by lock_agent; then the guard of limits, which lets claims in flight end first
UPDATE lockkeeper.agents
   SET target = $2, description = $3, max_concurrent_tasks = $4, max_tpm = $5, lease_seconds = $6, max_attempts = $7,
       expected_seconds = $8, max_run_seconds = $9, default_tokens = $10, tokens_per_page = $11, backfill = $12,
       fair_share = $13, tasks_per_run = $14, paused = $15, options = $16, version = version + 1,
       updated_at = lockkeeper.clock(), updated_by = $17
 WHERE name = $1
RETURNING name

-- name: list_changes
-- An agent's versions, newest first.
SELECT version, changed_at, changed_by, settings
  FROM lockkeeper.agent_changes
 WHERE agent = $1
 ORDER BY version DESC
 LIMIT $2
