-- The queue: agents, tasks, attempts, events, documents, results; replicas and duties.
-- One page on what must hold:
--   * a task's status moves only along TRANSITIONS of lifecycle.py; terminal rows never move again
--   * `attempt_id` is the fencing token: every write after the claim names it
--   * every writer of a task or of its attempts takes the task's row lock first
--   * each change of a task that people can see raises `version` by one and writes one event
--   * time is lockkeeper.clock(): the database's clock, settable in tests

CREATE SCHEMA lockkeeper;

-- The one clock. Inlined by the planner, so an index on an instant stays usable.
CREATE FUNCTION lockkeeper.clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT coalesce(nullif(current_setting('lockkeeper.clock', true), '')::timestamptz, now()) $$;

-- A UUID of version 7 (RFC 9562): 48 bits of milliseconds, then random bits, so that new rows
-- land at the right edge of their index.
CREATE FUNCTION lockkeeper.uuid7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Seconds to wait before attempt n + 1: 2, 4, 8 … at most ten minutes, spread by half so that
-- tasks which failed together do not come back together. `roll` is a random number in [0, 1).
CREATE FUNCTION lockkeeper.backoff(attempt integer, roll double precision) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT make_interval(secs => least(600, 2 ^ least(greatest(attempt, 1), 16)) * (0.5 + roll / 2)) $$;

CREATE TABLE lockkeeper.agents (
    name                 text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    -- The saved Databricks job: its id (digits) or its unique name.
    target               text NOT NULL CHECK (target <> ''),
    description          text NOT NULL DEFAULT '',
    -- NULL means no limit of this kind; 0 stops the agent.
    max_concurrent_tasks integer CHECK (max_concurrent_tasks >= 0),
    max_tpm              bigint CHECK (max_tpm >= 0),
    lease_seconds        integer NOT NULL DEFAULT 300 CHECK (lease_seconds BETWEEN 5 AND 86400),
    max_attempts         smallint NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 100),
    -- How long a task is expected to take; a task's projected rate is its estimate over these
    -- minutes, never over less than one.
    expected_seconds     integer NOT NULL DEFAULT 60 CHECK (expected_seconds >= 1),
    -- A run that still lives after this long is given up and cancelled.
    max_run_seconds      integer NOT NULL DEFAULT 86400 CHECK (max_run_seconds >= 10),
    -- The estimate of a task that brings none.
    default_tokens       bigint NOT NULL DEFAULT 4000 CHECK (default_tokens >= 1),
    tokens_per_page      bigint NOT NULL DEFAULT 1500 CHECK (tokens_per_page >= 1),
    backfill             boolean NOT NULL DEFAULT false,
    fair_share           boolean NOT NULL DEFAULT false,
    tasks_per_run        smallint NOT NULL DEFAULT 1 CHECK (tasks_per_run BETWEEN 1 AND 100),
    paused               boolean NOT NULL DEFAULT false,
    -- Set by a dispatcher after 429 or 503 from the runner; no claim before it.
    cooldown_until       timestamptz,
    options              jsonb NOT NULL DEFAULT '{}',
    version              bigint NOT NULL DEFAULT 1,
    created_at           timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    updated_at           timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    updated_by           text NOT NULL DEFAULT current_user
);

CREATE TABLE lockkeeper.agent_changes (
    agent      text NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    settings   jsonb NOT NULL,
    PRIMARY KEY (agent, version)
);

CREATE TABLE lockkeeper.documents (
    id          uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    name        text NOT NULL,
    volume_path text NOT NULL UNIQUE,
    sha256      text NOT NULL,
    bytes       bigint NOT NULL,
    pages       integer,
    customer    text,
    uploaded_by text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT lockkeeper.clock()
);
CREATE INDEX documents_by_digest ON lockkeeper.documents (sha256, created_at);

