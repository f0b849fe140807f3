-- The dispatcher's statements: admission, leases until the run is known, and the cancelling of runs.

-- name: lock_agents
-- The first few of these agents that may be served and need a decision by policy, locked for this transaction.
-- locks: the guard of limits (shared), then agents; a row that another replica holds is left to it
-- returns: name, place in the order given, and the options that go with its attempts
WITH guard AS MATERIALIZED (
    -- Held with the claim: a change of limits waits for us, and we never start in the middle of one.
    SELECT pg_advisory_xact_lock_shared(4951, 1)
)
SELECT a.name, g.place, a.tasks_per_run, a.circuit_failures IS NOT NULL AS has_breaker, a.learn_estimates
  FROM guard, unnest($1::text[]) WITH ORDINALITY AS g (name, place)
  JOIN lockkeeper.agents a ON a.name = g.name
 WHERE (SELECT lockkeeper.is_adopted())
   AND a.by_policy
   AND NOT a.paused
   AND coalesce(a.cooldown_until <= lockkeeper.clock(), true)
 ORDER BY g.place
 LIMIT $2::int
   FOR NO KEY UPDATE OF a SKIP LOCKED

-- name: claim_tasks
-- Lease the next tasks of the first few of these agents that may be served, as far as their limits allow, in order, and
-- open their attempts. Agents that need a decision by policy are left out.
-- owner: dispatcher     transition: claim
-- fence: the agents' rows: headroom_now looks when they are locked, and its snapshot sees every committed claim, and
--        the first limit of one that had none to be locked for; the guard keeps more from being set
-- locks: the guard of limits (shared), then agents, then tasks, each without those that another holds; task_attempts
-- returns: one row per leased attempt, in the order to submit, and in each how far the line of agents was served; one
--          row without an attempt when nothing was leased
WITH guard AS MATERIALIZED (
    -- Held with the claim: a change of limits waits for us, and we never start in the middle of one.
    SELECT pg_advisory_xact_lock_shared(4951, 1)
), line AS MATERIALIZED (
    SELECT a.name, g.place, a.target, a.tasks_per_run, a.learn_estimates,
           a.max_concurrent_tasks IS NOT NULL OR a.max_tpm IS NOT NULL OR a.circuit_failures IS NOT NULL AS limited
      FROM guard, unnest($1::text[]) WITH ORDINALITY AS g (name, place)
      JOIN lockkeeper.agents a ON a.name = g.name
     WHERE (SELECT lockkeeper.is_adopted())
       AND NOT a.by_policy
       AND NOT a.paused
       AND coalesce(a.cooldown_until <= lockkeeper.clock(), true)
), locked AS MATERIALIZED (
    -- A row that changed since this statement began is read as it is now: options never lag behind their limits.
    SELECT a.name, l.place, true AS locked, a.target, a.tasks_per_run, a.circuit_failures IS NOT NULL AS has_breaker,
           a.learn_estimates
      FROM (SELECT name, place FROM line WHERE limited ORDER BY place OFFSET 0) l
      JOIN lockkeeper.agents a ON a.name = l.name
     ORDER BY l.place
     LIMIT $2::int
       FOR NO KEY UPDATE OF a SKIP LOCKED
), served AS MATERIALIZED (
    SELECT * FROM locked
    UNION ALL
    SELECT name, place, false, target, tasks_per_run, false, learn_estimates FROM line WHERE NOT limited
     ORDER BY place
     LIMIT $2::int
), room AS MATERIALIZED (
    SELECT h.agent, h.slots, h.tokens_left, h.max_tpm, h.default_tokens, h.is_idle,
           s.target, s.tasks_per_run, s.has_breaker, s.learn_estimates,
           greatest(h.expected_seconds / 60.0, 1) AS minutes
      FROM lockkeeper.headroom_now(
               ARRAY(SELECT name FROM served WHERE locked), ARRAY(SELECT name FROM served WHERE NOT locked)) h
      JOIN served s ON s.name = h.agent
     WHERE NOT h.by_policy
       AND NOT h.paused
       AND coalesce(h.cooldown_until <= lockkeeper.clock(), true)
       AND coalesce(h.slots > 0, true)
       AND coalesce(h.max_tpm > 0 AND (h.tokens_left > 0 OR h.is_idle), true)
), candidate AS MATERIALIZED (
    SELECT c.*, r.agent, r.tokens_left, r.max_tpm, r.is_idle,
           r.target, r.tasks_per_run, r.has_breaker, r.learn_estimates
      FROM room r
     CROSS JOIN LATERAL (
           SELECT t.ctid AS place_in_heap, t.id, t.priority, t.created_at, t.attempt_unspent AS again,
                  ceil(coalesce(t.estimated_tokens, r.default_tokens) / r.minutes)::bigint AS projected
             FROM lockkeeper.tasks t
            WHERE t.agent = r.agent AND t.status = 'enqueued' AND NOT t.deferred
              AND t.available_at <= (SELECT lockkeeper.clock())
            ORDER BY t.priority DESC, t.created_at, t.id
            -- Of a token budget about twice what fits is looked at and locked; the rest of it next time.
            LIMIT least($3::int, r.slots, 1 + ceil(2 * r.tokens_left * r.minutes / r.default_tokens))
              FOR NO KEY UPDATE SKIP LOCKED) c
), fitting AS (
    SELECT place_in_heap, id, priority, created_at, again, projected, false AS oversized,
           target, tasks_per_run, has_breaker, learn_estimates
      FROM candidate WHERE tokens_left IS NULL
    UNION ALL
    -- The running sum only grows: the first task that does not fit ends its agent's turn, so nothing
    -- smaller overtakes it. A task beyond the whole budget runs when nothing else does.
    SELECT place_in_heap, id, priority, created_at, again, projected, alone,
           target, tasks_per_run, has_breaker, learn_estimates
      FROM (SELECT c.*, row_number() OVER line = 1 AND c.is_idle AND c.projected > c.max_tpm AS alone,
                   sum(c.projected) OVER line AS weight
              FROM candidate c WHERE c.tokens_left IS NOT NULL
            WINDOW line AS (PARTITION BY c.agent ORDER BY c.priority DESC, c.created_at, c.id ROWS UNBOUNDED PRECEDING))
     WHERE weight <= tokens_left OR alone
), picked AS MATERIALIZED (
    SELECT f.place_in_heap, f.id, f.projected, f.oversized, f.again, f.target, f.tasks_per_run, f.has_breaker, f.learn_estimates,
           row_number() OVER (ORDER BY f.priority DESC, f.created_at, f.id) AS n
      FROM fitting f
     ORDER BY n
     LIMIT $3::int
), claimed AS (
    UPDATE lockkeeper.tasks t
       SET status = 'processing',
           attempt = CASE WHEN t.attempt_unspent THEN t.attempt ELSE t.attempt + 1 END,
           -- A released attempt keeps its id: its token still names the run that a lost answer may hide.
           -- The others count on from the claim's own id.
           attempt_id = CASE WHEN t.attempt_unspent THEN t.attempt_id
                             ELSE encode(overlay(uuid_send($5::uuid) PLACING int4send(p.n::int) FROM 13), 'hex')::uuid END,
           attempt_unspent = false,
           locked_by = $4,
           -- The clock by a query of its own, and so once, not for every row.
           lease_expires_at = (SELECT lockkeeper.clock() + make_interval(secs => $6::float8)),
           started_at = coalesce(t.started_at, (SELECT lockkeeper.clock())),
           reserved_tpm = p.projected,
           oversized = p.oversized,
           version = t.version + 1, verb = 'claim', reason = NULL
      FROM picked p
     -- The rows are locked, so they stay where they are: no second walk down the index. The last condition is
     -- always true and lets the planner expect few rows, so that it walks from these to the table, never back.
     WHERE t.ctid = p.place_in_heap AND t.id = p.id AND t.status = 'enqueued' AND p.n = p.n + 0
    RETURNING t.id, t.agent, t.attempt, t.attempt_id, t.reserved_tpm, t.version, p.n, p.again,
              p.target, p.tasks_per_run, p.has_breaker, p.learn_estimates,
              extract(epoch FROM (SELECT lockkeeper.clock()) - t.available_at)::float8 AS waited_seconds
), logged AS (
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor)
    SELECT id, version, clock_timestamp(), 'claim', 'processing', attempt, agent, 1, reserved_tpm, session_user
      FROM claimed
), leased AS (
    INSERT INTO lockkeeper.task_attempts
           (id, task_id, agent, attempt, status, locked_by, reserved_tpm, leased_at)
    SELECT attempt_id, id, agent, attempt, 'leased', $4, reserved_tpm, (SELECT lockkeeper.clock()) FROM claimed WHERE NOT again
), leased_again AS (
    UPDATE lockkeeper.task_attempts x
       SET status = 'leased', locked_by = $4, leased_at = lockkeeper.clock(),
           reserved_tpm = (SELECT c.reserved_tpm FROM claimed c WHERE c.attempt_id = x.id)
     WHERE x.id = ANY (ARRAY (SELECT c.attempt_id FROM claimed c WHERE c.again))
)
SELECT c.id AS task_id, c.attempt_id, c.attempt, c.agent, c.target, c.waited_seconds,
       c.tasks_per_run, NULL::uuid AS pack_id, c.has_breaker, c.learn_estimates, s.served
  FROM (SELECT CASE WHEN count(*) = $2::int THEN max(place) ELSE cardinality($1::text[]) END AS served FROM served) s
  LEFT JOIN claimed c ON true
 ORDER BY c.n

