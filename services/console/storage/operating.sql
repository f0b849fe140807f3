-- What operators do. Each action locks its tasks in one statement and decides in a later one of the same
-- transaction, whose snapshot is then current.

-- name: act_as
-- Name the person who acts, for this transaction only.
SELECT set_config('lockkeeper.actor', $1, true)

-- name: lock_tasks
-- Hold these tasks for this transaction, and the parents of those that have one.
-- locks: tasks in the order of their ids; every writer takes them in this order
SELECT id
  FROM lockkeeper.tasks
 WHERE id IN (SELECT unnest($1::uuid[])
              UNION SELECT parent_task_id FROM lockkeeper.tasks WHERE id = ANY ($1::uuid[]))
 ORDER BY id
   FOR NO KEY UPDATE

-- name: read_tasks
-- The locked tasks as they are now.
SELECT t.id, t.agent, t.status, t.attempt, t.attempt_id, t.priority, t.available_at, t.version, t.document_id, t.gather,
       p.status AS parent_status, lockkeeper.clock() AS now
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.tasks p ON p.id = t.parent_task_id
 WHERE t.id = ANY ($1::uuid[])

-- name: list_open_children
-- The children of these parents that have not ended. Nobody can add one while the parents are held.
SELECT id FROM lockkeeper.tasks
 WHERE parent_task_id = ANY ($1::uuid[])
   AND status IN ('enqueued', 'processing')
 ORDER BY id

-- name: cancel_tasks
-- End tasks that have not ended; a running one loses its lease at once.
-- owner: console     transition: cancel
-- locks: tasks, held by lock_tasks
-- returns: id and version of the tasks that it ended
UPDATE lockkeeper.tasks
   SET status = 'cancelled', finished_at = lockkeeper.clock(), lease_expires_at = NULL, locked_by = NULL,
       reserved_tpm = 0, deferred = false, version = version + 1, verb = 'cancel', reason = 'cancelled_by_operator'
 WHERE id = ANY ($1::uuid[])
   AND status IN ('enqueued', 'processing')
RETURNING id, agent, version

-- name: cancel_attempts
-- End the attempts of cancelled tasks, and ask for the cancelling of their runs until it is confirmed.
-- locks: task_attempts, after their tasks
-- fence: the attempt's id and that it has not ended
-- returns: the attempts whose run must be cancelled
WITH ended AS (
    UPDATE lockkeeper.task_attempts
       SET finished_at = lockkeeper.clock(),
           -- Leased counts too: the call that starts its run may be on its way.
           cancel_requested_at = CASE WHEN status <> 'released' OR run_id IS NOT NULL
                                      THEN coalesce(cancel_requested_at, lockkeeper.clock()) END,
           status = 'cancelled'
     WHERE id = ANY ($1::uuid[])
       AND status IN ('leased', 'submitted', 'running', 'released')
    RETURNING id, cancel_requested_at
)
SELECT id FROM ended WHERE cancel_requested_at IS NOT NULL

-- name: reprioritise_tasks
-- Give tasks that have not ended another priority.
-- owner: console
-- locks: tasks, held by lock_tasks
UPDATE lockkeeper.tasks
   SET priority = $2, version = version + 1, verb = 'reprioritise', reason = NULL
 WHERE id = ANY ($1::uuid[])
   AND status IN ('enqueued', 'processing')
   AND priority <> $2
RETURNING id, agent, version

-- name: hasten_tasks
-- Let waiting tasks start now instead of later.
-- owner: console
-- locks: tasks, held by lock_tasks
UPDATE lockkeeper.tasks
   SET available_at = lockkeeper.clock(), deferred = false, version = version + 1, verb = 'hasten', reason = NULL
 WHERE id = ANY ($1::uuid[])
   AND status = 'enqueued'
   AND (deferred OR available_at > lockkeeper.clock())
   -- A parent waits for its children, not for its time.
   AND gather IS NULL
RETURNING id, agent, version

