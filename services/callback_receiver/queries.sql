-- The callback receiver's statements: settle what agents report, in rounds.
-- A round is one transaction: lock_reported, then settle_attempts and beat_attempts in later statements,
-- whose snapshots see everything that committed before the locks were had.

-- name: complete_attempts
-- The usual end, in one statement: successes of attempts that hold their tasks. Whatever is not returned goes
-- the long way.
-- owner: callback_receiver     transition: complete
-- fence: attempt id. The lock brings the task's latest row, and a processing task's present attempt is open:
--        nothing that this snapshot may have missed of the attempt can change the verdict
-- locks: tasks, skipping those that somebody else holds; then task_attempts
-- returns: the attempts that completed their tasks
WITH held AS MATERIALIZED (
    -- Report by report along the two primary keys, whatever the statistics say of a queue that fills and drains.
    SELECT t.place, 1 AS few, g.*
      FROM jsonb_to_recordset($1::jsonb) AS g (
           attempt_id uuid, result jsonb, confidence real, pages int, trace_id text, trace_state text, usage jsonb,
           used_tokens bigint, report jsonb)
     CROSS JOIN LATERAL (
           SELECT x.task_id FROM lockkeeper.task_attempts x
            WHERE x.id = g.attempt_id AND x.trace_state IS NULL OFFSET 0) x
     CROSS JOIN LATERAL (
           SELECT t.ctid AS place FROM lockkeeper.tasks t
            -- Leased is processing; by its status, the planner would take the index of all that runs.
            WHERE t.id = x.task_id AND t.lease_expires_at IS NOT NULL AND t.attempt_id = g.attempt_id
              FOR NO KEY UPDATE SKIP LOCKED) t
), task AS (
    UPDATE lockkeeper.tasks t
       SET status = 'completed', finished_at = lockkeeper.clock(),
           result = h.result, confidence = h.confidence, error = NULL,
           pages_done = coalesce(h.pages, t.pages_done), pages_total = coalesce(h.pages, t.pages_total), step = NULL,
           deferred = false, locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0,
           version = t.version + 1, verb = 'complete', reason = NULL
      FROM held h
     -- The rows are locked, so they stay where they are. The last condition is always true and lets the planner
     -- expect few rows, so that it walks from these to the table, never back.
     WHERE t.ctid = h.place AND t.attempt_id = h.attempt_id AND t.status = 'processing' AND h.few = h.few + 0
    RETURNING t.id, t.attempt_id, t.version, t.attempt, t.agent,
              h.pages, h.trace_id, h.trace_state, h.usage, h.used_tokens, h.report, h.few
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET status = 'completed', finished_at = lockkeeper.clock(), error = NULL, pages = coalesce(k.pages, x.pages),
           trace_id = k.trace_id, trace_state = k.trace_state, usage = k.usage, report = coalesce(k.report, '{}'),
           -- Nothing was said about tokens: it keeps weighing as it was reserved.
           used_tokens = coalesce(k.used_tokens, CASE WHEN x.reserved_tpm > 0 THEN ceil(x.reserved_tpm * greatest(1,
               extract(epoch FROM lockkeeper.clock() - coalesce(x.started_at, x.leased_at)) / 60)) ELSE 0 END)
      FROM task k
     WHERE x.id = k.attempt_id AND k.few = k.few + 0
    RETURNING x.agent, CASE WHEN x.used_tokens > 0 THEN ceil(x.used_tokens / greatest(1,
              extract(epoch FROM x.finished_at - coalesce(x.started_at, x.leased_at)) / 60)) ELSE 0 END AS tpm
), logged AS (
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor)
    SELECT id, version, clock_timestamp(), 'complete', 'completed', attempt, agent, 0, 0, session_user FROM task
), spent AS (
    INSERT INTO lockkeeper.token_spending (agent, at, tpm)
    SELECT u.agent, lockkeeper.clock(), u.tpm
      FROM (SELECT agent, sum(tpm) AS tpm FROM attempt GROUP BY agent) u
     WHERE u.tpm > 0
)
SELECT attempt_id, id AS task_id, agent FROM task