-- name: look_for_work
-- Whether tasks wait for their promotion, which agents have tasks that wait for a claim and seem to have room for one,
-- in the order of the first of each, those apart that need a decision by policy, and whether any attempt is watched or
-- any cost reserved: all that an idle dispatcher asks. Nothing is locked, so nothing is decided: who has just got room
-- is named by a note.
WITH ready AS MATERIALIZED (
    SELECT a.name, a.by_policy, row_number() OVER (ORDER BY first.priority DESC, first.created_at, first.id) AS place
      FROM lockkeeper.agents a
     CROSS JOIN LATERAL (
           SELECT t.priority, t.created_at, t.id FROM lockkeeper.tasks t
            WHERE t.agent = a.name AND t.status = 'enqueued' AND NOT t.deferred
            ORDER BY t.priority DESC, t.created_at, t.id LIMIT 1) first
     WHERE NOT a.paused
       AND coalesce(a.cooldown_until <= lockkeeper.clock(), true)
       AND coalesce(a.max_concurrent_tasks > (
           SELECT count(*) FROM lockkeeper.tasks r WHERE r.agent = a.name AND r.status = 'processing'), true)
       AND (a.max_tpm IS NULL OR EXISTS (
           SELECT FROM lockkeeper.agent_headroom h
            WHERE h.agent = a.name AND (h.tokens_left > 0 OR h.running = 0 AND h.used_tpm = 0)))
)
SELECT EXISTS (SELECT FROM lockkeeper.tasks
                WHERE status = 'enqueued' AND deferred AND available_at <= lockkeeper.clock()) AS is_due,
       ARRAY (SELECT name FROM ready WHERE NOT by_policy ORDER BY place) AS plain,
       ARRAY (SELECT name FROM ready WHERE by_policy ORDER BY place) AS by_policy,
       EXISTS (SELECT FROM lockkeeper.watched_attempts) OR EXISTS (SELECT FROM lockkeeper.reservations) AS has_lessons