CREATE TABLE lockkeeper.tasks (
    id               uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    agent            text NOT NULL,
    customer         text,
    priority         smallint NOT NULL DEFAULT 50 CHECK (priority BETWEEN 0 AND 100),
    status           text NOT NULL DEFAULT 'enqueued'
                     CHECK (status IN ('enqueued', 'processing', 'completed', 'failed', 'cancelled')),
    -- Counts attempts that were spent; a released attempt keeps its number and its id.
    attempt          integer NOT NULL DEFAULT 0,
    attempt_id       uuid,
    attempt_unspent  boolean NOT NULL DEFAULT false,
    -- Attempts whose run the runner never started; they do not count against max_attempts.
    spared_attempts  smallint NOT NULL DEFAULT 0,
    max_attempts     smallint NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 100),
    created_at       timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    available_at     timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    -- True keeps a task that is not yet due out of the claim's index; a dispatcher promotes it in time.
    deferred         boolean NOT NULL DEFAULT false,
    started_at       timestamptz,
    finished_at      timestamptz,
    lease_expires_at timestamptz,
    locked_by        text,
    -- What this task weighs on its agent's token budget while it is processing, per minute.
    reserved_tpm     bigint NOT NULL DEFAULT 0,
    oversized        boolean NOT NULL DEFAULT false,
    estimated_tokens bigint CHECK (estimated_tokens >= 1),
    -- The verb that made the present version, and why.
    version          integer NOT NULL DEFAULT 1,
    verb             text NOT NULL DEFAULT 'enqueue',
    reason           text,
    pages_done       integer,
    pages_total      integer,
    step             text,
    confidence       real,
    document_id      uuid,
    parent_task_id   uuid,
    -- The task that this one retries or reprocesses.
    source_task_id   uuid,
    idempotency_key  text,
    request_digest   text,
    created_by       text NOT NULL DEFAULT current_user,
    labels           jsonb NOT NULL DEFAULT '{}',
    input            jsonb NOT NULL DEFAULT '{}',
    error            jsonb,
    result           jsonb,
    CONSTRAINT finished_means_terminal
        CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))),
    CONSTRAINT leased_means_processing CHECK ((lease_expires_at IS NOT NULL) = (status = 'processing'))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The claim's own order; holds only what may be claimed now.
CREATE INDEX tasks_ready ON lockkeeper.tasks (agent, priority DESC, created_at, id)
    WHERE status = 'enqueued' AND NOT deferred;