-- name: lock_reported
-- Take the row locks under which the later statements decide.
-- locks: tasks by id; a row that somebody else holds is left out and asked for again in a later round, so
--        one stuck task keeps nobody else waiting and no two rounds can wait for each other
-- returns: the attempts that may be settled now, with their tasks
SELECT x.id AS attempt_id, t.id AS task_id
  FROM lockkeeper.task_attempts x
  JOIN lockkeeper.tasks t ON t.id = x.task_id
 WHERE x.id = ANY ($1::uuid[])
 ORDER BY t.id
   FOR NO KEY UPDATE OF t SKIP LOCKED

-- name: find_attempts
-- Which of the attempts that could not be locked exist at all.
SELECT x.id
  FROM lockkeeper.task_attempts x
  JOIN lockkeeper.tasks t ON t.id = x.task_id
 WHERE x.id = ANY ($1::uuid[])

-- name: settle_attempts
-- Record how attempts ended and move their tasks on; at most one report per task in one call.
-- owner: callback_receiver     transition: complete, fail, retry
-- fence: attempt id; an attempt speaks once, and a task that is over stays as it is
-- locks: tasks by lock_reported, then task_attempts
-- returns: one row per report: what it did, and the attempt's settled outcome
WITH given AS MATERIALIZED (
    -- One document instead of an array per column: the driver spends less on it than on anything else here.
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS g (
           attempt_id uuid, failed boolean, result jsonb, result_stored boolean, confidence real, pages int,
           trace_id text, trace_state text, usage jsonb, used_tokens bigint, error jsonb, retryable boolean,
           retry_after float8, report jsonb)
), seen AS MATERIALIZED (
    SELECT g.attempt_id, 1 AS few, g.failed IS NOT TRUE AS succeeded, g.retryable, x.task_id, x.status AS was, t.status AS task_was, t.agent,
           -- Set by every report and by nothing else.
           x.trace_state IS NOT NULL AS has_spoken,
           t.status IN ('completed', 'failed', 'cancelled') AS is_over,
           t.attempt_id = x.id AS is_current,
           t.attempt - t.spared_attempts < t.max_attempts AS has_attempts_left,
           NOT coalesce(g.result_stored, false) OR g.result IS NOT NULL OR (
               SELECT true FROM lockkeeper.attempt_results r WHERE r.attempt_id = g.attempt_id) IS TRUE AS has_result
      FROM given g
     -- Report by report along the two primary keys, as in complete_attempts.
     CROSS JOIN LATERAL (SELECT x.* FROM lockkeeper.task_attempts x WHERE x.id = g.attempt_id OFFSET 0) x
     CROSS JOIN LATERAL (SELECT t.* FROM lockkeeper.tasks t WHERE t.id = x.task_id OFFSET 0) t
), judged AS MATERIALIZED (
    SELECT s.*,
           CASE WHEN s.has_spoken THEN 'settled'
                WHEN s.is_over OR s.was IN ('completed', 'failed', 'cancelled', 'superseded') THEN 'note'
                WHEN s.succeeded AND NOT s.has_result THEN 'result_missing'
                -- Whatever happened to the attempt meanwhile (put back, lost, overtaken): the first success wins.
                WHEN s.succeeded THEN 'complete'
                -- Somebody else has the task, or it waits for its next attempt anyway.
                WHEN NOT s.is_current OR s.was = 'lost' AND s.retryable THEN 'record'
                WHEN s.retryable AND s.has_attempts_left THEN 'retry'
                ELSE 'fail' END AS verdict
      FROM seen s
), ended AS MATERIALIZED (
    SELECT j.*,
           CASE WHEN j.verdict = 'complete' THEN 'completed'
                WHEN j.verdict IN ('retry', 'fail') THEN 'failed'
                WHEN j.verdict = 'record' AND j.was <> 'lost' THEN 'failed'
                WHEN j.verdict = 'note' AND j.was IN ('leased', 'submitted', 'running', 'released')
                THEN CASE j.task_was WHEN 'cancelled' THEN 'cancelled' ELSE 'superseded' END
                ELSE j.was END AS outcome
      FROM judged j
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET status = e.outcome,
           finished_at = CASE WHEN x.status = e.outcome THEN x.finished_at ELSE lockkeeper.clock() END,
           pages = coalesce(g.pages, x.pages),
           trace_id = g.trace_id, trace_state = g.trace_state,
           usage = g.usage, report = coalesce(g.report, '{}'),
           used_tokens = CASE
               WHEN g.used_tokens IS NOT NULL THEN g.used_tokens
               -- Nothing was said: it keeps weighing as it was reserved. A failure may have used nothing.
               WHEN e.verdict = 'complete' THEN ceil(x.reserved_tpm * greatest(1, extract(
                    epoch FROM lockkeeper.clock() - coalesce(x.started_at, x.leased_at)) / 60))
               ELSE x.used_tokens END,
           error = CASE e.verdict WHEN 'complete' THEN NULL
                                  WHEN 'note' THEN coalesce(x.error, g.error) ELSE g.error END
      FROM ended e JOIN given g ON g.attempt_id = e.attempt_id
     WHERE x.id = e.attempt_id AND e.few = e.few + 0 AND e.verdict NOT IN ('settled', 'result_missing')
    RETURNING x.agent, x.used_tokens, x.finished_at, coalesce(x.started_at, x.leased_at) AS began_at
), task AS (
    UPDATE lockkeeper.tasks t
       SET status = CASE e.verdict WHEN 'complete' THEN 'completed' WHEN 'fail' THEN 'failed' ELSE 'enqueued' END,
           finished_at = CASE WHEN e.verdict <> 'retry' THEN lockkeeper.clock() END,
           result = CASE e.verdict WHEN 'complete' THEN coalesce(g.result, (
               SELECT r.result FROM lockkeeper.attempt_results r
                WHERE r.attempt_id = e.attempt_id AND g.result_stored)) END,
           confidence = CASE e.verdict WHEN 'complete' THEN g.confidence END,
           error = CASE e.verdict WHEN 'fail' THEN g.error END,
           pages_done = CASE e.verdict WHEN 'complete' THEN coalesce(g.pages, t.pages_done) WHEN 'fail' THEN t.pages_done END,
           pages_total = CASE e.verdict WHEN 'complete' THEN coalesce(g.pages, t.pages_total) ELSE t.pages_total END,
           step = NULL,
           available_at = CASE e.verdict WHEN 'retry' THEN lockkeeper.clock() + greatest(
               lockkeeper.backoff(t.attempt, random()), make_interval(secs => coalesce(g.retry_after, 0)))
               ELSE t.available_at END,
           deferred = e.verdict = 'retry',
           -- Put back while it ran in truth: it has been spent after all.
           attempt_unspent = false,
           locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0,
           version = t.version + 1, verb = e.verdict,
           reason = CASE WHEN e.verdict <> 'complete' THEN g.error ->> 'reason'
                         WHEN NOT e.is_current OR e.was IN ('lost', 'released') THEN 'late_success' END
      FROM ended e JOIN given g ON g.attempt_id = e.attempt_id
     WHERE t.id = e.task_id AND e.few = e.few + 0 AND e.verdict IN ('complete', 'fail', 'retry')
    RETURNING t.id, t.version, t.verb, t.status, t.attempt, t.agent, t.reason
), logged AS (
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor, reason)
    SELECT id, version, clock_timestamp(), verb, status, attempt, agent, 0, 0, session_user, reason FROM task
), superseded AS (
    UPDATE lockkeeper.task_attempts n
       SET status = 'superseded', finished_at = lockkeeper.clock(),
           -- Its run may have started although its id is not known yet; a dispatcher asks until it is over.
           cancel_requested_at = coalesce(n.cancel_requested_at, lockkeeper.clock()),
           used_tokens = CASE WHEN n.submitted_at IS NULL THEN 0 ELSE n.reserved_tpm END
      FROM ended e
     WHERE e.verdict = 'complete' AND NOT e.is_current AND n.task_id = e.task_id AND n.id <> e.attempt_id
       AND n.status IN ('leased', 'submitted', 'running', 'released')
    RETURNING n.id, n.task_id, n.agent, n.used_tokens, n.finished_at, coalesce(n.started_at, n.leased_at) AS began_at
), spent AS (
    -- Reserve, then settle: for a minute the tokens that were really used weigh on the agent's budget,
    -- on one too that it is given only after this.
    INSERT INTO lockkeeper.token_spending (agent, at, tpm)
    SELECT u.agent, lockkeeper.clock(),
           sum(ceil(u.used_tokens / greatest(1, extract(epoch FROM u.finished_at - u.began_at) / 60)))
      FROM (SELECT agent, used_tokens, finished_at, began_at FROM attempt
            UNION ALL SELECT agent, used_tokens, finished_at, began_at FROM superseded) u
     WHERE u.used_tokens > 0
     GROUP BY u.agent
)
SELECT e.attempt_id, e.task_id, e.agent, e.verdict, e.outcome,
       (SELECT array_agg(s.id) FROM superseded s WHERE s.task_id = e.task_id) AS superseded
  FROM ended e