-- name: redo_tasks
-- Enqueue copies of ended tasks, for the same agent or for another; one that has such a copy on its way keeps it.
-- owner: console     transition: enqueue
-- locks: the old tasks, held by lock_tasks, so that two who ask at once make one copy
-- returns: per old task the new one, and whether it was made now
WITH wanted AS MATERIALIZED (
    SELECT t.id AS source_id, a.name AS agent, t.customer, t.priority, a.max_attempts, t.document_id, t.labels, t.input,
           t.parent_task_id,
           CASE WHEN d.id IS NULL THEN t.estimated_tokens
                WHEN d.pages IS NULL THEN t.estimated_tokens
                ELSE greatest(d.pages, 1) * CASE WHEN a.learn_estimates AND a.learned_tokens_per_page IS NOT NULL
                     THEN a.learned_tokens_per_page ELSE a.tokens_per_page END END AS estimated_tokens,
           CASE WHEN a.name = t.agent THEN t.max_attempts ELSE a.max_attempts END AS attempts_allowed
      FROM lockkeeper.tasks t
      JOIN lockkeeper.agents a ON a.name = coalesce($2, t.agent)
      LEFT JOIN lockkeeper.documents d ON d.id = t.document_id
     WHERE t.id = ANY ($1::uuid[])
       AND t.status IN ('completed', 'failed', 'cancelled')
), standing AS MATERIALIZED (
    SELECT DISTINCT ON (n.source_task_id) n.source_task_id AS source_id, n.id, n.agent
      FROM wanted w
      JOIN lockkeeper.tasks n ON n.source_task_id = w.source_id AND n.agent = w.agent
     WHERE n.status IN ('enqueued', 'processing')
     ORDER BY n.source_task_id, n.created_at
), made AS (
    INSERT INTO lockkeeper.tasks
           (agent, customer, priority, max_attempts, estimated_tokens, document_id, parent_task_id, source_task_id,
            created_by, labels, input, reason)
    SELECT w.agent, w.customer, w.priority, w.attempts_allowed, w.estimated_tokens, w.document_id, w.parent_task_id,
           w.source_id, $3, w.labels, w.input, $4
      FROM wanted w
     WHERE NOT EXISTS (SELECT FROM standing s WHERE s.source_id = w.source_id)
    RETURNING source_task_id AS source_id, id, agent
)
SELECT source_id, id, agent, true AS is_new FROM made
UNION ALL
SELECT source_id, id, agent, false FROM standing

-- name: record_actions
-- Write down who did what to which target, with what it was before and is now.
-- owner: console
INSERT INTO lockkeeper.operator_audit (actor, action, target, before, after, note)
SELECT $1, $2, r.target, r.before, r.after, r.note
  FROM jsonb_to_recordset($3::jsonb) AS r (target text, before jsonb, after jsonb, note text)

-- name: count_eligible
-- How many tasks a bulk action fits.
SELECT count(*)
  FROM lockkeeper.find_tasks($1, $2, $3, $4, $5, $6, $7, $8, NULL, NULL, NULL) t
 WHERE t.status = ANY ($9::text[])
   AND ($10::uuid[] IS NULL OR t.id = ANY ($10))
   AND ($11 OR t.status <> 'enqueued' OR t.available_at > lockkeeper.clock())
   -- What was tried again is its copy's affair: redriving twice pays once.
   AND ($11 OR NOT EXISTS (SELECT FROM lockkeeper.tasks n WHERE n.source_task_id = t.id))
   AND t.created_at <= $12
   AND ($13::text[] IS NULL OR coalesce(t.error ->> 'reason', t.reason) = ANY ($13))

-- name: list_eligible
-- The next tasks that a bulk action fits, newest first, up to its own beginning.
SELECT t.id, t.created_at
  FROM lockkeeper.find_tasks($1, $2, $3, $4, $5, $6, $7, $8, $14, $15, NULL) t
 WHERE t.status = ANY ($9::text[])
   AND ($10::uuid[] IS NULL OR t.id = ANY ($10))
   AND ($11 OR t.status <> 'enqueued' OR t.available_at > lockkeeper.clock())
   -- What was tried again is its copy's affair: redriving twice pays once.
   AND ($11 OR NOT EXISTS (SELECT FROM lockkeeper.tasks n WHERE n.source_task_id = t.id))
   AND t.created_at <= $12
   AND ($13::text[] IS NULL OR coalesce(t.error ->> 'reason', t.reason) = ANY ($13))
 ORDER BY t.created_at DESC, t.id DESC
 LIMIT $16

-- name: list_dead_letters
-- What failed for good and was not tried again, by agent and reason, the most frequent first.
-- returns: how many, since when and until when, and the latest of them with its words
SELECT f.agent, f.reason, count(*) AS tasks, min(f.finished_at) AS first_at, max(f.finished_at) AS last_at,
       (array_agg(f.id ORDER BY f.finished_at DESC))[1] AS example_task_id,
       (array_agg(f.message ORDER BY f.finished_at DESC))[1] AS message
  FROM (SELECT t.id, t.agent, t.finished_at, coalesce(t.error ->> 'reason', t.reason, 'unknown') AS reason,
               t.error ->> 'message' AS message
          FROM lockkeeper.tasks t
         WHERE t.status = 'failed'
           AND ($1::text[] IS NULL OR t.agent = ANY ($1))
           AND ($2::text[] IS NULL OR t.customer = ANY ($2))
           AND t.created_at >= coalesce($3::timestamptz, '-infinity')
           AND t.created_at < coalesce($4::timestamptz, 'infinity')
           AND NOT EXISTS (SELECT FROM lockkeeper.tasks n WHERE n.source_task_id = t.id)) f
 GROUP BY f.agent, f.reason
 ORDER BY tasks DESC, f.agent, f.reason
 LIMIT 500

-- name: read_clock
-- The database's time.
SELECT lockkeeper.clock()

-- name: list_audit
-- What operators did, newest first; ids are in time order.
SELECT id, at, actor, action, target, before, after, note
  FROM lockkeeper.operator_audit
 WHERE id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   AND ($2::text IS NULL OR target = $2)
 ORDER BY id DESC
 LIMIT $3
