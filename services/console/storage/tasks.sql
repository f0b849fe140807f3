-- Tasks as they come in and as they are looked at.

-- name: read_enqueue_terms
-- What a new task takes from its agent and its document; no row when there is no such agent.
-- returns: tokens_per_page, whether the document exists, its pages and bytes, and the database's time
SELECT CASE WHEN a.learn_estimates AND a.learned_tokens_per_page IS NOT NULL THEN a.learned_tokens_per_page
            ELSE a.tokens_per_page END AS tokens_per_page, d.id AS document_id, d.pages, d.bytes, lockkeeper.clock() AS now
  FROM lockkeeper.agents a
  LEFT JOIN lockkeeper.documents d ON d.id = $2
 WHERE a.name = $1

-- name: enqueue_task
-- Put a task into the queue, in the name of the person who asked.
-- owner: console     transition: enqueue
-- fence: the idempotency key is unique; whoever comes second finds no row and reads the first one's task
-- returns: the new task's id; no row when the key is taken
INSERT INTO lockkeeper.tasks
       (id, agent, customer, priority, max_attempts, estimated_tokens, available_at, deferred, document_id,
        idempotency_key, request_digest, created_by, labels, input, parent_task_id, gather)
SELECT coalesce($15, lockkeeper.uuid7()), a.name, $2, $3, coalesce($4, a.max_attempts), $5,
       -- A parent is never due: its children end it.
       CASE WHEN $14::text IS NOT NULL THEN '9999-01-01Z' ELSE coalesce($6, lockkeeper.clock()) END,
       $6 IS NOT NULL OR $14 IS NOT NULL, $7, $8, $9, $10, $11, $12, $13, $14
  FROM lockkeeper.agents a
 WHERE a.name = $1
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id

-- name: hold_parent
-- Keep a parent from ending before this transaction does.
-- locks: the parent, shared: many may add children at once, but nobody while it is ended
-- returns: its status and rule, as of now
SELECT status, gather FROM lockkeeper.tasks WHERE id = $1 FOR SHARE

-- name: read_keyed_task
-- The task that an idempotency key stands for.
SELECT id, request_digest FROM lockkeeper.tasks WHERE idempotency_key = $1

-- name: list_tasks
-- A page of tasks, newest first, each waiting one with the word why.
WITH page AS MATERIALIZED (
    SELECT * FROM lockkeeper.find_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
)
SELECT page.*, w.reason AS waiting_reason
  FROM page
  LEFT JOIN lockkeeper.why_waiting(ARRAY (SELECT id FROM page WHERE status = 'enqueued')) w ON w.task_id = page.id
 ORDER BY page.created_at DESC, page.id DESC

-- name: read_task
-- One task as it is shown.
SELECT * FROM lockkeeper.task_overview WHERE id = $1

-- name: read_task_content
-- What a task was given and what came of it.
SELECT t.input, coalesce(t.result, r.result) AS result
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.attempt_results r ON t.status = 'completed' AND r.attempt_id = t.attempt_id
 WHERE t.id = $1

-- name: list_attempts
-- The attempts of a task, first to last.
SELECT id, attempt, status, locked_by, run_id, task_run_id, leased_at, submitted_at, started_at, finished_at,
       cancel_requested_at, cancel_confirmed_at, pages, trace_id, trace_state, error, input_tokens, output_tokens,
       cache_read_tokens, cache_write_tokens, llm_cost, llm_cost_source, compute_cost, currency, cost_status
  FROM lockkeeper.task_attempts
 WHERE task_id = $1
 ORDER BY attempt, leased_at

-- name: list_events
-- What happened to a task, first to last.
SELECT version, at, verb, status, attempt, actor, reason
  FROM lockkeeper.task_history
 WHERE task_id = $1
 ORDER BY version

-- name: explain_waiting
-- Why one task waits, its place and its estimated start; no row when it does not wait.
SELECT CASE WHEN t.gather IS NULL THEN w.reason ELSE 'children' END AS reason,
       CASE WHEN t.gather IS NULL THEN w.place END AS place,
       CASE WHEN t.gather IS NULL THEN w.estimated_start END AS estimated_start
  FROM lockkeeper.waiting($1) w JOIN lockkeeper.tasks t ON t.id = $1

-- name: read_family
-- What became of a parent's children, and all that they cost; no row for a task that is no parent.
SELECT f.gather, f.children, f.enqueued, f.processing, f.completed, f.failed, f.cancelled,
       c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.llm_cost, c.compute_cost,
       c.retry_cost, c.currency, c.cost_status
  FROM lockkeeper.families f
  JOIN lockkeeper.family_costs c ON c.parent_id = f.parent_id
 WHERE f.parent_id = $1

-- name: list_children
-- A parent's children after a certain one, first to last, each waiting one with the word why.
WITH page AS MATERIALIZED (
    SELECT o.*
      FROM lockkeeper.task_overview o
     WHERE o.parent_task_id = $1
       AND (o.created_at, o.id) > (coalesce($2::timestamptz, '-infinity'),
                                   coalesce($3::uuid, '00000000-0000-0000-0000-000000000000'))
     ORDER BY o.created_at, o.id
     LIMIT $4
)
SELECT page.*, w.reason AS waiting_reason
  FROM page
  LEFT JOIN lockkeeper.waiting_reasons(ARRAY (SELECT id FROM page WHERE status = 'enqueued')) w ON w.task_id = page.id
 ORDER BY page.created_at, page.id

-- name: list_redone
-- The tasks that retry or reprocess this one.
SELECT id FROM lockkeeper.tasks WHERE source_task_id = $1 ORDER BY created_at, id LIMIT 100

-- name: summarise_tasks
-- Totals of the tasks that a filter means.
SELECT * FROM lockkeeper.summarise_tasks($1, $2, $3, $4, $5, $6, $7, $8)