CREATE INDEX tasks_deferred ON lockkeeper.tasks (available_at) WHERE status = 'enqueued' AND deferred;
-- Headroom and the sweep: as many entries as tasks are running.
CREATE INDEX tasks_processing ON lockkeeper.tasks (agent) WHERE status = 'processing';
CREATE UNIQUE INDEX tasks_idempotency ON lockkeeper.tasks (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_children ON lockkeeper.tasks (parent_task_id) WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_by_document ON lockkeeper.tasks (document_id) WHERE document_id IS NOT NULL;

CREATE TABLE lockkeeper.task_attempts (
    id                  uuid PRIMARY KEY,
    task_id             uuid NOT NULL,
    agent               text NOT NULL,
    attempt             integer NOT NULL,
    status              text NOT NULL CHECK (status IN ('leased', 'submitted', 'running', 'released',
                        'completed', 'failed', 'cancelled', 'superseded', 'lost')),
    locked_by           text,
    reserved_tpm        bigint NOT NULL DEFAULT 0,
    -- Tokens that count towards the provider's rate (cached ones do not); set when the attempt ends.
    used_tokens         bigint NOT NULL DEFAULT 0,
    -- The run that carries the attempt, and the task run inside it (the output API wants that one).
    run_id              bigint,
    task_run_id         bigint,
    leased_at           timestamptz NOT NULL,
    submitted_at        timestamptz,
    started_at          timestamptz,
    finished_at         timestamptz,
    cancel_requested_at timestamptz,
    -- When the runner was last told or asked, and when it said that the run is over.
    cancel_checked_at   timestamptz,
    cancel_confirmed_at timestamptz,
    pages               integer,
    trace_id            text,
    trace_state         text,
    error               jsonb,
    usage               jsonb,
    -- Filled by the cost attributor from its ledger; NULL is unknown, never zero.
    input_tokens        bigint,
    output_tokens       bigint,
    cache_read_tokens   bigint,
    cache_write_tokens  bigint,
    llm_cost            numeric,
    llm_cost_source     text,
    compute_cost        numeric,
    currency            text NOT NULL DEFAULT 'USD',
    cost_status         text NOT NULL DEFAULT 'pending' CHECK (cost_status IN ('pending', 'partial', 'final', 'unknown')),
    cost_checked_at     timestamptz,
    cost_checks         integer NOT NULL DEFAULT 0,
    CONSTRAINT attempt_finished_means_terminal CHECK ((finished_at IS NOT NULL) =
        (status IN ('completed', 'failed', 'cancelled', 'superseded', 'lost'))),
    UNIQUE (task_id, attempt)
) WITH (fillfactor = 50);

CREATE INDEX attempts_to_cancel ON lockkeeper.task_attempts (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND cancel_confirmed_at IS NULL;
-- Neither the key nor the predicate changes when an attempt ends, so that ending one stays a heap-only update.
CREATE INDEX attempts_to_cost ON lockkeeper.task_attempts (id) WHERE cost_status = 'pending';

-- Tokens that were really used, by agent and moment, for the agents that have a token budget: what ended
-- within the last minute still weighs on it. A few rows per round of settling; old ones are swept.
CREATE TABLE lockkeeper.token_spending (
    agent text NOT NULL,
    at    timestamptz NOT NULL,
    -- Tokens per minute at which they were used.
    tpm   bigint NOT NULL
);
CREATE INDEX token_spending_by_agent ON lockkeeper.token_spending (agent, at);

CREATE TABLE lockkeeper.task_events (
    task_id    uuid NOT NULL,
    version    integer NOT NULL,
    at         timestamptz NOT NULL,
    verb       text NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    agent      text NOT NULL,
    -- What the task weighs on its agent's limits from here on: 0 or 1, and tokens per minute.
    running    smallint NOT NULL,
    reserved_tpm bigint NOT NULL,
    actor      text NOT NULL,
    reason     text,
    PRIMARY KEY (task_id, version)
);

-- A task's whole history: its making, which is its own row, and every event since.
CREATE VIEW lockkeeper.task_history AS
SELECT t.id AS task_id, 1 AS version, t.created_at AS at, 'enqueue' AS verb, 'enqueued' AS status, 0 AS attempt, t.agent,
       t.created_by AS actor, NULL::text AS reason
  FROM lockkeeper.tasks t
UNION ALL
SELECT e.task_id, e.version, e.at, e.verb, e.status, e.attempt, e.agent, e.actor, e.reason
  FROM lockkeeper.task_events e;

-- The agent's own word: written by the run before it calls back, so that a lost callback loses nothing.
CREATE TABLE lockkeeper.attempt_results (
    attempt_id uuid PRIMARY KEY,
    result     jsonb NOT NULL,
    confidence real,
    pages      integer,
    report     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT lockkeeper.clock()
);

-- Results that the sweeper found without a callback; the receiver settles them like any other.
CREATE TABLE lockkeeper.recovered_results (
    attempt_id uuid PRIMARY KEY,
    found_at   timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    settled_at timestamptz
);
CREATE INDEX recovered_to_settle ON lockkeeper.recovered_results (found_at) WHERE settled_at IS NULL;

CREATE TABLE lockkeeper.replicas (
    id           text PRIMARY KEY,
    service      text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    heartbeat_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    stopped_at   timestamptz,
    info         jsonb NOT NULL DEFAULT '{}'
);

-- One holder per duty; `term` rises with each new holder and fences what the old one still does.
CREATE TABLE lockkeeper.duties (
    duty       text PRIMARY KEY,
    holder     text NOT NULL,
    term       bigint NOT NULL DEFAULT 1,
    expires_at timestamptz NOT NULL
);

CREATE TABLE lockkeeper.operator_audit (
    id     uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    at     timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    actor  text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    before jsonb,
    after  jsonb,
    note   text
);

-- Who acts: a person named by the console for this transaction, else the service's role.
CREATE FUNCTION lockkeeper.actor() RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT coalesce(nullif(current_setting('lockkeeper.actor', true), ''), session_user::text) $$;

-- The event log. Version 1 of a task is its own row (created_at, created_by); each later version has its
-- event. The statements that run for every task (claim, and settling a callback) write their events
-- themselves, a batch at a time; whatever else changes a task is caught here, so that nothing can be
-- forgotten. SECURITY DEFINER, so that the others need no right on the log.
CREATE FUNCTION lockkeeper.log_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor, reason)
    VALUES (NEW.id, NEW.version, clock_timestamp(), NEW.verb, NEW.status, NEW.attempt, NEW.agent,
            (NEW.status = 'processing')::int, CASE NEW.status WHEN 'processing' THEN NEW.reserved_tpm ELSE 0 END,
            lockkeeper.actor(), NEW.reason);
    RETURN NULL;
END $$;

CREATE FUNCTION lockkeeper.refuse_transition() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'task % cannot go from % to %', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'LK001', HINT = 'Terminal tasks stay as they are; see docs/state-machine.md.';
END $$;

CREATE TRIGGER log_changed AFTER UPDATE OF version ON lockkeeper.tasks FOR EACH ROW
    WHEN (NEW.version <> OLD.version AND NEW.verb NOT IN ('claim', 'complete', 'fail', 'retry'))
    EXECUTE FUNCTION lockkeeper.log_changed();
-- The pairs are those of TRANSITIONS; a test holds the two equal.
CREATE TRIGGER refuse_transition BEFORE UPDATE OF status ON lockkeeper.tasks FOR EACH ROW
    WHEN (OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN (
        'enqueued>processing', 'enqueued>completed', 'enqueued>failed', 'enqueued>cancelled',
        'processing>enqueued', 'processing>completed', 'processing>failed', 'processing>cancelled'))
    EXECUTE FUNCTION lockkeeper.refuse_transition();

-- A change of limits waits for the claims in flight and holds back new ones until it has committed,
-- so that no claim commits above the limit in force. Claims take the same lock shared: in memory, no WAL.
CREATE FUNCTION lockkeeper.guard_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(4951, 1);
    RETURN NEW;
END $$;
CREATE TRIGGER guard_limits BEFORE UPDATE OF max_concurrent_tasks, max_tpm, paused ON lockkeeper.agents FOR EACH ROW
    WHEN (OLD.max_concurrent_tasks IS DISTINCT FROM NEW.max_concurrent_tasks
          OR OLD.max_tpm IS DISTINCT FROM NEW.max_tpm OR OLD.paused <> NEW.paused)
    EXECUTE FUNCTION lockkeeper.guard_limits();

CREATE FUNCTION lockkeeper.log_agent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO lockkeeper.agent_changes (agent, version, changed_at, changed_by, settings)
    VALUES (NEW.name, NEW.version, clock_timestamp(), NEW.updated_by, to_jsonb(NEW) - 'cooldown_until');
    RETURN NULL;
END $$;
CREATE TRIGGER log_agent_created AFTER INSERT ON lockkeeper.agents
    FOR EACH ROW EXECUTE FUNCTION lockkeeper.log_agent();
CREATE TRIGGER log_agent_changed AFTER UPDATE ON lockkeeper.agents FOR EACH ROW
    WHEN (OLD.version <> NEW.version) EXECUTE FUNCTION lockkeeper.log_agent();

-- What an agent may still take now. NULL headroom means no limit of that kind. The claim reads it in a
-- statement after the one that locked the agent's row: lock and count in one statement would count with
-- a snapshot older than the lock.
CREATE VIEW lockkeeper.agent_headroom AS
SELECT a.name AS agent, a.max_concurrent_tasks, a.max_tpm, a.paused, a.cooldown_until,
       a.default_tokens, a.expected_seconds, a.backfill, a.lease_seconds,
       live.running, live.reserved_tpm, spent.used_tpm,
       CASE WHEN a.max_concurrent_tasks IS NOT NULL
            THEN greatest(a.max_concurrent_tasks - live.running, 0) END AS slots,
       CASE WHEN a.max_tpm IS NOT NULL
            THEN greatest(a.max_tpm - live.reserved_tpm - spent.used_tpm, 0) END AS tokens_left
  FROM lockkeeper.agents a
 CROSS JOIN LATERAL (
       SELECT count(*) AS running, coalesce(sum(t.reserved_tpm), 0)::bigint AS reserved_tpm
         FROM lockkeeper.tasks t WHERE t.agent = a.name AND t.status = 'processing') live
 CROSS JOIN LATERAL (
       -- What ended within the last minute still weighs with the rate that it really had.
       SELECT coalesce(sum(s.tpm), 0)::bigint AS used_tpm
         FROM lockkeeper.token_spending s
        WHERE a.max_tpm IS NOT NULL AND s.agent = a.name
          AND s.at > lockkeeper.clock() - interval '60 seconds') spent;

-- Why a task waits, its place among the waiting of its agent, and when it should start; no row once it left.
CREATE FUNCTION lockkeeper.waiting(of_task uuid)
RETURNS TABLE (reason text, place bigint, estimated_start timestamptz)
LANGUAGE sql STABLE
AS $$
    WITH me AS (
        SELECT t.*, coalesce(t.estimated_tokens, h.default_tokens) AS tokens, h.agent AS known, h.paused,
               h.cooldown_until, h.slots, h.tokens_left, h.running, h.max_concurrent_tasks, h.max_tpm, h.expected_seconds
          FROM lockkeeper.tasks t LEFT JOIN lockkeeper.agent_headroom h ON h.agent = t.agent
         WHERE t.id = of_task AND t.status = 'enqueued'
    ), ahead AS (
        SELECT count(*) AS tasks FROM lockkeeper.tasks o, me
         WHERE o.agent = me.agent AND o.status = 'enqueued' AND NOT o.deferred
           AND (-o.priority, o.created_at, o.id) < (-me.priority, me.created_at, me.id)
    )
    SELECT CASE WHEN me.known IS NULL THEN 'no_such_agent'
                WHEN me.available_at > lockkeeper.clock() AND me.attempt > 0 THEN 'backoff'
                WHEN me.available_at > lockkeeper.clock() THEN 'scheduled'
                WHEN me.paused THEN 'paused'
                WHEN me.cooldown_until > lockkeeper.clock() THEN 'backoff'
                WHEN me.slots = 0 OR me.slots <= ahead.tasks THEN 'agent_full'
                WHEN me.tokens_left < me.tokens AND me.running > 0 THEN 'token_budget'
                WHEN me.tokens_left = 0 THEN 'token_budget'
                ELSE 'next' END,
           ahead.tasks + 1,
           CASE WHEN me.known IS NULL OR me.paused OR me.max_concurrent_tasks = 0 OR me.max_tpm = 0 THEN NULL
                ELSE greatest(me.available_at, coalesce(me.cooldown_until, me.available_at), lockkeeper.clock())
                   + make_interval(secs => me.expected_seconds * floor(greatest(ahead.tasks + 1 - coalesce(me.slots, ahead.tasks + 1), 0)
                                   / greatest(coalesce(me.max_concurrent_tasks, 1), 1)::numeric)::float8)
           END
      FROM me, ahead
$$;

-- For people and BI: the queue as it stands, by agent.
CREATE VIEW lockkeeper.queue_state AS
SELECT a.name AS agent, a.paused, h.running, h.max_concurrent_tasks, h.reserved_tpm, h.used_tpm, h.max_tpm,
       w.waiting, w.deferred, w.oldest_created_at,
       extract(epoch FROM lockkeeper.clock() - w.oldest_created_at) AS oldest_waiting_seconds
  FROM lockkeeper.agents a
  JOIN lockkeeper.agent_headroom h ON h.agent = a.name
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE NOT t.deferred) AS waiting, count(*) FILTER (WHERE t.deferred) AS deferred,
              min(t.created_at) FILTER (WHERE NOT t.deferred) AS oldest_created_at
         FROM lockkeeper.tasks t WHERE t.agent = a.name AND t.status = 'enqueued') w;

-- What a run may read about its own attempt.
CREATE VIEW lockkeeper.agent_inputs AS
SELECT x.id AS attempt_id, x.task_id, x.attempt, x.status, t.status AS task_status, t.agent, t.customer,
       t.input, t.labels, a.options,
       d.id AS document_id, d.name AS document_name, d.volume_path, d.sha256, d.bytes
  FROM lockkeeper.task_attempts x
  JOIN lockkeeper.tasks t ON t.id = x.task_id
  LEFT JOIN lockkeeper.agents a ON a.name = t.agent
  LEFT JOIN lockkeeper.documents d ON d.id = t.document_id;
