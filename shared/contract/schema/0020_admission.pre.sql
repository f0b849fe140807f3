-- Admission with options: bounded backfill, fair share, spend budgets, learned estimates, a circuit breaker, packing.
-- An agent without options is claimed for as before, and pays nothing for these.

ALTER TABLE lockkeeper.agents
    -- With `backfill`: how many later tasks may overtake one that waits for room, all in all.
    ADD COLUMN backfill_limit smallint NOT NULL DEFAULT 10 CHECK (backfill_limit BETWEEN 1 AND 1000),
    -- With `fair_share`: {customer: weight}; whoever is not named weighs 1.
    ADD COLUMN customer_weights jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(customer_weights) = 'object'),
    -- US dollars in a UTC day and month. NULL means no such budget, 0 stops the agent.
    ADD COLUMN daily_budget numeric CHECK (daily_budget >= 0),
    ADD COLUMN monthly_budget numeric CHECK (monthly_budget >= 0),
    -- What a task is reserved with until its cost is known.
    ADD COLUMN expected_cost numeric NOT NULL DEFAULT 0.05 CHECK (expected_cost >= 0),
    -- Different tasks that must fail in a row before nothing more is started; NULL means never.
    ADD COLUMN circuit_failures smallint CHECK (circuit_failures BETWEEN 1 AND 100),
    -- How long it stays open before one task is tried.
    ADD COLUMN circuit_seconds integer NOT NULL DEFAULT 60 CHECK (circuit_seconds BETWEEN 1 AND 86400),
    ADD COLUMN learn_estimates boolean NOT NULL DEFAULT true,
    -- Kept by triggers: the claim decides in Python, by these options, instead of in one statement.
    ADD COLUMN by_policy boolean NOT NULL DEFAULT false;

ALTER TABLE lockkeeper.tasks
    -- How many later tasks went first while this one waited for room.
    ADD COLUMN overtaken smallint NOT NULL DEFAULT 0;

ALTER TABLE lockkeeper.task_attempts
    -- The attempts that share a run; stored before the run is asked for, and its idempotency token.
    ADD COLUMN pack_id uuid;

-- Customers that have a budget of their own, over all agents. US dollars in a UTC day and month.
CREATE TABLE lockkeeper.customers (
    name           text PRIMARY KEY CHECK (name <> ''),
    daily_budget   numeric CHECK (daily_budget >= 0),
    monthly_budget numeric CHECK (monthly_budget >= 0),
    version        bigint NOT NULL DEFAULT 1,
    updated_at     timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    updated_by     text NOT NULL DEFAULT current_user
);

-- What attempts weigh on budgets until the ledger knows their cost. Written in the claim.
CREATE TABLE lockkeeper.reservations (
    attempt_id uuid PRIMARY KEY,
    agent      text NOT NULL,
    customer   text,
    day        date NOT NULL,
    amount     numeric NOT NULL
);
CREATE INDEX reservations_by_agent ON lockkeeper.reservations (agent);
CREATE INDEX reservations_by_customer ON lockkeeper.reservations (customer) WHERE customer IS NOT NULL;

-- Start-time fair queueing between the customers of an agent: the tags of the task that was served last.
-- The agent's virtual time is the highest start; '' stands for tasks without a customer.
CREATE TABLE lockkeeper.fair_shares (
    agent    text NOT NULL,
    customer text NOT NULL,
    started  double precision NOT NULL,
    finished double precision NOT NULL,
    PRIMARY KEY (agent, customer)
) WITH (fillfactor = 50);

-- Attempts whose end somebody wants to learn from: all of agents with a breaker, samples of the others.
CREATE TABLE lockkeeper.watched_attempts (
    attempt_id uuid PRIMARY KEY,
    watched_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    -- Its end was counted; only its cost is not known yet.
    judged     boolean NOT NULL DEFAULT false
);

-- What an agent's tasks really took; replaces its defaults once there are enough samples.
CREATE TABLE lockkeeper.agent_estimates (
    agent           text PRIMARY KEY,
    samples         integer NOT NULL,
    tokens          double precision NOT NULL,
    seconds         double precision NOT NULL,
    page_samples    integer NOT NULL DEFAULT 0,
    tokens_per_page double precision,
    cost_samples    integer NOT NULL DEFAULT 0,
    cost            numeric,
    measured_at     timestamptz NOT NULL DEFAULT lockkeeper.clock()
);

-- An agent whose tasks failed. Open until `open_until`, then half open: one task at a time is tried.
CREATE TABLE lockkeeper.agent_circuits (
    agent        text PRIMARY KEY,
    -- The different tasks that failed since the last success, latest last.
    failed_tasks uuid[] NOT NULL DEFAULT '{}',
    opened_at    timestamptz,
    open_until   timestamptz
);

CREATE FUNCTION lockkeeper.mark_by_policy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    NEW.by_policy := NEW.backfill OR NEW.fair_share OR NEW.daily_budget IS NOT NULL OR NEW.monthly_budget IS NOT NULL
        OR EXISTS (SELECT FROM lockkeeper.customers c WHERE coalesce(c.daily_budget, c.monthly_budget) IS NOT NULL);
    RETURN NEW;
END $$;
CREATE TRIGGER mark_by_policy BEFORE INSERT OR UPDATE OF backfill, fair_share, daily_budget, monthly_budget
    ON lockkeeper.agents FOR EACH ROW EXECUTE FUNCTION lockkeeper.mark_by_policy();
