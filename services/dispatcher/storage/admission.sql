-- The claim of agents with options, decided by policy.admission. Same transaction, same locks as claim_tasks:
-- lock_agents, then read_room, list candidates, lock_customers, read_purses, and what was decided.

-- name: read_room
-- What the limits and the budget of these agents leave, and their options; none for an agent that may start nothing.
-- fence: the agents' rows, locked in an earlier statement
SELECT h.agent, h.slots, h.tokens_left, h.max_tpm, h.running = 0 AND h.used_tpm = 0 AS is_idle, h.default_tokens,
       h.expected_seconds, h.backfill, h.backfill_limit, h.fair_share, h.customer_weights, h.expected_cost, b.cost_left,
       EXISTS (SELECT FROM lockkeeper.customers c
                WHERE coalesce(c.daily_budget, c.monthly_budget) IS NOT NULL) AS has_purses
  FROM lockkeeper.agent_headroom h
  LEFT JOIN lockkeeper.budget_state b ON b.scope = 'agent' AND b.name = h.agent
 WHERE h.agent = ANY ($1::text[])
   AND NOT h.paused
   AND coalesce(h.cooldown_until <= lockkeeper.clock(), true)
   AND coalesce(h.slots > 0, true)
   AND coalesce(h.max_tpm > 0 AND (h.tokens_left > 0 OR h.running = 0 AND h.used_tpm = 0), true)
   AND coalesce(b.cost_left >= h.expected_cost, true)

-- name: list_candidates
-- The next tasks of an agent in the order of the queue. Not locked: most of them are only looked at.
SELECT t.id, t.customer, t.priority, t.created_at, t.estimated_tokens, t.overtaken, NULL::int AS depth
  FROM lockkeeper.tasks t
 WHERE t.agent = $1 AND t.status = 'enqueued' AND NOT t.deferred AND t.available_at <= lockkeeper.clock()
 ORDER BY t.priority DESC, t.created_at, t.id
 LIMIT $2::int

-- name: list_candidates_by_customer
-- The next tasks of each customer of an agent, however many tasks of others stand before them.
-- Tasks without a customer are one more line; they have no index of their own, so that of them only what stands
-- among the first 2,000 of the agent is looked at.
WITH RECURSIVE named (customer, n) AS (
    (SELECT t.customer, 1 FROM lockkeeper.tasks t
      WHERE t.agent = $1 AND t.status = 'enqueued' AND NOT t.deferred AND t.customer IS NOT NULL
      ORDER BY t.customer LIMIT 1)
    UNION ALL
    SELECT next.customer, named.n + 1
      FROM named
     CROSS JOIN LATERAL (
           SELECT t.customer FROM lockkeeper.tasks t
            WHERE t.agent = $1 AND t.status = 'enqueued' AND NOT t.deferred AND t.customer > named.customer
            ORDER BY t.customer LIMIT 1) next
     WHERE named.n < 5000
), line AS MATERIALIZED (
    -- As deep as a turn that goes round all of them may get.
    SELECT customer, greatest(2, ceil(2.0 * $2::int / count(*) OVER ()))::int AS depth FROM named
)
SELECT c.*, line.depth
  FROM line
 CROSS JOIN LATERAL (
       SELECT t.id, t.customer, t.priority, t.created_at, t.estimated_tokens, t.overtaken
         FROM lockkeeper.tasks t
        WHERE t.agent = $1 AND t.customer = line.customer AND t.status = 'enqueued' AND NOT t.deferred
          AND t.available_at <= lockkeeper.clock()
        ORDER BY t.priority DESC, t.created_at, t.id
        LIMIT line.depth) c
UNION ALL
(SELECT c.*, $2::int
   FROM (SELECT t.id, t.customer, t.priority, t.created_at, t.estimated_tokens, t.overtaken
           FROM lockkeeper.tasks t
          WHERE t.agent = $1 AND t.status = 'enqueued' AND NOT t.deferred AND t.available_at <= lockkeeper.clock()
          ORDER BY t.priority DESC, t.created_at, t.id
          LIMIT 2000) c
  WHERE c.customer IS NULL
  ORDER BY c.priority DESC, c.created_at, c.id
  LIMIT $2::int)

-- name: lock_customers
-- The budgets of these customers, locked for this transaction.
-- locks: customers in name order, after agents; one that another replica holds is left to it
SELECT name FROM lockkeeper.customers
 WHERE name = ANY ($1::text[]) AND coalesce(daily_budget, monthly_budget) IS NOT NULL
 ORDER BY name
   FOR NO KEY UPDATE SKIP LOCKED

-- name: read_purses
-- What the budgets of these customers leave.
-- fence: their rows, locked in an earlier statement, so that this snapshot sees every committed reservation
SELECT name, cost_left FROM lockkeeper.budget_state WHERE scope = 'customer' AND name = ANY ($1::text[])

