-- The underwriter's operational record. Temporal owns the execution; these tables are what people see of it.
-- One page on what must hold:
--   * ids are derived from the run, the turn and the step, so that writing a thing twice is writing it once
--   * a write names its fence (`seq` of the run, `fence` of a step); an older one finds no row
--   * terminal rows never change their state again: the database refuses
--   * every table carries its whole old row into the change feed (REPLICA IDENTITY FULL)

CREATE SCHEMA agent_ops;
CREATE SCHEMA IF NOT EXISTS agent_policy;

CREATE TABLE agent_ops.agent_runs (
    run_id              uuid PRIMARY KEY,
    workflow_id         text NOT NULL UNIQUE,
    temporal_run_id     text,
    user_name           text NOT NULL,
    applicant           text NOT NULL,
    amount              numeric NOT NULL CHECK (amount > 0),
    purpose             text NOT NULL,
    model               text NOT NULL,
    turn_limit          smallint NOT NULL CHECK (turn_limit BETWEEN 1 AND 100),
    request             jsonb NOT NULL,
    options             jsonb NOT NULL DEFAULT '{}',
    idempotency_key     text UNIQUE,
    request_digest      text NOT NULL,
    state               text NOT NULL DEFAULT 'starting'
                        CHECK (state IN ('starting', 'running', 'awaiting_review', 'completed', 'failed', 'cancelled', 'expired')),
    outcome             text CHECK (outcome IN ('approved', 'denied', 'expired', 'cancelled', 'failed')),
    turn                smallint NOT NULL DEFAULT 0,
    -- The workflow numbers its writes through the whole run, also across continue-as-new.
    seq                 integer NOT NULL DEFAULT 0,
    review_id           uuid,
    review_opened_at    timestamptz,
    review_expires_at   timestamptz,
    review_reminded_at  timestamptz,
    recommendation      jsonb,
    -- The limits that this turn's lookup used: name, version, source, when they were read.
    policy              jsonb,
    input_tokens        bigint NOT NULL DEFAULT 0,
    output_tokens       bigint NOT NULL DEFAULT 0,
    cache_read_tokens   bigint NOT NULL DEFAULT 0,
    error               jsonb,
    -- The outbox of the start: Temporal may be away when a person asks.
    start_attempts      integer NOT NULL DEFAULT 0,
    next_start_at       timestamptz,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    next_cancel_at      timestamptz,
    created_at          timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    started_at          timestamptz,
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    CONSTRAINT run_finished_means_terminal
        CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'expired')))
);
CREATE INDEX runs_by_age ON agent_ops.agent_runs (created_at DESC, run_id DESC);
CREATE INDEX runs_by_user ON agent_ops.agent_runs (user_name, created_at DESC, run_id DESC);
CREATE INDEX runs_to_start ON agent_ops.agent_runs (next_start_at) WHERE next_start_at IS NOT NULL;
CREATE INDEX runs_to_cancel ON agent_ops.agent_runs (next_cancel_at) WHERE next_cancel_at IS NOT NULL;

-- The transcript. What a person or the workflow says is complete at once; the model's answers begin as `running`.
CREATE TABLE agent_ops.agent_messages (
    message_id        uuid PRIMARY KEY,
    run_id            uuid NOT NULL,
    turn              smallint NOT NULL,
    position          smallint NOT NULL,
    role              text NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    state             text NOT NULL CHECK (state IN ('running', 'complete', 'failed')),
    content           text NOT NULL DEFAULT '',
    -- Calls that this message asks for: [{tool_call_id, tool, arguments}].
    tool_calls        jsonb NOT NULL DEFAULT '[]',
    -- What was understood of the answer: a recommendation, or why nothing was.
    reading           jsonb,
    -- The answer as it came, for the examiner.
    raw               jsonb,
    model             text,
    input_tokens      bigint,
    output_tokens     bigint,
    cache_read_tokens bigint,
    trace_id          text,
    error             jsonb,
    fence             integer NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    finished_at       timestamptz
);
CREATE INDEX messages_by_run ON agent_ops.agent_messages (run_id, turn, position);

