-- The sweeper's statements: expired leases, what became of them, and who does which duty.

-- name: list_overdue
-- Attempts whose run is known and whose lease is over, longest overdue first.
-- returns: attempt, run, and whether its result row is already there
SELECT t.id AS task_id, x.id AS attempt_id, x.attempt, t.agent, x.run_id,
       EXISTS (SELECT FROM lockkeeper.attempt_results r WHERE r.attempt_id = x.id) AS has_result,
       -- In a run that is shared, its time counts from its own turn on.
       CASE WHEN x.pack_id IS NULL THEN extract(epoch FROM lockkeeper.clock() - x.submitted_at)
            ELSE coalesce(extract(epoch FROM lockkeeper.clock() - x.started_at), 0) END::float8 AS ran_seconds,
       x.pack_id IS NOT NULL AND x.started_at IS NULL AS not_begun,
       coalesce(a.lease_seconds, 300) AS lease_seconds,
       coalesce(a.max_run_seconds, 86400) AS max_run_seconds,
       t.lease_expires_at
  FROM lockkeeper.tasks t
  JOIN lockkeeper.task_attempts x ON x.task_id = t.id AND x.attempt = t.attempt
  LEFT JOIN lockkeeper.agents a ON a.name = t.agent
 WHERE t.status = 'processing' AND t.lease_expires_at <= lockkeeper.clock() AND x.run_id IS NOT NULL
 ORDER BY t.lease_expires_at
 LIMIT $1

-- name: extend_leases
-- The run lives, or cannot be asked about: the attempt keeps its task.
-- owner: sweeper
-- fence: attempt id, still processing and still overdue
-- locks: taken by write_fenced
UPDATE lockkeeper.tasks t
   SET lease_expires_at = lockkeeper.clock() + make_interval(secs => g.seconds)
  FROM unnest($1::uuid[], $2::float8[]) AS g (attempt_id, seconds)
 WHERE t.attempt_id = g.attempt_id AND t.status = 'processing' AND t.lease_expires_at <= lockkeeper.clock()
RETURNING t.id AS task_id

-- name: record_recovered
-- Hand results that were found to the receiver, which settles them like any callback.
-- owner: sweeper
INSERT INTO lockkeeper.recovered_results (attempt_id)
SELECT unnest($1::uuid[])
    ON CONFLICT (attempt_id) DO NOTHING

-- name: lose_attempts
-- These runs are over without a word: requeue their tasks, or give them up.
-- owner: sweeper     transition: requeue, give_up
-- fence: attempt id, still processing, still overdue, and still without a result
-- locks: taken by write_fenced
-- returns: the tasks that moved and where to
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS g (attempt_id, finding, reason, message)
), judged AS (
    SELECT g.*, x.task_id, jsonb_build_object('reason', g.reason, 'message', g.message) AS error,
           t.spared_attempts + (g.finding = 'never_started')::int AS spared,
           g.finding = 'hopeless' AS hopeless,
           t.attempt - t.spared_attempts - (g.finding = 'never_started')::int >= t.max_attempts AS spent
      FROM given g
      JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
      JOIN lockkeeper.tasks t ON t.id = x.task_id
     WHERE t.status = 'processing' AND t.attempt_id = x.id AND t.lease_expires_at <= lockkeeper.clock()
       AND NOT EXISTS (SELECT FROM lockkeeper.attempt_results r WHERE r.attempt_id = x.id)
), task AS (
    UPDATE lockkeeper.tasks t
       SET status = CASE WHEN j.hopeless OR j.spent THEN 'failed' ELSE 'enqueued' END,
           verb = CASE WHEN j.hopeless OR j.spent THEN 'give_up' ELSE 'requeue' END,
           finished_at = CASE WHEN j.hopeless OR j.spent THEN lockkeeper.clock() END,
           reason = CASE WHEN NOT j.hopeless AND j.spent THEN 'lease_exhausted' ELSE j.reason END,
           error = CASE WHEN j.hopeless THEN j.error
                        WHEN j.spent THEN jsonb_build_object('reason', 'lease_exhausted', 'message',
                             format('attempt %s of %s was lost, the last one because %s', t.attempt, t.max_attempts, j.message))
                        ELSE t.error END,
           available_at = CASE WHEN j.hopeless OR j.spent THEN t.available_at
                               ELSE lockkeeper.clock() + lockkeeper.backoff(t.attempt, random()) END,
           deferred = NOT (j.hopeless OR j.spent),
           spared_attempts = j.spared,
           locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0, oversized = false,
           version = t.version + 1
      FROM judged j
     WHERE t.id = j.task_id
    RETURNING t.id, t.agent, t.status, j.attempt_id, j.finding, j.error AS attempt_error
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET status = 'lost', finished_at = lockkeeper.clock(), error = task.attempt_error,
           -- A run that lived too long must still be ended at the runner.
           cancel_requested_at = CASE WHEN task.finding = 'too_long' THEN lockkeeper.clock() ELSE x.cancel_requested_at END
      FROM task WHERE x.id = task.attempt_id
)
SELECT id AS task_id, agent, status, attempt_id, finding FROM task