-- name: promote_due
-- Let tasks whose time has come be claimed.
-- owner: dispatcher
-- locks: tasks, skipping those that somebody else holds
-- returns: how many
WITH due AS MATERIALIZED (
    SELECT id FROM lockkeeper.tasks
     WHERE status = 'enqueued' AND deferred AND available_at <= lockkeeper.clock()
     ORDER BY available_at LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
    UPDATE lockkeeper.tasks t SET deferred = false FROM due WHERE t.id = due.id RETURNING 1
)
SELECT count(*) FROM promoted

-- name: pack_attempts
-- Let leased attempts share a run. Stored before the run is asked for, and never changed: the pack's id is the token
-- that a lost answer may hide a run behind, and the run reads from it what it carries.
-- owner: dispatcher
-- fence: attempt id, and still leased by us
-- locks: taken by write_fenced
-- returns: every attempt that we still hold, with its pack
UPDATE lockkeeper.task_attempts x SET pack_id = coalesce(x.pack_id, $2::uuid)
  FROM lockkeeper.tasks t
 WHERE x.id = ANY ($1::uuid[]) AND t.id = x.task_id AND t.attempt_id = x.id
   AND t.status = 'processing' AND x.status = 'leased' AND t.locked_by = $3
RETURNING x.id AS attempt_id, x.pack_id

