-- What budgets have left, and why a task waits when admission has options.

-- The first instant of the UTC day or month after this one.
CREATE FUNCTION lockkeeper.next_period(period text) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT (date_trunc(period, lockkeeper.clock() AT TIME ZONE 'UTC') + ('1 ' || period)::interval) AT TIME ZONE 'UTC'
$$;

-- What the budgets of agents and customers have left now: what the ledger knows and what is reserved is gone.
CREATE VIEW lockkeeper.budget_state AS
SELECT b.scope, b.name, b.daily_budget, b.monthly_budget, s.spent_today, s.spent_this_month,
       r.reserved_today, r.reserved_this_month,
       -- Of the two, whichever is tighter; NULL is none.
       least(b.daily_budget - s.spent_today - r.reserved_today,
             b.monthly_budget - s.spent_this_month - r.reserved_this_month) AS cost_left,
       CASE WHEN b.monthly_budget - s.spent_this_month - r.reserved_this_month
                 <= coalesce(b.daily_budget - s.spent_today - r.reserved_today, 'infinity')
            THEN lockkeeper.next_period('month') ELSE lockkeeper.next_period('day') END AS renewed_at
  FROM (SELECT 'agent' AS scope, name, daily_budget, monthly_budget FROM lockkeeper.agents
        UNION ALL
        SELECT 'customer', name, daily_budget, monthly_budget FROM lockkeeper.customers) b
 CROSS JOIN LATERAL (
       SELECT (lockkeeper.clock() AT TIME ZONE 'UTC')::date AS today,
              date_trunc('month', lockkeeper.clock() AT TIME ZONE 'UTC')::date AS month) p
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(s.llm_cost + s.compute_cost) FILTER (WHERE s.day = p.today), 0) AS spent_today,
              coalesce(sum(s.llm_cost + s.compute_cost), 0) AS spent_this_month
         FROM lockkeeper.spending s
        WHERE s.scope = b.scope AND s.name = b.name AND s.day >= p.month) s
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(r.amount) FILTER (WHERE r.day = p.today), 0) AS reserved_today,
              coalesce(sum(r.amount), 0) AS reserved_this_month
         FROM (SELECT o.attempt_id, o.day, o.amount FROM lockkeeper.reservations o
                WHERE b.scope = 'agent' AND o.agent = b.name
               UNION ALL
               SELECT o.attempt_id, o.day, o.amount FROM lockkeeper.reservations o
                WHERE b.scope = 'customer' AND o.customer = b.name) r
         JOIN lockkeeper.task_attempts x ON x.id = r.attempt_id
        -- The statement that learns an attempt's cost also adds it to `spending`: it is here or there, never in both.
        -- What was given back, or ended without a run, costs nothing.
        WHERE r.day >= p.month AND x.llm_cost IS NULL AND x.status <> 'released'
          AND (x.finished_at IS NULL OR x.run_id IS NOT NULL)) r
 WHERE coalesce(b.daily_budget, b.monthly_budget) IS NOT NULL;

-- Why each of these tasks waits, in one word, for a whole page at the price of one look at each agent.
-- `lockkeeper.waiting` says it for one task exactly, with its place.
CREATE OR REPLACE FUNCTION lockkeeper.waiting_reasons(of_tasks uuid[])
RETURNS TABLE (task_id uuid, reason text)
LANGUAGE sql STABLE
AS $$
    WITH me AS (
        SELECT t.id, t.agent, t.customer, t.available_at, t.attempt, t.estimated_tokens
          FROM lockkeeper.tasks t
         WHERE t.id = ANY (of_tasks) AND t.status = 'enqueued'
    ), room AS MATERIALIZED (
        SELECT h.*
          FROM (SELECT DISTINCT agent FROM me) named
          JOIN lockkeeper.agent_headroom h ON h.agent = named.agent
    ), purse AS MATERIALIZED (
        SELECT b.scope, b.name, b.cost_left
          FROM (SELECT DISTINCT 'agent' AS scope, agent AS name FROM me
                UNION SELECT DISTINCT 'customer', customer FROM me) named
          JOIN lockkeeper.budget_state b ON b.scope = named.scope AND b.name = named.name
    )
    SELECT me.id,
           CASE WHEN room.agent IS NULL THEN 'no_such_agent'
                WHEN me.available_at > lockkeeper.clock() AND me.attempt > 0 THEN 'backoff'
                WHEN me.available_at > lockkeeper.clock() THEN 'scheduled'
                WHEN room.paused THEN 'paused'
                WHEN room.circuit = 'open' OR room.circuit = 'half_open' AND room.slots = 0 THEN 'circuit_open'
                WHEN room.cooldown_until > lockkeeper.clock() THEN 'cooldown'
                WHEN EXISTS (SELECT FROM purse p
                              WHERE (p.scope, p.name) IN (('agent', me.agent), ('customer', me.customer))
                                AND p.cost_left < room.expected_cost) THEN 'cost_budget'
                WHEN room.slots = 0 THEN 'agent_full'
                WHEN room.tokens_left < ceil(coalesce(me.estimated_tokens, room.default_tokens)
                                             / greatest(room.expected_seconds / 60.0, 1))
                     AND (room.running > 0 OR room.used_tpm > 0) THEN 'token_budget'
                WHEN room.tokens_left = 0 THEN 'token_budget'
                ELSE 'next' END
      FROM me LEFT JOIN room ON room.agent = me.agent