-- name: take_duty
-- Hold a duty for some seconds; the same holder extends it, another takes it once it has lapsed.
-- owner: sweeper
-- returns: the term, or no row while somebody else holds it
INSERT INTO lockkeeper.duties AS d (duty, holder, expires_at)
VALUES ($1, $2, lockkeeper.clock() + make_interval(secs => $3::float8))
    ON CONFLICT (duty) DO UPDATE
   SET holder = excluded.holder, expires_at = excluded.expires_at,
       term = d.term + (d.holder <> excluded.holder)::int
 WHERE d.holder = excluded.holder OR d.expires_at <= lockkeeper.clock()
RETURNING term

-- name: forget_spending
-- Remove what was spent too long ago to weigh on any budget.
-- owner: sweeper
-- returns: how many rows
WITH old AS MATERIALIZED (
    SELECT ctid FROM lockkeeper.token_spending WHERE at < lockkeeper.clock() - interval '10 minutes' LIMIT $1
), gone AS (
    DELETE FROM lockkeeper.token_spending s USING old WHERE s.ctid = old.ctid RETURNING 1
)
SELECT count(*) FROM gone

-- name: remove_tasks
-- Remove tasks that ended more than $1 days ago, with all that is theirs; the ledger, spending and documents stay.
-- A thousand are looked at, the oldest first, on from the place ($2, $3). A family goes whole, with its parent.
-- owner: sweeper
-- fence: ended long ago; a cost that is still looked for, or a run whose end is still asked for, keeps the family
-- locks: tasks that have ended, skipping those that somebody else holds; then all that is theirs
-- returns: how many were looked at and the place of the last; how many rows went, by table
WITH old AS MATERIALIZED (
    SELECT t.id, t.created_at,
           1 + (SELECT count(*) FROM lockkeeper.tasks k WHERE k.parent_task_id = t.id) AS members
      FROM lockkeeper.tasks t
     WHERE t.created_at < lockkeeper.clock() - make_interval(days => $1)
       AND (t.created_at, t.id) > ($2::timestamptz, $3::uuid)
     ORDER BY t.created_at, t.id
     LIMIT 1000
), looked AS MATERIALIZED (
    SELECT * FROM (SELECT o.*, sum(o.members) OVER (ORDER BY o.created_at, o.id) - o.members AS before FROM old o) s
     WHERE s.before < 1000
), whole AS MATERIALIZED (
    SELECT t.id
      FROM lockkeeper.tasks t
     WHERE t.id = ANY (ARRAY(SELECT l.id FROM looked l))
       AND t.finished_at < lockkeeper.clock() - make_interval(days => $1)
       AND NOT EXISTS (SELECT FROM lockkeeper.tasks p WHERE p.id = t.parent_task_id)
       AND NOT EXISTS (SELECT FROM lockkeeper.tasks k
                        WHERE k.parent_task_id = t.id
                          AND coalesce(k.finished_at >= lockkeeper.clock() - make_interval(days => $1), true))
       AND NOT EXISTS (
           SELECT FROM (SELECT t.id UNION ALL
                        SELECT k.id FROM lockkeeper.tasks k WHERE k.parent_task_id = t.id) m
            -- Found by their task: nothing outside looks into what is walled off by OFFSET 0.
            CROSS JOIN LATERAL (SELECT * FROM lockkeeper.task_attempts a WHERE a.task_id = m.id OFFSET 0) x
            WHERE x.cost_status = 'pending' OR x.cancel_requested_at IS NOT NULL AND x.cancel_confirmed_at IS NULL)
       FOR UPDATE SKIP LOCKED
), gone AS MATERIALIZED (
    SELECT w.id FROM whole w
    UNION ALL
    SELECT k.id FROM lockkeeper.tasks k WHERE k.parent_task_id = ANY (ARRAY(SELECT w.id FROM whole w))
), attempt AS (
    DELETE FROM lockkeeper.task_attempts x WHERE x.task_id = ANY (ARRAY(SELECT g.id FROM gone g)) RETURNING x.id
), result AS (
    DELETE FROM lockkeeper.attempt_results r WHERE r.attempt_id = ANY (ARRAY(SELECT a.id FROM attempt a)) RETURNING 1
), recovered AS (
    DELETE FROM lockkeeper.recovered_results r WHERE r.attempt_id = ANY (ARRAY(SELECT a.id FROM attempt a))
), event AS (
    DELETE FROM lockkeeper.task_events e WHERE e.task_id = ANY (ARRAY(SELECT g.id FROM gone g)) RETURNING 1
), task AS (
    DELETE FROM lockkeeper.tasks t WHERE t.id = ANY (ARRAY(SELECT g.id FROM gone g)) RETURNING 1
)
SELECT s.looked_at, l.created_at AS last_created_at, l.id AS last_id,
       (SELECT count(*) FROM task) AS tasks, (SELECT count(*) FROM attempt) AS task_attempts,
       (SELECT count(*) FROM result) AS attempt_results, (SELECT count(*) FROM event) AS task_events
  FROM (SELECT count(*) AS looked_at FROM looked) s
  LEFT JOIN (SELECT created_at, id FROM looked ORDER BY created_at DESC, id DESC LIMIT 1) l ON true