-- name: record_runs
-- Fill in the runs that carry these attempts, and lease what still runs for its agent's full time.
-- owner: dispatcher
-- fence: attempt id; a task that was cancelled, settled or put back meanwhile is not moved
-- locks: taken by write_fenced
-- returns: every attempt that was found, and whether its run is still wanted
WITH given AS MATERIALIZED (
    SELECT g.*, x.status AS was
      FROM unnest($1::uuid[], $2::bigint[]) AS g (attempt_id, run_id)
      JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET run_id = g.run_id, submitted_at = coalesce(x.submitted_at, lockkeeper.clock()),
           status = CASE x.status WHEN 'leased' THEN 'submitted' ELSE x.status END,
           -- It ended before anybody knew of its run, and not by its own word: that run must end as well,
           -- even when it was held for over because nobody had heard of it.
           cancel_requested_at = CASE WHEN x.status IN ('failed', 'cancelled', 'superseded') AND x.trace_state IS NULL
                                      THEN coalesce(x.cancel_requested_at, lockkeeper.clock())
                                      ELSE x.cancel_requested_at END,
           cancel_confirmed_at = CASE WHEN x.run_id IS NOT NULL THEN x.cancel_confirmed_at END
      FROM given g
     WHERE x.id = g.attempt_id
    RETURNING x.id, x.task_id, x.status, x.cancel_requested_at
), task AS (
    UPDATE lockkeeper.tasks t
       SET lease_expires_at = lockkeeper.clock() + make_interval(secs => coalesce(
               (SELECT a.lease_seconds FROM lockkeeper.agents a WHERE a.name = t.agent), 300)),
           version = t.version + 1, verb = 'submit', reason = NULL
      FROM attempt x JOIN given g ON g.attempt_id = x.id
     WHERE t.id = x.task_id AND t.attempt_id = x.id AND t.status = 'processing' AND x.status = 'submitted'
       -- Whoever asks again hears of the same run: that is no news of the task.
       AND g.was = 'leased'
    RETURNING t.id
)
SELECT x.id AS attempt_id, x.task_id, x.cancel_requested_at IS NOT NULL AS unwanted FROM attempt x

-- name: release_attempts
-- Put tasks back without spending the attempt: the runner would not take them now, or we are leaving.
-- owner: dispatcher     transition: release
-- fence: attempt id, and still leased by us: a run that is known is never forgotten, and what another took over
--        is being submitted by now
-- locks: taken by write_fenced
-- returns: the tasks that were put back
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::float8[], $3::text[]) AS g (attempt_id, delay_seconds, reason)
), task AS (
    UPDATE lockkeeper.tasks t
       SET status = 'enqueued', attempt_unspent = true,
           available_at = lockkeeper.clock() + make_interval(secs => g.delay_seconds),
           deferred = g.delay_seconds > 0,
           locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0, oversized = false,
           version = t.version + 1, verb = 'release', reason = g.reason
      FROM given g JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
     WHERE t.id = x.task_id AND t.attempt_id = x.id AND t.status = 'processing' AND x.status = 'leased'
       AND t.locked_by = $4
    RETURNING t.id, t.attempt_id, t.agent
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET status = 'released', locked_by = NULL, reserved_tpm = 0
      FROM task WHERE x.id = task.attempt_id
)
SELECT id AS task_id, agent FROM task

-- name: refuse_attempts
-- End tasks that the runner will never take: its own words become the reason.
-- owner: dispatcher     transition: refuse
-- fence: attempt id, and still leased by us
-- locks: taken by write_fenced
-- returns: the tasks that failed
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::jsonb[]) AS g (attempt_id, error)
), task AS (
    UPDATE lockkeeper.tasks t
       SET status = 'failed', finished_at = lockkeeper.clock(), error = g.error,
           locked_by = NULL, lease_expires_at = NULL, reserved_tpm = 0,
           version = t.version + 1, verb = 'refuse', reason = g.error ->> 'reason'
      FROM given g JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
     WHERE t.id = x.task_id AND t.attempt_id = x.id AND t.status = 'processing' AND x.status = 'leased'
       AND t.locked_by = $3
    RETURNING t.id, t.attempt_id, t.error
), attempt AS (
    UPDATE lockkeeper.task_attempts x
       SET status = 'failed', finished_at = lockkeeper.clock(), error = task.error
      FROM task WHERE x.id = task.attempt_id
)
SELECT id AS task_id FROM task

-- name: expire_leases
-- Let any replica ask again soon about attempts whose submission was not answered.
-- owner: dispatcher
-- fence: attempt id, and still leased by us
-- locks: taken by write_fenced
UPDATE lockkeeper.tasks t
   SET lease_expires_at = lockkeeper.clock() + make_interval(secs => g.seconds), locked_by = NULL
  FROM unnest($1::uuid[], $2::float8[]) AS g (attempt_id, seconds)
 WHERE t.attempt_id = g.attempt_id AND t.status = 'processing' AND t.locked_by = $3
   AND EXISTS (SELECT FROM lockkeeper.task_attempts x
                WHERE x.task_id = t.id AND x.attempt = t.attempt AND x.status = 'leased')

