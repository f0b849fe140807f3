-- What ended attempts teach: the circuit breakers and the estimates of agents. One replica at a time.

-- name: watch_attempts
-- Look at these attempts when they have ended.
-- owner: dispatcher
INSERT INTO lockkeeper.watched_attempts (attempt_id) SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING

-- name: hold_learning
-- Whether this transaction is the only one that learns now.
SELECT pg_try_advisory_xact_lock(4951, 2)

-- name: take_outcomes
-- Watched attempts that have ended, each once, in the order of their ends.
-- owner: dispatcher
-- fence: judged
WITH ended AS MATERIALIZED (
    SELECT w.attempt_id
      FROM lockkeeper.watched_attempts w JOIN lockkeeper.task_attempts x ON x.id = w.attempt_id
     WHERE NOT w.judged AND x.finished_at IS NOT NULL
     ORDER BY x.finished_at
     LIMIT $1
), judged AS (
    UPDATE lockkeeper.watched_attempts w SET judged = true
      FROM ended WHERE w.attempt_id = ended.attempt_id
    RETURNING w.attempt_id
)
SELECT x.task_id, x.agent,
       CASE WHEN x.status = 'completed' THEN true
            WHEN x.status IN ('cancelled', 'superseded') THEN NULL
            -- The agent itself said that this input will never do: it works, and the next input may.
            ELSE coalesce(NOT (x.report ->> 'retryable')::boolean, false) END AS works,
       CASE WHEN x.status = 'completed' THEN x.used_tokens END AS tokens, nullif(x.pages, 0) AS pages,
       greatest(0, extract(epoch FROM x.finished_at - coalesce(x.started_at, x.submitted_at, x.leased_at)))::float8 AS seconds
  FROM judged j JOIN lockkeeper.task_attempts x ON x.id = j.attempt_id
 ORDER BY x.finished_at, x.id

-- name: take_costs
-- Forget what was learned from; rows of those whose cost became known.
-- owner: dispatcher
WITH done AS MATERIALIZED (
    SELECT w.attempt_id, x.agent, x.status, x.llm_cost + coalesce(x.compute_cost, 0) AS cost
      FROM lockkeeper.watched_attempts w LEFT JOIN lockkeeper.task_attempts x ON x.id = w.attempt_id
     WHERE x.id IS NULL
        OR w.judged AND (x.cost_status <> 'pending' OR x.finished_at <= lockkeeper.clock() - interval '1 hour')
     LIMIT $1
), forgotten AS (
    DELETE FROM lockkeeper.watched_attempts w USING done WHERE w.attempt_id = done.attempt_id
)
SELECT agent, cost FROM done WHERE status = 'completed' AND cost IS NOT NULL

-- name: read_lessons
-- What is known of these agents already.
SELECT a.name, a.circuit_failures, a.circuit_seconds, c.failed_tasks, c.opened_at, c.open_until,
       e.samples, e.tokens, e.seconds, e.page_samples, e.tokens_per_page, e.cost_samples, e.cost::float8 AS cost,
       lockkeeper.clock() AS now
  FROM lockkeeper.agents a
  LEFT JOIN lockkeeper.agent_circuits c ON c.agent = a.name
  LEFT JOIN lockkeeper.agent_estimates e ON e.agent = a.name
 WHERE a.name = ANY ($1::text[])

-- name: write_circuit
-- Keep what an agent's circuit is now.
-- owner: dispatcher
INSERT INTO lockkeeper.agent_circuits (agent, failed_tasks, opened_at, open_until)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (agent) DO UPDATE
   SET failed_tasks = excluded.failed_tasks, opened_at = excluded.opened_at, open_until = excluded.open_until

-- name: write_estimate
-- Keep what an agent's tasks take on the average; what a page takes also where tasks are enqueued.
-- owner: dispatcher
WITH pages AS (
    UPDATE lockkeeper.agents a SET learned_tokens_per_page = greatest(1, ceil($6::float8))
     WHERE a.name = $1 AND $5::int >= 20 AND a.learned_tokens_per_page IS DISTINCT FROM greatest(1, ceil($6::float8))
)
INSERT INTO lockkeeper.agent_estimates
       (agent, samples, tokens, seconds, page_samples, tokens_per_page, cost_samples, cost)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::float8::numeric)
    ON CONFLICT (agent) DO UPDATE
   SET samples = excluded.samples, tokens = excluded.tokens, seconds = excluded.seconds,
       page_samples = excluded.page_samples, tokens_per_page = excluded.tokens_per_page,
       cost_samples = excluded.cost_samples, cost = excluded.cost, measured_at = lockkeeper.clock()

-- name: drop_reservations
-- Forget reservations that weigh on nothing any more: the ledger knows their cost, or their month is over.
-- owner: dispatcher
DELETE FROM lockkeeper.reservations r
 WHERE r.attempt_id IN (
       SELECT o.attempt_id
         FROM lockkeeper.reservations o LEFT JOIN lockkeeper.task_attempts x ON x.id = o.attempt_id
        WHERE x.llm_cost IS NOT NULL OR o.day < date_trunc('month', lockkeeper.clock() AT TIME ZONE 'UTC')::date
        LIMIT $1)