-- name: drop_duties
-- Let the others take over at once.
-- owner: sweeper
UPDATE lockkeeper.duties SET expires_at = lockkeeper.clock() WHERE holder = $1

-- name: read_queue_state
-- The figures behind the table-derived metrics, one row per agent.
-- returns: among them how many waiting tasks the limits would admit now; at most $1 per agent are looked at
SELECT s.agent, s.paused, s.running, s.waiting, s.deferred,
       coalesce(s.oldest_waiting_seconds, 0)::float8 AS oldest_waiting_seconds,
       s.max_concurrent_tasks, s.max_tpm, h.slots, h.tokens_left,
       CASE WHEN h.paused OR h.cooldown_until > lockkeeper.clock() THEN 0 ELSE admitted.tasks END AS dispatchable
  FROM lockkeeper.queue_state s
  JOIN lockkeeper.agent_headroom h ON h.agent = s.agent
 CROSS JOIN LATERAL (
       SELECT count(*) AS tasks
         FROM (SELECT sum(ceil(coalesce(t.estimated_tokens, h.default_tokens)
                               / greatest(h.expected_seconds / 60.0, 1))) OVER line AS weight,
                      row_number() OVER line AS place
                 FROM (SELECT w.estimated_tokens, w.priority, w.created_at, w.id
                         FROM lockkeeper.tasks w
                        WHERE w.agent = s.agent AND w.status = 'enqueued' AND NOT w.deferred
                        ORDER BY w.priority DESC, w.created_at, w.id
                        LIMIT least($1::int, h.slots)) t
               WINDOW line AS (ORDER BY t.priority DESC, t.created_at, t.id)) queued
        WHERE h.max_tpm IS NULL OR queued.weight <= h.tokens_left
              -- A task beyond the whole budget runs when nothing else does.
           OR queued.place = 1 AND h.max_tpm > 0 AND h.running = 0 AND h.used_tpm = 0) admitted

-- name: read_duty_state
-- What the other services owe: leases past their end, results and costs that wait.
SELECT (SELECT count(*) FROM lockkeeper.tasks t
         WHERE t.status = 'processing' AND t.lease_expires_at <= lockkeeper.clock()) AS leases_overdue,
       (SELECT count(*) FROM lockkeeper.recovered_results r WHERE r.settled_at IS NULL) AS results_waiting,
       owed.attempts AS costs_pending, coalesce(owed.seconds, 0)::float8 AS cost_pending_seconds
  FROM (SELECT count(*) AS attempts, extract(epoch FROM lockkeeper.clock() - min(x.finished_at)) AS seconds
          FROM lockkeeper.task_attempts x
         WHERE x.cost_status = 'pending' AND x.finished_at IS NOT NULL) owed

-- name: read_replicas
-- Processes that beat within the last $1 seconds, by service and by how they hear.
SELECT r.service, coalesce(r.info ->> 'listener', 'none') AS hears, count(*) AS replicas
  FROM lockkeeper.replicas r
 WHERE r.stopped_at IS NULL AND r.heartbeat_at > lockkeeper.clock() - make_interval(secs => $1::float8)
 GROUP BY r.service, hears

-- name: read_database_state
-- How far the database is from its own limits. Transactions of other roles show their age only to members
-- of pg_read_all_stats.
SELECT (SELECT age(d.datfrozenxid) FROM pg_catalog.pg_database d WHERE d.datname = current_database()) AS xid_age,
       pg_database_size(current_database()) AS bytes,
       count(*) FILTER (WHERE a.datid IS NOT NULL) AS connections,
       current_setting('max_connections')::int AS connection_limit,
       coalesce(extract(epoch FROM clock_timestamp() - min(a.xact_start)
                FILTER (WHERE a.datname = current_database() AND a.pid <> pg_backend_pid())), 0)::float8 AS transaction_seconds
  FROM pg_catalog.pg_stat_activity a

-- name: read_table_state
-- Live and dead rows of our tables, as the statistics know them.
SELECT s.schemaname || '.' || s.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead
  FROM pg_catalog.pg_stat_user_tables s
 WHERE s.schemaname IN ('lockkeeper', 'agent_ops')