-- name: take_over_unsubmitted
-- Lease the attempts whose dispatcher fell silent before their run was known.
-- owner: dispatcher
-- fence: still leased and without a run; the same token makes asking twice harmless
-- locks: tasks, skipping those that somebody else holds
-- returns: one row per attempt to submit
WITH orphan AS MATERIALIZED (
    SELECT t.id
      FROM lockkeeper.tasks t
      JOIN lockkeeper.task_attempts x ON x.task_id = t.id AND x.attempt = t.attempt
     WHERE (SELECT lockkeeper.is_adopted()) AND t.status = 'processing' AND x.status = 'leased'
       AND (t.lease_expires_at <= lockkeeper.clock()
            OR t.locked_by IS NOT NULL AND NOT EXISTS (
               SELECT FROM lockkeeper.replicas r
                WHERE r.id = t.locked_by AND r.stopped_at IS NULL
                  AND r.heartbeat_at > lockkeeper.clock() - make_interval(secs => $4::float8)))
     ORDER BY t.priority DESC, t.created_at LIMIT $1
       FOR NO KEY UPDATE OF t SKIP LOCKED
), task AS (
    UPDATE lockkeeper.tasks t
       SET locked_by = $2, lease_expires_at = lockkeeper.clock() + make_interval(secs => $3::float8)
      FROM orphan WHERE t.id = orphan.id AND t.status = 'processing'
    RETURNING t.id, t.attempt_id, t.attempt, t.agent
), attempt AS (
    UPDATE lockkeeper.task_attempts x SET locked_by = $2 FROM task
     WHERE x.id = task.attempt_id AND x.status = 'leased'
    RETURNING x.id, x.pack_id
)
SELECT k.id AS task_id, k.attempt_id, k.attempt, k.agent, a.target, 0::float8 AS waited_seconds,
       coalesce(a.tasks_per_run, 1) AS tasks_per_run, x.pack_id
  FROM task k JOIN attempt x ON x.id = k.attempt_id LEFT JOIN lockkeeper.agents a ON a.name = k.agent

-- name: cool_down_agent
-- No claim for this agent before the runner may be asked again.
-- owner: dispatcher
UPDATE lockkeeper.agents
   SET cooldown_until = greatest(cooldown_until, lockkeeper.clock() + make_interval(secs => $2::float8))
 WHERE name = $1

-- name: take_cancellations
-- The runs that must end and are not known to have ended; each is given to one replica at a time.
-- owner: dispatcher
-- returns: attempt and run; a run that nobody learned of within two minutes was never started
WITH due AS MATERIALIZED (
    SELECT u.id FROM lockkeeper.task_attempts u
     WHERE (SELECT lockkeeper.is_adopted()) AND u.cancel_requested_at IS NOT NULL AND u.cancel_confirmed_at IS NULL
       AND coalesce(u.cancel_checked_at <= lockkeeper.clock() - make_interval(secs => $2::float8), true)
       AND (u.run_id IS NOT NULL OR u.cancel_requested_at <= lockkeeper.clock() - interval '2 minutes')
       -- Others of the same run are still wanted: its heartbeat tells this one to stop, and the run goes on. Unless
       -- this one was given up because it hangs: then nothing else frees the others.
       AND (u.pack_id IS NULL OR u.status = 'lost' OR NOT EXISTS (
            SELECT FROM lockkeeper.task_attempts o
             WHERE o.pack_id = u.pack_id AND o.status IN ('leased', 'submitted', 'running')
               AND o.cancel_requested_at IS NULL
            -- Asked for each one by the index: a hash of all attempts is never worth it.
            OFFSET 0))
     ORDER BY u.cancel_requested_at LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.task_attempts x SET cancel_checked_at = lockkeeper.clock()
  FROM due WHERE x.id = due.id
RETURNING x.id AS attempt_id, x.task_id, x.run_id

-- name: confirm_cancellation
-- The runner said that the run is over.
-- owner: dispatcher
UPDATE lockkeeper.task_attempts SET cancel_confirmed_at = lockkeeper.clock() WHERE id = ANY ($1::uuid[])