-- name: read_shares
-- The tags of an agent's customers.
SELECT customer, started, finished FROM lockkeeper.fair_shares WHERE agent = $1

-- name: count_overtakings
-- Remember on tasks that wait for room how many others go first now.
-- owner: dispatcher
-- locks: tasks, skipping those that somebody else holds
-- returns: the tasks that were counted on
WITH held AS MATERIALIZED (
    SELECT t.id, g.times
      FROM unnest($1::uuid[], $2::int[]) AS g (id, times)
      JOIN lockkeeper.tasks t ON t.id = g.id
     WHERE t.status = 'enqueued'
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE lockkeeper.tasks t SET overtaken = t.overtaken + held.times
  FROM held WHERE t.id = held.id
RETURNING t.id

-- name: lease_picked
-- Lease the tasks that were picked, and open their attempts.
-- owner: dispatcher     transition: claim
-- fence: the agent's row; a task that moved on since it was looked at is left out
-- locks: tasks, skipping those that somebody else holds; then task_attempts
-- returns: one row per leased attempt, in the order to submit
WITH picked AS MATERIALIZED (
    SELECT t.id, g.projected, g.oversized, g.attempt_id, g.n
      FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $5::uuid[])
           WITH ORDINALITY AS g (id, projected, oversized, attempt_id, n)
      JOIN lockkeeper.tasks t ON t.id = g.id
     WHERE t.status = 'enqueued' AND NOT t.deferred AND t.available_at <= lockkeeper.clock()
       FOR NO KEY UPDATE OF t SKIP LOCKED
), claimed AS (
    UPDATE lockkeeper.tasks t
       SET status = 'processing',
           attempt = CASE WHEN t.attempt_unspent THEN t.attempt ELSE t.attempt + 1 END,
           -- A released attempt keeps its id: its token still names the run that a lost answer may hide.
           attempt_id = CASE WHEN t.attempt_unspent THEN t.attempt_id ELSE p.attempt_id END,
           attempt_unspent = false,
           locked_by = $4,
           lease_expires_at = lockkeeper.clock() + make_interval(secs => $6::float8),
           started_at = coalesce(t.started_at, lockkeeper.clock()),
           reserved_tpm = p.projected,
           oversized = p.oversized,
           version = t.version + 1, verb = 'claim', reason = NULL
      FROM picked p
     WHERE t.id = p.id AND t.status = 'enqueued'
    RETURNING t.id, t.agent, t.attempt, t.attempt_id, t.reserved_tpm, t.version, p.n,
              extract(epoch FROM lockkeeper.clock() - t.available_at)::float8 AS waited_seconds
), logged AS (
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor)
    SELECT id, version, clock_timestamp(), 'claim', 'processing', attempt, agent, 1, reserved_tpm, session_user
      FROM claimed
), leased AS (
    INSERT INTO lockkeeper.task_attempts
           (id, task_id, agent, attempt, status, locked_by, reserved_tpm, leased_at)
    SELECT attempt_id, id, agent, attempt, 'leased', $4, reserved_tpm, lockkeeper.clock() FROM claimed
        ON CONFLICT (id) DO UPDATE
       SET status = 'leased', locked_by = excluded.locked_by, reserved_tpm = excluded.reserved_tpm,
           leased_at = excluded.leased_at
)
SELECT c.id AS task_id, c.attempt_id, c.attempt, c.agent, a.target, c.waited_seconds
  FROM claimed c JOIN lockkeeper.agents a ON a.name = c.agent
 ORDER BY c.n

-- name: reserve_costs
-- Let leased attempts weigh on budgets until the ledger knows what they cost.
-- owner: dispatcher
INSERT INTO lockkeeper.reservations (attempt_id, agent, customer, day, amount)
SELECT g.attempt_id, g.agent, g.customer, (lockkeeper.clock() AT TIME ZONE 'UTC')::date, g.amount
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::numeric[]) AS g (attempt_id, agent, customer, amount)
    ON CONFLICT (attempt_id) DO UPDATE SET day = excluded.day, amount = excluded.amount

-- name: write_shares
-- Keep the tags of the customers that were served; tags in the past say nothing any more.
-- owner: dispatcher
WITH written AS (
    INSERT INTO lockkeeper.fair_shares AS f (agent, customer, started, finished)
    SELECT $1, g.customer, g.started, g.finished
      FROM unnest($2::text[], $3::float8[], $4::float8[]) AS g (customer, started, finished)
        ON CONFLICT (agent, customer) DO UPDATE SET started = excluded.started, finished = excluded.finished
    RETURNING f.started
)
DELETE FROM lockkeeper.fair_shares f
 WHERE f.agent = $1 AND f.finished <= (SELECT max(started) FROM written) AND NOT f.customer = ANY ($2::text[])