-- name: beat_attempts
-- Heartbeats: extend the lease of live attempts and move the progress bar, never backwards.
-- owner: callback_receiver
-- fence: attempt id; only the task's current attempt, and only while it holds the lease
-- locks: tasks by lock_reported, then task_attempts
-- returns: one row per heartbeat: whether it counted, and whether the agent should stop
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS g (attempt_id uuid, pages_done int, pages_total int, step text)
), seen AS MATERIALIZED (
    SELECT g.*, 1 AS few, x.task_id, t.agent, x.status AS was,
           x.status IN ('leased', 'submitted', 'running', 'released') AS is_open,
           -- A new attempt starts at its own first page, wherever the last one got to.
           x.started_at IS NULL AS is_first,
           t.attempt_id = x.id AND t.status = 'processing'
               AND x.status IN ('leased', 'submitted', 'running') AS is_live,
           x.cancel_requested_at IS NOT NULL OR t.attempt_id <> x.id
               OR t.status IN ('completed', 'failed', 'cancelled') AS is_unwanted
      FROM given g
     -- Report by report along the two primary keys, as in complete_attempts.
     CROSS JOIN LATERAL (SELECT x.* FROM lockkeeper.task_attempts x WHERE x.id = g.attempt_id OFFSET 0) x
     CROSS JOIN LATERAL (SELECT t.* FROM lockkeeper.tasks t WHERE t.id = x.task_id OFFSET 0) t
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       -- While its run is not known it stays `leased`: a dispatcher still has to ask for the run's id.
       SET status = CASE WHEN x.run_id IS NULL THEN x.status ELSE 'running' END,
           started_at = coalesce(x.started_at, lockkeeper.clock())
      FROM seen s
     WHERE x.id = s.attempt_id AND s.few = s.few + 0 AND s.is_live AND (s.is_first OR x.status <> 'running' AND x.run_id IS NOT NULL)
), task AS (
    -- No new version: a progress bar is not a turn of the task's life, and events would drown in it.
    UPDATE lockkeeper.tasks t
       SET lease_expires_at = greatest(t.lease_expires_at, lockkeeper.clock() + make_interval(secs => coalesce(
               (SELECT a.lease_seconds FROM lockkeeper.agents a WHERE a.name = t.agent), 300))),
           pages_done = CASE WHEN s.is_first THEN s.pages_done ELSE greatest(t.pages_done, s.pages_done) END,
           pages_total = CASE WHEN s.is_first THEN coalesce(s.pages_total, t.pages_total)
                              ELSE greatest(t.pages_total, s.pages_total) END,
           step = CASE WHEN s.is_first OR coalesce(s.pages_done >= t.pages_done, true)
                       THEN coalesce(s.step, t.step) ELSE t.step END
      FROM seen s
     WHERE t.id = s.task_id AND s.few = s.few + 0 AND s.is_live
)
SELECT attempt_id, task_id, agent,
       CASE WHEN is_live THEN 'extend' ELSE 'ignore' END AS verdict,
       CASE WHEN is_open THEN 'running' ELSE was END AS outcome,
       is_unwanted OR NOT is_open AS cancel_requested
  FROM seen