CREATE TABLE agent_ops.agent_tool_calls (
    tool_call_id uuid PRIMARY KEY,
    run_id       uuid NOT NULL,
    turn         smallint NOT NULL,
    position     smallint NOT NULL,
    tool         text NOT NULL,
    -- The message that asked for it; NULL when the workflow's own plan did.
    message_id   uuid,
    arguments    jsonb NOT NULL DEFAULT '{}',
    state        text NOT NULL CHECK (state IN ('running', 'succeeded', 'failed')),
    result       jsonb,
    error        jsonb,
    fence        integer NOT NULL,
    attempt      integer NOT NULL,
    worker       text,
    started_at   timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    finished_at  timestamptz,
    CONSTRAINT tool_call_finished_means_terminal CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed')))
);
CREATE INDEX tool_calls_by_run ON agent_ops.agent_tool_calls (run_id, turn, position);

-- Every decision that was ever sent, also those that Temporal refused and therefore does not keep.
CREATE TABLE agent_ops.agent_review_decisions (
    decision_id       uuid PRIMARY KEY,
    run_id            uuid NOT NULL,
    review_id         uuid NOT NULL,
    decision          text NOT NULL CHECK (decision IN ('approve', 'deny', 'request_more_info')),
    note              text NOT NULL DEFAULT '',
    reviewer          text NOT NULL,
    path              text NOT NULL CHECK (path IN ('update', 'signal')),
    status            text NOT NULL CHECK (status IN ('received', 'accepted', 'refused')),
    effect            text CHECK (effect IN ('decided', 'first_approval')),
    refusal           text,
    message           text,
    turn              smallint,
    delivery_attempts integer NOT NULL DEFAULT 0,
    next_delivery_at  timestamptz,
    received_at       timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    decided_at        timestamptz,
    CONSTRAINT decided_means_settled CHECK ((decided_at IS NOT NULL) = (status IN ('accepted', 'refused'))),
    CONSTRAINT refused_has_a_reason CHECK ((refusal IS NOT NULL) = (status = 'refused'))
);
CREATE INDEX decisions_by_run ON agent_ops.agent_review_decisions (run_id, received_at);
CREATE INDEX decisions_to_deliver ON agent_ops.agent_review_decisions (next_delivery_at) WHERE status = 'received';
-- One winner for a review, whatever races.
CREATE UNIQUE INDEX one_deciding_decision ON agent_ops.agent_review_decisions (review_id) WHERE effect = 'decided';

CREATE TABLE agent_ops.events (
    event_id uuid PRIMARY KEY,
    run_id   uuid NOT NULL,
    turn     smallint NOT NULL,
    name     text NOT NULL CHECK (name ~ '^agent\.[a-z_]+$'),
    at       timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    details  jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX events_by_run ON agent_ops.events (run_id, at);

-- One row per attempt of a step: what the page counts retries by.
CREATE TABLE agent_ops.metrics (
    metric_id     uuid PRIMARY KEY,
    workflow_id   text NOT NULL,
    run_id        uuid NOT NULL,
    turn          smallint NOT NULL,
    activity      text NOT NULL,
    step_id       uuid NOT NULL,
    round         integer NOT NULL,
    attempt       integer NOT NULL,
    fence         integer NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN ('running', 'succeeded', 'reused', 'failed', 'lost')),
    error         jsonb,
    worker        text,
    payload_bytes integer,
    input_tokens  bigint,
    output_tokens bigint,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at   timestamptz
);
CREATE INDEX metrics_by_run ON agent_ops.metrics (run_id, started_at);
CREATE INDEX metrics_by_time ON agent_ops.metrics (started_at);
CREATE INDEX metrics_open ON agent_ops.metrics (run_id, step_id) WHERE outcome = 'running';