$$;

-- Why a task waits, its place among the waiting of its agent, and when it should start; no row once it left.
-- Place and start are estimates where customers share fairly, and without what later tasks may backfill.
CREATE OR REPLACE FUNCTION lockkeeper.waiting(of_task uuid)
RETURNS TABLE (reason text, place bigint, estimated_start timestamptz)
LANGUAGE sql STABLE
AS $$
    WITH me AS (
        SELECT t.id, t.agent, t.customer, t.priority, t.created_at, t.available_at, r.reason, h.slots,
               h.max_concurrent_tasks, h.max_tpm, h.expected_seconds, h.cooldown_until, h.fair_share,
               h.customer_weights, h.expected_cost
          FROM lockkeeper.tasks t
          JOIN lockkeeper.waiting_reasons(ARRAY[of_task]) r ON r.task_id = t.id
          LEFT JOIN lockkeeper.agent_headroom h ON h.agent = t.agent
         WHERE t.id = of_task
    ), earlier AS (
        -- Everything in front in the plain order, by customer.
        SELECT o.priority > me.priority AS urgent, o.customer IS NOT DISTINCT FROM me.customer AS mine, count(*) AS tasks
          FROM lockkeeper.tasks o, me
         WHERE o.agent = me.agent AND o.status = 'enqueued' AND NOT o.deferred
           AND (-o.priority, o.created_at, o.id) < (-me.priority, me.created_at, me.id)
         GROUP BY 1, 2
    ), own AS (
        SELECT coalesce(sum(tasks), 0) AS all_ahead, coalesce(sum(tasks) FILTER (WHERE urgent), 0) AS urgent,
               coalesce(sum(tasks) FILTER (WHERE mine AND NOT urgent), 0) AS mine
          FROM earlier
    ), rivals AS (
        -- With fair share each other customer gets its weight's part of the turns until mine.
        SELECT coalesce(sum(least(c.tasks, floor((own.mine + 1)
                   * coalesce((me.customer_weights ->> c.customer)::numeric, 1)
                   / coalesce((me.customer_weights ->> me.customer)::numeric, 1)))), 0) AS tasks
          FROM me, own,
               LATERAL (SELECT o.customer, count(*) AS tasks FROM lockkeeper.tasks o
                         WHERE me.fair_share AND o.agent = me.agent AND o.status = 'enqueued' AND NOT o.deferred
                           AND o.priority = me.priority AND o.customer IS DISTINCT FROM me.customer
                         GROUP BY o.customer) c
    ), line AS (
        SELECT (CASE WHEN me.fair_share THEN own.urgent + own.mine + rivals.tasks ELSE own.all_ahead END)::bigint AS ahead
          FROM me, own, rivals
    ), purse AS (
        SELECT max(b.renewed_at) AS renewed_at,
               bool_or(least(b.daily_budget, b.monthly_budget) < me.expected_cost) AS is_too_small
          FROM me JOIN lockkeeper.budget_state b
            ON (b.scope, b.name) IN (('agent', me.agent), ('customer', me.customer))
         WHERE b.cost_left < me.expected_cost
    )
    SELECT CASE WHEN me.reason = 'next' AND me.slots <= line.ahead THEN 'agent_full' ELSE me.reason END,
           line.ahead + 1,
           CASE WHEN me.reason IN ('no_such_agent', 'paused') OR me.max_concurrent_tasks = 0 OR me.max_tpm = 0
                     OR purse.is_too_small THEN NULL
                ELSE greatest(me.available_at, me.cooldown_until, purse.renewed_at, lockkeeper.clock())
                   + make_interval(secs => me.expected_seconds
                         * floor(greatest(line.ahead + 1 - coalesce(me.slots, line.ahead + 1), 0)
                                 / greatest(coalesce(me.max_concurrent_tasks, 1), 1)::numeric)::float8)
           END
      FROM me, line, purse
$$;