UPDATE lockkeeper.agents SET backfill = backfill WHERE backfill OR fair_share;

-- As for the limits: no claim in flight goes by an option that was just changed.
CREATE TRIGGER guard_options BEFORE UPDATE OF backfill, fair_share, daily_budget, monthly_budget, circuit_failures
    ON lockkeeper.agents FOR EACH ROW
    WHEN (OLD.backfill <> NEW.backfill OR OLD.fair_share <> NEW.fair_share
          OR OLD.daily_budget IS DISTINCT FROM NEW.daily_budget
          OR OLD.monthly_budget IS DISTINCT FROM NEW.monthly_budget
          OR OLD.circuit_failures IS DISTINCT FROM NEW.circuit_failures)
    EXECUTE FUNCTION lockkeeper.guard_limits();
CREATE TRIGGER guard_budgets BEFORE INSERT OR UPDATE ON lockkeeper.customers
    FOR EACH ROW EXECUTE FUNCTION lockkeeper.guard_limits();

-- A customer's first budget concerns every agent, its last one none any more.
CREATE FUNCTION lockkeeper.mark_all_by_policy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    budgets boolean := EXISTS (SELECT FROM lockkeeper.customers c
                                WHERE coalesce(c.daily_budget, c.monthly_budget) IS NOT NULL);
BEGIN
    UPDATE lockkeeper.agents a SET by_policy = w.wanted
      FROM (SELECT name, budgets OR backfill OR fair_share OR coalesce(daily_budget, monthly_budget) IS NOT NULL AS wanted
              FROM lockkeeper.agents ORDER BY name FOR NO KEY UPDATE) w
     WHERE a.name = w.name AND a.by_policy <> w.wanted;
    RETURN NULL;
END $$;
CREATE TRIGGER mark_all_by_policy AFTER INSERT OR UPDATE ON lockkeeper.customers
    FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper.mark_all_by_policy();

CREATE OR REPLACE VIEW lockkeeper.agent_headroom AS
SELECT a.name AS agent, a.max_concurrent_tasks, a.max_tpm, a.paused,
       greatest(a.cooldown_until, c.open_until) AS cooldown_until,
       CASE WHEN a.learn_estimates AND e.samples >= 20 THEN greatest(1, ceil(e.tokens))::bigint
            ELSE a.default_tokens END AS default_tokens,
       CASE WHEN a.learn_estimates AND e.samples >= 20 THEN greatest(1, ceil(e.seconds))::integer
            ELSE a.expected_seconds END AS expected_seconds,
       a.backfill, a.lease_seconds,
       live.running, live.reserved_tpm, spent.used_tpm,
       -- After it has failed, an agent shows with one task at a time that it works again.
       CASE WHEN c.open_until IS NOT NULL THEN greatest(least(a.max_concurrent_tasks, 1) - live.running, 0)
            WHEN a.max_concurrent_tasks IS NOT NULL
            THEN greatest(a.max_concurrent_tasks - live.running, 0) END AS slots,
       CASE WHEN a.max_tpm IS NOT NULL
            THEN greatest(a.max_tpm - live.reserved_tpm - spent.used_tpm, 0) END AS tokens_left,
       a.by_policy, a.backfill_limit, a.fair_share, a.customer_weights,
       CASE WHEN a.learn_estimates AND e.cost_samples >= 20 THEN e.cost ELSE a.expected_cost END AS expected_cost,
       a.cooldown_until AS cooled_until, c.open_until AS circuit_until,
       CASE WHEN c.open_until IS NULL THEN 'closed' WHEN c.open_until > lockkeeper.clock() THEN 'open'
            ELSE 'half_open' END AS circuit
  FROM lockkeeper.agents a
  LEFT JOIN lockkeeper.agent_estimates e ON e.agent = a.name
  LEFT JOIN lockkeeper.agent_circuits c ON c.agent = a.name AND a.circuit_failures IS NOT NULL
 CROSS JOIN LATERAL (
       SELECT count(*) AS running, coalesce(sum(t.reserved_tpm), 0)::bigint AS reserved_tpm
         FROM lockkeeper.tasks t WHERE t.agent = a.name AND t.status = 'processing') live
 CROSS JOIN LATERAL (
       -- What ended within the last minute still weighs with the rate that it really had.
       SELECT coalesce(sum(s.tpm), 0)::bigint AS used_tpm
         FROM lockkeeper.token_spending s
        WHERE a.max_tpm IS NOT NULL AND s.agent = a.name
          AND s.at > lockkeeper.clock() - interval '60 seconds') spent;

-- What a run may read about its own attempt, or about all that share it.
CREATE OR REPLACE VIEW lockkeeper.agent_inputs AS
SELECT x.id AS attempt_id, x.task_id, x.attempt, x.status, t.status AS task_status, t.agent, t.customer,
       t.input, t.labels, a.options,
       d.id AS document_id, d.name AS document_name, d.volume_path, d.sha256, d.bytes,
       x.pack_id, t.priority, t.created_at
  FROM lockkeeper.task_attempts x
  JOIN lockkeeper.tasks t ON t.id = x.task_id
  LEFT JOIN lockkeeper.agents a ON a.name = t.agent
  LEFT JOIN lockkeeper.documents d ON d.id = t.document_id;