-- Limits by loan purpose. On Databricks this is a read-only synced table from Unity Catalog, made by its sync.
CREATE TABLE IF NOT EXISTS agent_policy.underwriting_policy_limits (
    purpose            text PRIMARY KEY,
    policy_name        text NOT NULL,
    policy_version     text NOT NULL,
    minimum_score      integer NOT NULL,
    automatic_approval_dti numeric NOT NULL,
    hard_reject_score  integer NOT NULL,
    hard_reject_dti    numeric NOT NULL,
    source             text NOT NULL DEFAULT 'unity_catalog',
    synced_at          timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE agent_ops.agent_runs REPLICA IDENTITY FULL;
ALTER TABLE agent_ops.agent_messages REPLICA IDENTITY FULL;
ALTER TABLE agent_ops.agent_tool_calls REPLICA IDENTITY FULL;
ALTER TABLE agent_ops.agent_review_decisions REPLICA IDENTITY FULL;
ALTER TABLE agent_ops.events REPLICA IDENTITY FULL;
ALTER TABLE agent_ops.metrics REPLICA IDENTITY FULL;
ALTER TABLE agent_policy.underwriting_policy_limits REPLICA IDENTITY FULL;

CREATE FUNCTION agent_ops.refuse_reopening() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '% cannot leave its terminal state', TG_TABLE_NAME USING ERRCODE = 'LK001';
END $$;
CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_runs FOR EACH ROW
    WHEN (OLD.state IN ('completed', 'failed', 'cancelled', 'expired') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION agent_ops.refuse_reopening();
CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_messages FOR EACH ROW
    WHEN (OLD.state IN ('complete', 'failed') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION agent_ops.refuse_reopening();
CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_tool_calls FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION agent_ops.refuse_reopening();
CREATE TRIGGER refuse_reopening BEFORE UPDATE OF status ON agent_ops.agent_review_decisions FOR EACH ROW
    WHEN (OLD.status IN ('accepted', 'refused') AND OLD.status <> NEW.status)
    EXECUTE FUNCTION agent_ops.refuse_reopening();

-- Model calls of the underwriter stand in the one ledger, with the run in the place of the task.
ALTER TABLE lockkeeper.cost_entries DROP CONSTRAINT cost_entries_source_check;
ALTER TABLE lockkeeper.cost_entries ADD CONSTRAINT cost_entries_source_check
    CHECK (source IN ('trace', 'callback', 'billing', 'underwriting')) NOT VALID;

-- A run on one line, with what it does now: the list tells a wait for a person from a retrying activity,
-- a database fault and a failed tool by `condition`.
CREATE VIEW agent_ops.run_overview AS
SELECT r.run_id, r.workflow_id, r.temporal_run_id, r.user_name, r.applicant, r.amount, r.purpose, r.model, r.turn,
       r.turn_limit, r.state, r.outcome, r.review_id, r.review_opened_at, r.review_expires_at, r.review_reminded_at,
       r.recommendation, r.policy, r.input_tokens, r.output_tokens, r.cache_read_tokens, r.error, r.request,
       r.options, r.start_attempts, r.cancel_requested_at, r.created_at, r.started_at, r.finished_at, r.updated_at,
       step.activity, step.attempt, step.started_at AS activity_started_at, step.last_error,
       coalesce(tools.failed, 0) AS failed_tools, coalesce(steps.retries, 0) AS retries,
       cost.llm_cost,
       CASE WHEN r.state IN ('completed', 'failed', 'cancelled', 'expired') THEN r.state
            WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelling'
            WHEN r.state = 'starting' AND r.start_attempts > 0 THEN 'waiting_for_temporal'
            WHEN r.state = 'starting' THEN 'starting'
            WHEN r.state = 'awaiting_review' THEN 'waiting_for_person'
            WHEN step.last_error ->> 'type' = 'database_unavailable' THEN 'database_fault'
            WHEN step.outcome IN ('failed', 'lost') OR step.attempt > 1 OR step.round > 1 THEN 'retrying_activity'
            WHEN tools.failed > 0 THEN 'failed_tool'
            ELSE 'working' END AS condition
  FROM agent_ops.agent_runs r
  LEFT JOIN LATERAL (
       SELECT m.activity, m.attempt, m.round, m.outcome, m.started_at,
              coalesce(m.error, (SELECT p.error FROM agent_ops.metrics p
                                  WHERE p.run_id = r.run_id AND p.step_id = m.step_id AND p.error IS NOT NULL
                                  ORDER BY p.fence DESC LIMIT 1)) AS last_error
         FROM agent_ops.metrics m
        WHERE m.run_id = r.run_id AND m.turn = r.turn
        ORDER BY m.started_at DESC LIMIT 1) step ON r.state = 'running'
  LEFT JOIN LATERAL (
       SELECT count(*) AS failed FROM agent_ops.agent_tool_calls t
        WHERE t.run_id = r.run_id AND t.turn = r.turn AND t.state = 'failed') tools ON true
  LEFT JOIN LATERAL (
       SELECT count(*) AS retries FROM agent_ops.metrics m
        WHERE m.run_id = r.run_id AND (m.attempt > 1 OR m.round > 1)) steps ON true
  LEFT JOIN LATERAL (
       SELECT sum(c.amount) AS llm_cost
         FROM agent_ops.agent_messages s
         JOIN lockkeeper.cost_entries c ON c.attempt_id = s.message_id AND c.source = 'underwriting'
        WHERE s.run_id = r.run_id) cost ON true;