-- name: take_recovered
-- Results that the sweeper found without a callback.
-- locks: recovered_results, skipping what another replica settles
SELECT r.attempt_id, s.attempt_id IS NOT NULL AS is_there, s.confidence, s.pages, s.report
  FROM lockkeeper.recovered_results r
  LEFT JOIN lockkeeper.attempt_results s ON s.attempt_id = r.attempt_id
 WHERE r.settled_at IS NULL
 ORDER BY r.found_at
 LIMIT $1
   FOR NO KEY UPDATE OF r SKIP LOCKED

-- name: stamp_recovered
-- These are dealt with.
-- owner: callback_receiver
UPDATE lockkeeper.recovered_results SET settled_at = lockkeeper.clock() WHERE attempt_id = ANY ($1::uuid[])

-- name: find_families
-- Parents that wait and whose children seem to have ended.
SELECT p.id
  FROM lockkeeper.tasks p
 WHERE p.gather IS NOT NULL AND p.status = 'enqueued'
   AND NOT EXISTS (SELECT FROM lockkeeper.tasks c
                    WHERE c.parent_task_id = p.id AND c.status IN ('enqueued', 'processing'))
 ORDER BY p.id
 LIMIT $1

-- name: lock_families
-- Hold these parents. Who adds a child, does one anew or cancels holds its parent too.
-- locks: tasks by id, skipping those that somebody else holds
SELECT id FROM lockkeeper.tasks WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED

-- name: gather_families
-- End parents by their rules; the result says what became of the children.
-- owner: callback_receiver     transition: gather
-- fence: still waiting, and in this later snapshot still without an open child
-- locks: taken by lock_families
-- returns: the parents that ended
WITH ended AS (
    SELECT f.*, CASE f.gather WHEN 'all_completed' THEN f.completed = f.children
                              WHEN 'any_completed' THEN f.completed > 0 OR f.children = 0
                              ELSE true END AS is_well
      FROM lockkeeper.families f
     WHERE f.parent_id = ANY ($1::uuid[]) AND f.status = 'enqueued' AND f.enqueued + f.processing = 0
)
UPDATE lockkeeper.tasks t
   SET status = CASE WHEN e.is_well THEN 'completed' ELSE 'failed' END,
       finished_at = lockkeeper.clock(), deferred = false,
       result = CASE WHEN e.is_well THEN jsonb_build_object('children', e.children, 'completed', e.completed,
                                                            'failed', e.failed, 'cancelled', e.cancelled) END,
       error = CASE WHEN NOT e.is_well THEN jsonb_build_object('reason', 'children_failed', 'message',
           format('of %s children %s completed, %s failed and %s were cancelled',
                  e.children, e.completed, e.failed, e.cancelled)) END,
       version = t.version + 1, verb = 'gather',
       reason = CASE WHEN e.is_well THEN NULL ELSE 'children_failed' END
  FROM ended e
 WHERE t.id = e.parent_id AND t.status = 'enqueued'
RETURNING t.id

-- name: read_clock
-- The database's clock, in seconds since 1970.
SELECT extract(epoch FROM lockkeeper.clock())::float8
