-- The whole schema, to read. Made from the migrations; a test holds the two equal.

CREATE SCHEMA agent_ops;

CREATE SCHEMA agent_policy;

CREATE SCHEMA lockkeeper;

CREATE FUNCTION agent_ops.refuse_reopening() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% cannot leave its terminal state', TG_TABLE_NAME USING ERRCODE = 'LK001';
END $$;

CREATE FUNCTION agent_policy.limits() RETURNS TABLE(purpose text, policy_name text, policy_version text, minimum_score integer, automatic_approval_dti numeric, hard_reject_score integer, hard_reject_dti numeric, source text, synced_at timestamp with time zone)
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'agent_policy_sync') THEN
        -- By way of JSON: the synced table has the columns of its source, and `source` and `synced_at` are optional.
        RETURN QUERY EXECUTE
            'SELECT l.* FROM agent_policy_sync.underwriting_policy_limits t,
                    jsonb_to_record(to_jsonb(t) || jsonb_build_object(
                        ''source'', coalesce(to_jsonb(t) ->> ''source'', ''unity_catalog''))) AS l (
                        purpose text, policy_name text, policy_version text, minimum_score integer,
                        automatic_approval_dti numeric, hard_reject_score integer, hard_reject_dti numeric,
                        source text, synced_at timestamptz)';
    ELSE
        RETURN QUERY
            SELECT t.purpose, t.policy_name, t.policy_version, t.minimum_score, t.automatic_approval_dti,
                   t.hard_reject_score, t.hard_reject_dti, t.source, t.synced_at
              FROM agent_policy.underwriting_policy_limits t;
    END IF;
END $$;

CREATE FUNCTION lockkeeper.actor() RETURNS text
    LANGUAGE sql STABLE
    AS $$ SELECT coalesce(nullif(current_setting('lockkeeper.actor', true), ''), session_user::text) $$;

CREATE FUNCTION lockkeeper.adopt(of_branch text, by_whom text) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog'
    AS $$
    INSERT INTO lockkeeper.deployment (database, branch, adopted_by)
    SELECT oid, of_branch, by_whom FROM pg_database WHERE datname = current_database()
        ON CONFLICT (only_row) DO UPDATE
       SET database = excluded.database, branch = excluded.branch, adopted_at = clock_timestamp(),
           adopted_by = excluded.adopted_by
$$;

CREATE FUNCTION lockkeeper.backoff(attempt integer, roll double precision) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT make_interval(secs => least(600, 2 ^ least(greatest(attempt, 1), 16)) * (0.5 + roll / 2)) $$;

CREATE FUNCTION lockkeeper.clock() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT coalesce(nullif(current_setting('lockkeeper.clock', true), '')::timestamptz, now()) $$;

CREATE FUNCTION lockkeeper.close_bills() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    INSERT INTO lockkeeper.closed_bills (run_id)
    SELECT DISTINCT o.run_id
      FROM removed o
     WHERE o.pack_id IS NOT NULL AND o.run_id IS NOT NULL
       AND EXISTS (SELECT FROM lockkeeper.task_attempts x WHERE x.pack_id = o.pack_id)
        ON CONFLICT (run_id) DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION lockkeeper.cost_key(group_by text, zone text, agent text, customer text, status text, created_at timestamp with time zone, id uuid) RETURNS text
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE group_by WHEN 'agent' THEN agent WHEN 'customer' THEN customer WHEN 'status' THEN status
                         WHEN 'day' THEN to_char(created_at AT TIME ZONE zone, 'YYYY-MM-DD')
                         WHEN 'month' THEN to_char(created_at AT TIME ZONE zone, 'YYYY-MM')
                         WHEN 'task' THEN id::text END
$$;

CREATE FUNCTION lockkeeper.uuid7() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TABLE agent_ops.agent_messages (
    message_id uuid NOT NULL,
    run_id uuid NOT NULL,
    turn smallint NOT NULL,
    "position" smallint NOT NULL,
    role text NOT NULL,
    state text NOT NULL,
    content text DEFAULT ''::text NOT NULL,
    tool_calls jsonb DEFAULT '[]'::jsonb NOT NULL,
    reading jsonb,
    raw jsonb,
    model text,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    trace_id text,
    error jsonb,
    fence integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT agent_messages_role_check CHECK ((role = ANY (ARRAY['system'::text, 'user'::text, 'assistant'::text]))),
    CONSTRAINT agent_messages_state_check CHECK ((state = ANY (ARRAY['running'::text, 'complete'::text, 'failed'::text])))
);

ALTER TABLE ONLY agent_ops.agent_messages REPLICA IDENTITY FULL;

CREATE TABLE agent_ops.agent_runs (
    run_id uuid NOT NULL,
    workflow_id text NOT NULL,
    temporal_run_id text,
    user_name text NOT NULL,
    applicant text NOT NULL,
    amount numeric NOT NULL,
    purpose text NOT NULL,
    model text NOT NULL,
    turn_limit smallint NOT NULL,
    request jsonb NOT NULL,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    idempotency_key text,
    request_digest text NOT NULL,
    state text DEFAULT 'starting'::text NOT NULL,
    outcome text,
    turn smallint DEFAULT 0 NOT NULL,
    seq integer DEFAULT 0 NOT NULL,
    review_id uuid,
    review_opened_at timestamp with time zone,
    review_expires_at timestamp with time zone,
    review_reminded_at timestamp with time zone,
    recommendation jsonb,
    policy jsonb,
    input_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    cache_read_tokens bigint DEFAULT 0 NOT NULL,
    error jsonb,
    start_attempts integer DEFAULT 0 NOT NULL,
    next_start_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    cancel_requested_by text,
    next_cancel_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    CONSTRAINT agent_runs_amount_check CHECK ((amount > (0)::numeric)),
    CONSTRAINT agent_runs_outcome_check CHECK ((outcome = ANY (ARRAY['approved'::text, 'denied'::text, 'expired'::text, 'cancelled'::text, 'failed'::text]))),
    CONSTRAINT agent_runs_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'awaiting_review'::text, 'completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text]))),
    CONSTRAINT agent_runs_turn_limit_check CHECK (((turn_limit >= 1) AND (turn_limit <= 100))),
    CONSTRAINT run_finished_means_terminal CHECK (((finished_at IS NOT NULL) = (state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text]))))
);

ALTER TABLE ONLY agent_ops.agent_runs REPLICA IDENTITY FULL;

CREATE TABLE lockkeeper.cost_entries (
    source text NOT NULL,
    record_id text NOT NULL,
    attempt_id uuid NOT NULL,
    task_id uuid NOT NULL,
    kind text NOT NULL,
    model text,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    quantity numeric,
    unit text,
    sku text,
    amount numeric,
    currency text DEFAULT 'USD'::text NOT NULL,
    priced_by text,
    price_id bigint,
    record_type text,
    usage_start_at timestamp with time zone,
    usage_end_at timestamp with time zone,
    recorded_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    agent text,
    customer text,
    parts jsonb,
    list_amount numeric,
    is_whole boolean DEFAULT true NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    reason text DEFAULT 'read'::text NOT NULL,
    CONSTRAINT cost_entries_kind_check CHECK ((kind = ANY (ARRAY['llm'::text, 'compute'::text]))),
    CONSTRAINT cost_entries_priced_by_check CHECK ((priced_by = ANY (ARRAY['trace'::text, 'price_table'::text, 'bill'::text])))
);

CREATE TABLE lockkeeper.task_attempts (
    id uuid NOT NULL,
    task_id uuid NOT NULL,
    agent text NOT NULL,
    attempt integer NOT NULL,
    status text NOT NULL,
    locked_by text,
    reserved_tpm bigint DEFAULT 0 NOT NULL,
    used_tokens bigint DEFAULT 0 NOT NULL,
    run_id bigint,
    task_run_id bigint,
    leased_at timestamp with time zone NOT NULL,
    submitted_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    cancel_checked_at timestamp with time zone,
    cancel_confirmed_at timestamp with time zone,
    pages integer,
    trace_id text,
    trace_state text,
    error jsonb,
    usage jsonb,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    llm_cost numeric,
    llm_cost_source text,
    compute_cost numeric,
    currency text DEFAULT 'USD'::text NOT NULL,
    cost_status text DEFAULT 'pending'::text NOT NULL,
    cost_checked_at timestamp with time zone,
    cost_checks integer DEFAULT 0 NOT NULL,
    report jsonb,
    pack_id uuid,
    CONSTRAINT attempt_finished_means_terminal CHECK (((finished_at IS NOT NULL) = (status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'superseded'::text, 'lost'::text])))),
    CONSTRAINT task_attempts_cost_status_check CHECK ((cost_status = ANY (ARRAY['pending'::text, 'partial'::text, 'final'::text, 'unknown'::text]))),
    CONSTRAINT task_attempts_status_check CHECK ((status = ANY (ARRAY['leased'::text, 'submitted'::text, 'running'::text, 'released'::text, 'completed'::text, 'failed'::text, 'cancelled'::text, 'superseded'::text, 'lost'::text])))
)
WITH (fillfactor='50');

CREATE TABLE lockkeeper.tasks (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    agent text NOT NULL,
    customer text,
    priority smallint DEFAULT 50 NOT NULL,
    status text DEFAULT 'enqueued'::text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    attempt_id uuid,
    attempt_unspent boolean DEFAULT false NOT NULL,
    spared_attempts smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 3 NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    available_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    deferred boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    lease_expires_at timestamp with time zone,
    locked_by text,
    reserved_tpm bigint DEFAULT 0 NOT NULL,
    oversized boolean DEFAULT false NOT NULL,
    estimated_tokens bigint,
    version integer DEFAULT 1 NOT NULL,
    verb text DEFAULT 'enqueue'::text NOT NULL,
    reason text,
    pages_done integer,
    pages_total integer,
    step text,
    confidence real,
    document_id uuid,
    parent_task_id uuid,
    source_task_id uuid,
    idempotency_key text,
    request_digest text,
    created_by text DEFAULT CURRENT_USER NOT NULL,
    labels jsonb DEFAULT '{}'::jsonb NOT NULL,
    input jsonb DEFAULT '{}'::jsonb NOT NULL,
    error jsonb,
    result jsonb,
    overtaken smallint DEFAULT 0 NOT NULL,
    gather text,
    CONSTRAINT finished_means_terminal CHECK (((finished_at IS NOT NULL) = (status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])))),
    CONSTRAINT leased_means_processing CHECK (((lease_expires_at IS NOT NULL) = (status = 'processing'::text))),
    CONSTRAINT tasks_estimated_tokens_check CHECK ((estimated_tokens >= 1)),
    CONSTRAINT tasks_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT tasks_priority_check CHECK (((priority >= 0) AND (priority <= 100))),
    CONSTRAINT tasks_status_check CHECK ((status = ANY (ARRAY['enqueued'::text, 'processing'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0', fillfactor='50');

CREATE VIEW lockkeeper.cost_lines AS
 SELECT c.source,
    c.record_id,
    c.attempt_id,
    c.task_id,
    c.kind,
    c.model,
    c.input_tokens,
    c.output_tokens,
    c.cache_read_tokens,
    c.cache_write_tokens,
    c.quantity,
    c.unit,
    c.sku,
    c.amount,
    c.list_amount,
    c.currency,
    c.priced_by,
    c.price_id,
    c.record_type,
    c.usage_start_at,
    c.usage_end_at,
    c.recorded_at,
    c.is_whole,
    c.version,
    c.reason,
    c.parts,
    COALESCE(c.agent, x.agent,
        CASE c.source
            WHEN 'underwriting'::text THEN 'underwriting'::text
            ELSE NULL::text
        END) AS agent,
    COALESCE(c.customer, t.customer, r.applicant) AS customer,
    x.attempt,
    COALESCE(x.status,
        CASE c.source
            WHEN 'underwriting'::text THEN 'completed'::text
            ELSE NULL::text
        END) AS outcome,
    x.run_id,
    x.pages,
    COALESCE(t.created_at, r.created_at) AS task_created_at
   FROM (((lockkeeper.cost_entries c
     LEFT JOIN lockkeeper.task_attempts x ON ((x.id = c.attempt_id)))
     LEFT JOIN lockkeeper.tasks t ON ((t.id = c.task_id)))
     LEFT JOIN agent_ops.agent_runs r ON (((c.source = 'underwriting'::text) AND (r.run_id = c.task_id))))
  WHERE (NOT ((c.source = 'callback'::text) AND (c.kind = 'llm'::text) AND (EXISTS ( SELECT
           FROM lockkeeper.cost_entries o
          WHERE ((o.attempt_id = c.attempt_id) AND (o.source = 'trace'::text))))));

CREATE TABLE lockkeeper.documents (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    name text NOT NULL,
    volume_path text NOT NULL,
    sha256 text NOT NULL,
    bytes bigint NOT NULL,
    pages integer,
    customer text,
    uploaded_by text NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL
);

CREATE TABLE lockkeeper.run_bills (
    run_id bigint NOT NULL,
    status text NOT NULL,
    ended_at timestamp with time zone,
    submitted_at timestamp with time zone NOT NULL,
    records integer NOT NULL,
    read_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    CONSTRAINT run_bills_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'preliminary'::text, 'final'::text, 'unknown'::text])))
);

CREATE VIEW lockkeeper.task_costs AS
 SELECT t.id AS task_id,
    t.agent,
    t.customer,
    t.status,
    t.created_at,
    t.finished_at,
    t.document_id,
    c.attempts,
    c.pages,
    c.input_tokens,
    c.output_tokens,
    c.cache_read_tokens,
    c.cache_write_tokens,
    c.llm_cost,
    c.compute_cost,
    c.retry_cost,
    COALESCE(c.currency, 'USD'::text) AS currency,
    COALESCE(c.cost_status, 'pending'::text) AS cost_status,
    c.superseded_cost,
    COALESCE(c.compute_status, 'pending'::text) AS compute_status
   FROM (lockkeeper.tasks t
     LEFT JOIN LATERAL ( SELECT count(*) AS attempts,
            max(x.pages) AS pages,
            (sum(x.input_tokens))::bigint AS input_tokens,
            (sum(x.output_tokens))::bigint AS output_tokens,
            (sum(x.cache_read_tokens))::bigint AS cache_read_tokens,
            (sum(x.cache_write_tokens))::bigint AS cache_write_tokens,
            sum(x.llm_cost) AS llm_cost,
            sum(x.compute_cost) AS compute_cost,
            sum((COALESCE(x.llm_cost, (0)::numeric) + COALESCE(x.compute_cost, (0)::numeric))) FILTER (WHERE ((x.status <> 'completed'::text) AND ((x.llm_cost IS NOT NULL) OR (x.compute_cost IS NOT NULL)))) AS retry_cost,
            min(x.currency) AS currency,
                CASE
                    WHEN bool_or((x.cost_status = 'pending'::text)) THEN 'pending'::text
                    WHEN bool_or((x.cost_status = 'unknown'::text)) THEN 'unknown'::text
                    WHEN bool_or((x.cost_status = 'partial'::text)) THEN 'partial'::text
                    ELSE 'final'::text
                END AS cost_status,
            sum((COALESCE(x.llm_cost, (0)::numeric) + COALESCE(x.compute_cost, (0)::numeric))) FILTER (WHERE ((x.status = 'superseded'::text) AND ((x.llm_cost IS NOT NULL) OR (x.compute_cost IS NOT NULL)))) AS superseded_cost,
                CASE
                    WHEN bool_or(((x.compute_cost IS NULL) AND (b.status IS DISTINCT FROM 'unknown'::text))) THEN 'pending'::text
                    WHEN bool_or((b.status = 'unknown'::text)) THEN 'unknown'::text
                    WHEN bool_or(((x.run_id IS NOT NULL) AND (b.status IS DISTINCT FROM 'final'::text))) THEN 'preliminary'::text
                    ELSE 'final'::text
                END AS compute_status
           FROM (lockkeeper.task_attempts x
             LEFT JOIN lockkeeper.run_bills b ON ((b.run_id = x.run_id)))
          WHERE ((x.task_id = t.id) AND (x.status <> 'released'::text))) c ON (true));

CREATE VIEW lockkeeper.work_costs AS
 SELECT t.id,
    t.agent,
    t.customer,
    t.status,
    t.created_at,
    t.labels,
    d.name AS document_name,
    c.currency,
    true AS is_first,
    c.attempts,
    c.pages,
    c.input_tokens,
    c.output_tokens,
    c.cache_read_tokens,
    c.cache_write_tokens,
    c.llm_cost,
    c.compute_cost,
    c.retry_cost,
    c.superseded_cost,
        CASE
            WHEN (c.attempts = 0) THEN 'final'::text
            ELSE c.cost_status
        END AS cost_status,
        CASE
            WHEN (c.attempts = 0) THEN 'final'::text
            ELSE c.compute_status
        END AS compute_status
   FROM ((lockkeeper.tasks t
     JOIN lockkeeper.task_costs c ON ((c.task_id = t.id)))
     LEFT JOIN lockkeeper.documents d ON ((d.id = t.document_id)))
UNION ALL
 SELECT t.id,
    t.agent,
    t.customer,
    t.status,
    t.created_at,
    t.labels,
    d.name AS document_name,
    l.currency,
    false AS is_first,
    0 AS attempts,
    NULL::integer AS pages,
    NULL::bigint AS input_tokens,
    NULL::bigint AS output_tokens,
    NULL::bigint AS cache_read_tokens,
    NULL::bigint AS cache_write_tokens,
    l.llm_cost,
    l.compute_cost,
    l.retry_cost,
    l.superseded_cost,
    'final'::text AS cost_status,
    'final'::text AS compute_status
   FROM ((( SELECT c.task_id,
            c.currency,
            sum(c.amount) FILTER (WHERE (c.kind = 'llm'::text)) AS llm_cost,
            sum(c.amount) FILTER (WHERE (c.kind = 'compute'::text)) AS compute_cost,
            sum(c.amount) FILTER (WHERE (c.outcome <> 'completed'::text)) AS retry_cost,
            sum(c.amount) FILTER (WHERE (c.outcome = 'superseded'::text)) AS superseded_cost
           FROM lockkeeper.cost_lines c
          WHERE (c.currency <> 'USD'::text)
          GROUP BY c.task_id, c.currency) l
     JOIN lockkeeper.tasks t ON ((t.id = l.task_id)))
     LEFT JOIN lockkeeper.documents d ON ((d.id = t.document_id)))
UNION ALL
 SELECT r.run_id AS id,
    'underwriting'::text AS agent,
    r.applicant AS customer,
        CASE r.state
            WHEN 'starting'::text THEN 'enqueued'::text
            WHEN 'running'::text THEN 'processing'::text
            WHEN 'awaiting_review'::text THEN 'processing'::text
            WHEN 'expired'::text THEN 'failed'::text
            ELSE r.state
        END AS status,
    r.created_at,
    '{}'::jsonb AS labels,
    NULL::text AS document_name,
    COALESCE(l.currency, 'USD'::text) AS currency,
    COALESCE(l.is_first, true) AS is_first,
    COALESCE(l.calls, (0)::bigint) AS attempts,
    NULL::integer AS pages,
    l.input_tokens,
    l.output_tokens,
    l.cache_read_tokens,
    l.cache_write_tokens,
    l.llm_cost,
        CASE
            WHEN l.is_first THEN (0)::numeric
            ELSE NULL::numeric
        END AS compute_cost,
    NULL::numeric AS retry_cost,
    NULL::numeric AS superseded_cost,
        CASE
            WHEN l.is_unpriced THEN 'partial'::text
            ELSE 'final'::text
        END AS cost_status,
    'final'::text AS compute_status
   FROM (agent_ops.agent_runs r
     LEFT JOIN LATERAL ( SELECT c.currency,
            (min(c.currency) OVER () = c.currency) AS is_first,
            count(*) AS calls,
            (sum(c.input_tokens))::bigint AS input_tokens,
            (sum(c.output_tokens))::bigint AS output_tokens,
            (sum(c.cache_read_tokens))::bigint AS cache_read_tokens,
            (sum(c.cache_write_tokens))::bigint AS cache_write_tokens,
            sum(c.amount) AS llm_cost,
            bool_or((c.amount IS NULL)) AS is_unpriced
           FROM (agent_ops.agent_messages m
             JOIN lockkeeper.cost_entries c ON (((c.attempt_id = m.message_id) AND (c.source = 'underwriting'::text))))
          WHERE (m.run_id = r.run_id)
          GROUP BY c.currency) l ON (true));

CREATE FUNCTION lockkeeper.find_costs(statuses text[], agents text[], customers text[], from_at timestamp with time zone, to_at timestamp with time zone, with_text text, with_labels jsonb, label_keys text[]) RETURNS SETOF lockkeeper.work_costs
    LANGUAGE sql STABLE
    AS $$
    SELECT w.*
      FROM lockkeeper.work_costs w
     WHERE (statuses IS NULL OR w.status = ANY (statuses))
       AND (agents IS NULL OR w.agent = ANY (agents))
       AND (customers IS NULL OR w.customer = ANY (customers))
       AND w.created_at >= coalesce(from_at, '-infinity')
       AND w.created_at < coalesce(to_at, 'infinity')
       AND (with_text IS NULL OR w.document_name ILIKE with_text OR w.customer ILIKE with_text
            OR w.id::text ILIKE with_text)
       AND (with_labels IS NULL OR w.labels @> with_labels)
       AND (label_keys IS NULL OR w.labels ?& label_keys)
$$;

CREATE VIEW lockkeeper.task_overview AS
 SELECT t.id,
    t.agent,
    t.customer,
    t.priority,
    t.status,
    t.attempt,
    t.max_attempts,
    t.created_at,
    t.available_at,
    t.started_at,
    t.finished_at,
    t.estimated_tokens,
    t.version,
    t.verb,
    t.reason,
    t.step,
    t.pages_done,
    t.pages_total,
    t.confidence,
    t.labels,
    t.source_task_id,
    t.parent_task_id,
    t.created_by,
    t.error,
    t.oversized,
    t.document_id,
    d.name AS document_name,
    d.pages AS document_pages,
    d.bytes AS document_bytes,
    c.attempts,
    c.pages,
    c.input_tokens,
    c.output_tokens,
    c.cache_read_tokens,
    c.cache_write_tokens,
    c.llm_cost,
    c.compute_cost,
    c.retry_cost,
    c.currency,
    c.cost_status
   FROM ((lockkeeper.tasks t
     LEFT JOIN lockkeeper.documents d ON ((d.id = t.document_id)))
     LEFT JOIN lockkeeper.task_costs c ON ((c.task_id = t.id)));

CREATE FUNCTION lockkeeper.find_tasks(statuses text[], agents text[], customers text[], from_at timestamp with time zone, to_at timestamp with time zone, with_text text, with_labels jsonb, label_keys text[], before_at timestamp with time zone, before_id uuid, at_most integer) RETURNS SETOF lockkeeper.task_overview
    LANGUAGE sql STABLE
    AS $$
    SELECT o.*
      FROM lockkeeper.task_overview o
     WHERE (statuses IS NULL OR o.status = ANY (statuses))
       AND (agents IS NULL OR o.agent = ANY (agents))
       AND (customers IS NULL OR o.customer = ANY (customers))
       AND o.created_at >= coalesce(from_at, '-infinity')
       AND o.created_at < coalesce(to_at, 'infinity')
       AND (with_text IS NULL OR o.document_name ILIKE with_text OR o.customer ILIKE with_text
            OR o.id::text ILIKE with_text)
       AND (with_labels IS NULL OR o.labels @> with_labels)
       AND (label_keys IS NULL OR o.labels ?& label_keys)
       AND (o.created_at, o.id)
         < (coalesce(before_at, 'infinity'), coalesce(before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY o.created_at DESC, o.id DESC
     LIMIT at_most
$$;

CREATE FUNCTION lockkeeper.guard_limits() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(4951, 1);
    RETURN NEW;
END $$;

CREATE FUNCTION lockkeeper.headroom_now(limited text[], unlimited text[]) RETURNS TABLE(agent text, max_concurrent_tasks integer, max_tpm bigint, paused boolean, cooldown_until timestamp with time zone, default_tokens bigint, expected_seconds integer, by_policy boolean, slots bigint, tokens_left bigint, is_idle boolean)
    LANGUAGE plpgsql ROWS 8
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.agent, h.max_concurrent_tasks, h.max_tpm, h.paused, h.cooldown_until, h.default_tokens, h.expected_seconds,
           h.by_policy, h.slots, h.tokens_left, h.running = 0 AND h.used_tpm = 0
      FROM lockkeeper.agent_headroom h WHERE h.agent = ANY (limited);
    RETURN QUERY
    SELECT r.agent, r.max_concurrent_tasks, r.max_tpm, r.paused, r.cooldown_until, r.default_tokens, r.expected_seconds,
           r.by_policy, NULL::bigint, NULL::bigint, NULL::boolean
      FROM lockkeeper.agent_rules r
     WHERE r.agent = ANY (unlimited) AND r.max_concurrent_tasks IS NULL AND r.max_tpm IS NULL;
END $$;

CREATE FUNCTION lockkeeper.is_adopted() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
    SET search_path TO 'pg_catalog'
    AS $$
    SELECT EXISTS (
        SELECT FROM lockkeeper.deployment d
         WHERE d.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND d.branch = coalesce(current_setting('lockkeeper.branch', true), ''))
$$;

CREATE FUNCTION lockkeeper.keep_entry() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    INSERT INTO lockkeeper.cost_entry_versions SELECT OLD.*;
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$;

CREATE FUNCTION lockkeeper.keep_price() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    INSERT INTO lockkeeper.retired_prices SELECT OLD.*;
    RETURN NULL;
END $$;

CREATE FUNCTION lockkeeper.log_agent() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    INSERT INTO lockkeeper.agent_changes (agent, version, changed_at, changed_by, settings)
    VALUES (NEW.name, NEW.version, clock_timestamp(), NEW.updated_by, to_jsonb(NEW) - 'cooldown_until');
    RETURN NULL;
END $$;

CREATE FUNCTION lockkeeper.log_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    INSERT INTO lockkeeper.task_events
           (task_id, version, at, verb, status, attempt, agent, running, reserved_tpm, actor, reason)
    VALUES (NEW.id, NEW.version, clock_timestamp(), NEW.verb, NEW.status, NEW.attempt, NEW.agent,
            (NEW.status = 'processing')::int, CASE NEW.status WHEN 'processing' THEN NEW.reserved_tpm ELSE 0 END,
            lockkeeper.actor(), NEW.reason);
    RETURN NULL;
END $$;

CREATE FUNCTION lockkeeper.mark_all_by_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
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

CREATE FUNCTION lockkeeper.mark_by_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    NEW.by_policy := NEW.backfill OR NEW.fair_share OR NEW.daily_budget IS NOT NULL OR NEW.monthly_budget IS NOT NULL
        OR EXISTS (SELECT FROM lockkeeper.customers c WHERE coalesce(c.daily_budget, c.monthly_budget) IS NOT NULL);
    RETURN NEW;
END $$;

CREATE FUNCTION lockkeeper.may_read(of_customer text) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
    SET search_path TO 'pg_catalog'
    AS $$
    SELECT EXISTS (SELECT FROM lockkeeper.reader_customers r
                    WHERE r.reader = session_user AND r.customer = of_customer)
$$;

CREATE FUNCTION lockkeeper.next_period(period text) RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT (date_trunc(period, lockkeeper.clock() AT TIME ZONE 'UTC') + ('1 ' || period)::interval) AT TIME ZONE 'UTC'
$$;

CREATE FUNCTION lockkeeper.price_parts(parts jsonb, used_at timestamp with time zone) RETURNS TABLE(amount numeric, currency text, price_id bigint)
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN count(m.id) = count(*) AND count(DISTINCT m.currency) = 1 THEN sum(
               u.input_tokens * m.input_price + u.output_tokens * m.output_price
               + u.cache_read_tokens * m.cache_read_price + u.cache_write_tokens * m.cache_write_price)
               * 0.000001 END,
           min(m.currency), CASE WHEN count(*) = 1 THEN min(m.id) END
      FROM jsonb_to_recordset(parts) AS u (
           model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint)
      LEFT JOIN LATERAL (
           SELECT * FROM lockkeeper.model_prices m
            WHERE m.model = u.model AND m.valid_from <= used_at AND (m.valid_to IS NULL OR used_at < m.valid_to)
            ORDER BY m.currency <> 'USD', m.valid_from DESC
            LIMIT 1) m ON true
$$;

CREATE FUNCTION lockkeeper.refuse_removal() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'task % is % and cannot be removed', OLD.id, OLD.status
        USING ERRCODE = 'LK001', HINT = 'Only tasks that have ended are removed.';
END $$;

CREATE FUNCTION lockkeeper.refuse_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'task % cannot go from % to %', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'LK001', HINT = 'Terminal tasks stay as they are; see docs/state-machine.md.';
END $$;

CREATE FUNCTION lockkeeper.response_class(seconds double precision) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT least(250, greatest(1, ceil(ln(greatest(seconds, 0.01) * 100) / ln(1.1))))::smallint $$;

CREATE FUNCTION lockkeeper.response_seconds(class integer, part double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 0.01 * 1.1 ^ (class - 1 + part) $$;

CREATE FUNCTION lockkeeper.summarise_tasks(statuses text[], agents text[], customers text[], from_at timestamp with time zone, to_at timestamp with time zone, with_text text, with_labels jsonb, label_keys text[], few integer DEFAULT 5000) RETURNS TABLE(enqueued bigint, processing bigint, completed bigint, failed bigint, cancelled bigint, median_seconds double precision, p95_seconds double precision, confidence double precision, oldest_waiting_at timestamp with time zone, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, llm_cost numeric, compute_cost numeric, currency text, llm_cost_pending bigint, compute_cost_pending bigint, attempts bigint, is_exact boolean, counted_from timestamp with time zone, counted_at timestamp with time zone)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
DECLARE
    beyond timestamptz;
BEGIN
    -- The task after the newest few of the range, if there is one.
    SELECT t.created_at INTO beyond FROM lockkeeper.tasks t
     WHERE t.created_at >= coalesce(from_at, '-infinity') AND t.created_at < coalesce(to_at, 'infinity')
     ORDER BY t.created_at DESC, t.id DESC OFFSET few LIMIT 1;
    IF beyond IS NULL OR with_text IS NOT NULL OR with_labels IS NOT NULL OR label_keys IS NOT NULL THEN
        RETURN QUERY
        SELECT s.*, beyond IS NULL, beyond, NULL::timestamptz
          FROM lockkeeper.task_summary(statuses, agents, customers, coalesce(beyond, from_at), to_at,
                                       with_text, with_labels, label_keys) s;
        RETURN;
    END IF;
    RETURN QUERY
    WITH cell AS MATERIALIZED (
        SELECT * FROM lockkeeper.totals_between(from_at, to_at, statuses, agents, customers)
    ), class AS (
        SELECT c.class, sum(c.tasks) AS tasks FROM cell c WHERE c.class > 0 GROUP BY c.class
    ), rising AS MATERIALIZED (
        SELECT r.class, r.tasks, sum(r.tasks) OVER (ORDER BY r.class) AS up_to, sum(r.tasks) OVER () AS every FROM class r
    ), oldest AS (
        -- The first hour in which anything waits, or nothing.
        SELECT CASE WHEN min(h.bucket) IS NOT NULL
                    THEN greatest(min(h.bucket), coalesce(from_at, '-infinity')) END AS since
          FROM lockkeeper.task_totals h
         WHERE h.grain = 'hour' AND h.customer = '*' AND h.status = 'enqueued'
           AND h.tasks > 0 AND h.agent = ANY (coalesce(agents, ARRAY['*']))
           AND h.bucket >= coalesce(date_trunc('hour', from_at, 'UTC'), '-infinity')
           AND (statuses IS NULL OR 'enqueued' = ANY (statuses))
    )
    SELECT coalesce(sum(c.tasks) FILTER (WHERE c.status = 'enqueued'), 0)::bigint,
           coalesce(sum(c.tasks) FILTER (WHERE c.status = 'processing'), 0)::bigint,
           coalesce(sum(c.tasks) FILTER (WHERE c.status = 'completed'), 0)::bigint,
           coalesce(sum(c.tasks) FILTER (WHERE c.status = 'failed'), 0)::bigint,
           coalesce(sum(c.tasks) FILTER (WHERE c.status = 'cancelled'), 0)::bigint,
           (SELECT lockkeeper.response_seconds(r.class, ((0.5 * r.every - r.up_to + r.tasks) / r.tasks)::float8)
              FROM rising r WHERE r.up_to >= 0.5 * r.every ORDER BY r.class LIMIT 1),
           (SELECT lockkeeper.response_seconds(r.class, ((0.95 * r.every - r.up_to + r.tasks) / r.tasks)::float8)
              FROM rising r WHERE r.up_to >= 0.95 * r.every ORDER BY r.class LIMIT 1),
           sum(c.confidence) / nullif(sum(c.judged), 0)::float8,
           (SELECT t.created_at FROM lockkeeper.tasks t
             WHERE t.created_at >= (SELECT o.since FROM oldest o)
               AND t.status = 'enqueued' AND t.created_at < coalesce(to_at, 'infinity')
               AND (agents IS NULL OR t.agent = ANY (agents)) AND (customers IS NULL OR t.customer = ANY (customers))
             ORDER BY t.created_at LIMIT 1),
           coalesce(sum(c.input_tokens), 0)::bigint, coalesce(sum(c.output_tokens), 0)::bigint,
           coalesce(sum(c.cache_read_tokens), 0)::bigint, coalesce(sum(c.cache_write_tokens), 0)::bigint,
           CASE WHEN sum(c.attempts) > sum(c.llm_cost_pending) THEN sum(c.llm_cost) END,
           CASE WHEN sum(c.attempts) > sum(c.compute_cost_pending) THEN sum(c.compute_cost) END,
           coalesce(min(c.currency), 'USD'),
           coalesce(sum(c.llm_cost_pending), 0)::bigint, coalesce(sum(c.compute_cost_pending), 0)::bigint,
           coalesce(sum(c.attempts), 0)::bigint,
           false, NULL::timestamptz, (SELECT s.counted_at FROM lockkeeper.totals_state s)
      FROM cell c;
END $$;

CREATE FUNCTION lockkeeper.task_summary(statuses text[], agents text[], customers text[], from_at timestamp with time zone, to_at timestamp with time zone, with_text text, with_labels jsonb, label_keys text[]) RETURNS TABLE(enqueued bigint, processing bigint, completed bigint, failed bigint, cancelled bigint, median_seconds double precision, p95_seconds double precision, confidence double precision, oldest_waiting_at timestamp with time zone, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, llm_cost numeric, compute_cost numeric, currency text, llm_cost_pending bigint, compute_cost_pending bigint, attempts bigint)
    LANGUAGE sql STABLE
    AS $$
    WITH chosen AS MATERIALIZED (
        SELECT t.id, t.status, t.confidence, t.created_at, t.finished_at
          FROM lockkeeper.tasks t
         WHERE (statuses IS NULL OR t.status = ANY (statuses))
           AND (agents IS NULL OR t.agent = ANY (agents))
           AND (customers IS NULL OR t.customer = ANY (customers))
           AND t.created_at >= coalesce(from_at, '-infinity')
           AND t.created_at < coalesce(to_at, 'infinity')
           AND (with_text IS NULL OR t.customer ILIKE with_text OR t.id::text ILIKE with_text
                OR EXISTS (SELECT FROM lockkeeper.documents d WHERE d.id = t.document_id AND d.name ILIKE with_text))
           AND (with_labels IS NULL OR t.labels @> with_labels)
           AND (label_keys IS NULL OR t.labels ?& label_keys)
    ), counted AS (
        SELECT count(*) FILTER (WHERE status = 'enqueued') AS enqueued,
               count(*) FILTER (WHERE status = 'processing') AS processing,
               count(*) FILTER (WHERE status = 'completed') AS completed,
               count(*) FILTER (WHERE status = 'failed') AS failed,
               count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)::float8)
                   FILTER (WHERE status = 'completed') AS median_seconds,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)::float8)
                   FILTER (WHERE status = 'completed') AS p95_seconds,
               avg(confidence::float8) FILTER (WHERE status = 'completed') AS confidence,
               min(created_at) FILTER (WHERE status = 'enqueued') AS oldest_waiting_at
          FROM chosen
    ), spent AS (
        SELECT sum(x.input_tokens)::bigint AS input_tokens, sum(x.output_tokens)::bigint AS output_tokens,
               sum(x.cache_read_tokens)::bigint AS cache_read_tokens,
               sum(x.cache_write_tokens)::bigint AS cache_write_tokens,
               sum(x.llm_cost) AS llm_cost, sum(x.compute_cost) AS compute_cost,
               coalesce(min(x.currency), 'USD') AS currency,
               count(*) FILTER (WHERE x.llm_cost IS NULL) AS llm_cost_pending,
               count(*) FILTER (WHERE x.compute_cost IS NULL) AS compute_cost_pending,
               count(*) AS attempts
          FROM chosen c
          JOIN lockkeeper.task_attempts x ON x.task_id = c.id AND x.status <> 'released'
    )
    SELECT c.enqueued, c.processing, c.completed, c.failed, c.cancelled, c.median_seconds, c.p95_seconds,
           c.confidence, c.oldest_waiting_at, s.input_tokens, s.output_tokens, s.cache_read_tokens,
           s.cache_write_tokens, s.llm_cost, s.compute_cost, s.currency, s.llm_cost_pending,
           s.compute_cost_pending, s.attempts
      FROM counted c, spent s
$$;

CREATE FUNCTION lockkeeper.totals_between(from_at timestamp with time zone, to_at timestamp with time zone, statuses text[], agents text[], customers text[]) RETURNS TABLE(status text, class smallint, currency text, tasks bigint, attempts bigint, judged bigint, confidence double precision, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, llm_cost numeric, compute_cost numeric, llm_cost_pending bigint, compute_cost_pending bigint)
    LANGUAGE sql STABLE
    AS $$
    WITH whole AS MATERIALIZED (
        SELECT coalesce(from_at, '-infinity') AS since, coalesce(to_at, 'infinity') AS until,
               coalesce(date_trunc('hour', from_at + interval '1 hour' - interval '1 microsecond', 'UTC'), '-infinity') AS h1,
               coalesce(date_trunc('hour', to_at, 'UTC'), 'infinity') AS h2,
               coalesce(date_trunc('day', from_at + interval '1 day' - interval '1 microsecond', 'UTC'), '-infinity') AS d1,
               coalesce(date_trunc('day', to_at, 'UTC'), 'infinity') AS d2
    ), span AS (
        SELECT 'day' AS grain, d1 AS since, d2 AS until FROM whole WHERE agents IS NULL OR customers IS NULL
        UNION ALL
        SELECT 'hour', h1, least(d1, h2) FROM whole WHERE customers IS NULL
        UNION ALL
        SELECT 'hour', greatest(d2, h1), h2 FROM whole WHERE customers IS NULL AND d1 <= d2
    ), piece AS (
        SELECT since, least(h1, until) AS until FROM whole WHERE customers IS NULL
        UNION ALL
        SELECT greatest(h2, since), until FROM whole WHERE customers IS NULL AND h1 <= h2
        UNION ALL
        SELECT since, least(d1, until) FROM whole WHERE customers IS NOT NULL AND agents IS NULL
        UNION ALL
        SELECT greatest(d2, since), until FROM whole WHERE customers IS NOT NULL AND agents IS NULL AND d1 <= d2
        UNION ALL
        SELECT since, until FROM whole WHERE customers IS NOT NULL AND agents IS NOT NULL
    ), one AS (
        SELECT t.* FROM piece p JOIN lockkeeper.task_counted t ON t.created_at >= p.since AND t.created_at < p.until
         WHERE customers IS NULL AND p.since < p.until
        UNION ALL
        SELECT t.* FROM piece p
          JOIN lockkeeper.task_counted t ON t.customer = ANY (customers) AND t.created_at >= p.since AND t.created_at < p.until
         WHERE p.since < p.until
    )
    SELECT c.status, c.class, c.currency, c.tasks, c.attempts, c.judged, c.confidence, c.input_tokens,
           c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.llm_cost, c.compute_cost, c.llm_cost_pending,
           c.compute_cost_pending
      FROM span s
      JOIN lockkeeper.task_totals c ON c.grain = s.grain AND c.bucket >= s.since AND c.bucket < s.until
     WHERE c.customer = ANY (coalesce(customers, ARRAY['*']))
       AND c.agent = ANY (coalesce(agents, ARRAY['*']))
       AND (statuses IS NULL OR c.status = ANY (statuses))
    UNION ALL
    SELECT t.status, t.class, t.currency, 1, t.attempts, (t.confidence IS NOT NULL)::int,
           coalesce(t.confidence, 0), coalesce(t.input_tokens, 0), coalesce(t.output_tokens, 0),
           coalesce(t.cache_read_tokens, 0), coalesce(t.cache_write_tokens, 0), coalesce(t.llm_cost, 0),
           coalesce(t.compute_cost, 0), t.llm_cost_pending, t.compute_cost_pending
      FROM one t
     WHERE (statuses IS NULL OR t.status = ANY (statuses))
       AND (agents IS NULL OR t.agent = ANY (agents))
$$;

CREATE FUNCTION lockkeeper.waiting(of_task uuid) RETURNS TABLE(reason text, place bigint, estimated_start timestamp with time zone)
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

CREATE FUNCTION lockkeeper.waiting_reasons(of_tasks uuid[]) RETURNS TABLE(task_id uuid, reason text)
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

CREATE FUNCTION lockkeeper.why_waiting(of_tasks uuid[]) RETURNS TABLE(task_id uuid, reason text)
    LANGUAGE sql STABLE
    AS $$
    SELECT w.task_id, CASE WHEN t.gather IS NULL THEN w.reason ELSE 'children' END
      FROM lockkeeper.waiting_reasons(of_tasks) w
      JOIN lockkeeper.tasks t ON t.id = w.task_id
$$;

CREATE TABLE agent_ops.agent_review_decisions (
    decision_id uuid NOT NULL,
    run_id uuid NOT NULL,
    review_id uuid NOT NULL,
    decision text NOT NULL,
    note text DEFAULT ''::text NOT NULL,
    reviewer text NOT NULL,
    path text NOT NULL,
    status text NOT NULL,
    effect text,
    refusal text,
    message text,
    turn smallint,
    delivery_attempts integer DEFAULT 0 NOT NULL,
    next_delivery_at timestamp with time zone,
    received_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    decided_at timestamp with time zone,
    CONSTRAINT agent_review_decisions_decision_check CHECK ((decision = ANY (ARRAY['approve'::text, 'deny'::text, 'request_more_info'::text]))),
    CONSTRAINT agent_review_decisions_effect_check CHECK ((effect = ANY (ARRAY['decided'::text, 'first_approval'::text]))),
    CONSTRAINT agent_review_decisions_path_check CHECK ((path = ANY (ARRAY['update'::text, 'signal'::text]))),
    CONSTRAINT agent_review_decisions_status_check CHECK ((status = ANY (ARRAY['received'::text, 'accepted'::text, 'refused'::text]))),
    CONSTRAINT decided_means_settled CHECK (((decided_at IS NOT NULL) = (status = ANY (ARRAY['accepted'::text, 'refused'::text])))),
    CONSTRAINT refused_has_a_reason CHECK (((refusal IS NOT NULL) = (status = 'refused'::text)))
);

ALTER TABLE ONLY agent_ops.agent_review_decisions REPLICA IDENTITY FULL;

CREATE TABLE agent_ops.agent_tool_calls (
    tool_call_id uuid NOT NULL,
    run_id uuid NOT NULL,
    turn smallint NOT NULL,
    "position" smallint NOT NULL,
    tool text NOT NULL,
    message_id uuid,
    arguments jsonb DEFAULT '{}'::jsonb NOT NULL,
    state text NOT NULL,
    result jsonb,
    error jsonb,
    fence integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    started_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT agent_tool_calls_state_check CHECK ((state = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text]))),
    CONSTRAINT tool_call_finished_means_terminal CHECK (((finished_at IS NOT NULL) = (state = ANY (ARRAY['succeeded'::text, 'failed'::text]))))
);

ALTER TABLE ONLY agent_ops.agent_tool_calls REPLICA IDENTITY FULL;

CREATE TABLE agent_ops.events (
    event_id uuid NOT NULL,
    run_id uuid NOT NULL,
    turn smallint NOT NULL,
    name text NOT NULL,
    at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    details jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT events_name_check CHECK ((name ~ '^agent\.[a-z_]+$'::text))
);

ALTER TABLE ONLY agent_ops.events REPLICA IDENTITY FULL;

CREATE TABLE agent_ops.metrics (
    metric_id uuid NOT NULL,
    workflow_id text NOT NULL,
    run_id uuid NOT NULL,
    turn smallint NOT NULL,
    activity text NOT NULL,
    step_id uuid NOT NULL,
    round integer NOT NULL,
    attempt integer NOT NULL,
    fence integer NOT NULL,
    outcome text NOT NULL,
    error jsonb,
    worker text,
    payload_bytes integer,
    input_tokens bigint,
    output_tokens bigint,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT metrics_outcome_check CHECK ((outcome = ANY (ARRAY['running'::text, 'succeeded'::text, 'reused'::text, 'failed'::text, 'lost'::text])))
);

ALTER TABLE ONLY agent_ops.metrics REPLICA IDENTITY FULL;

CREATE VIEW agent_ops.run_overview AS
 SELECT r.run_id,
    r.workflow_id,
    r.temporal_run_id,
    r.user_name,
    r.applicant,
    r.amount,
    r.purpose,
    r.model,
    r.turn,
    r.turn_limit,
    r.state,
    r.outcome,
    r.review_id,
    r.review_opened_at,
    r.review_expires_at,
    r.review_reminded_at,
    r.recommendation,
    r.policy,
    r.input_tokens,
    r.output_tokens,
    r.cache_read_tokens,
    r.error,
    r.request,
    r.options,
    r.start_attempts,
    r.cancel_requested_at,
    r.created_at,
    r.started_at,
    r.finished_at,
    r.updated_at,
    step.activity,
    step.attempt,
    step.started_at AS activity_started_at,
    step.last_error,
    COALESCE(tools.failed, (0)::bigint) AS failed_tools,
    COALESCE(steps.retries, (0)::bigint) AS retries,
    cost.llm_cost,
        CASE
            WHEN (r.state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text])) THEN r.state
            WHEN (r.cancel_requested_at IS NOT NULL) THEN 'cancelling'::text
            WHEN ((r.state = 'starting'::text) AND (r.start_attempts > 0)) THEN 'waiting_for_temporal'::text
            WHEN (r.state = 'starting'::text) THEN 'starting'::text
            WHEN (r.state = 'awaiting_review'::text) THEN 'waiting_for_person'::text
            WHEN ((step.last_error ->> 'type'::text) = 'database_unavailable'::text) THEN 'database_fault'::text
            WHEN ((step.outcome = ANY (ARRAY['failed'::text, 'lost'::text])) OR (step.attempt > 1) OR (step.round > 1)) THEN 'retrying_activity'::text
            WHEN (tools.failed > 0) THEN 'failed_tool'::text
            ELSE 'working'::text
        END AS condition
   FROM ((((agent_ops.agent_runs r
     LEFT JOIN LATERAL ( SELECT m.activity,
            m.attempt,
            m.round,
            m.outcome,
            m.started_at,
            COALESCE(m.error, ( SELECT p.error
                   FROM agent_ops.metrics p
                  WHERE ((p.run_id = r.run_id) AND (p.step_id = m.step_id) AND (p.error IS NOT NULL))
                  ORDER BY p.fence DESC
                 LIMIT 1)) AS last_error
           FROM agent_ops.metrics m
          WHERE ((m.run_id = r.run_id) AND (m.turn = r.turn))
          ORDER BY m.started_at DESC
         LIMIT 1) step ON ((r.state = 'running'::text)))
     LEFT JOIN LATERAL ( SELECT count(*) AS failed
           FROM agent_ops.agent_tool_calls t
          WHERE ((t.run_id = r.run_id) AND (t.turn = r.turn) AND (t.state = 'failed'::text))) tools ON (true))
     LEFT JOIN LATERAL ( SELECT count(*) AS retries
           FROM agent_ops.metrics m
          WHERE ((m.run_id = r.run_id) AND ((m.attempt > 1) OR (m.round > 1)))) steps ON (true))
     LEFT JOIN LATERAL ( SELECT sum(c.amount) AS llm_cost
           FROM (agent_ops.agent_messages s
             JOIN lockkeeper.cost_entries c ON (((c.attempt_id = s.message_id) AND (c.source = 'underwriting'::text))))
          WHERE (s.run_id = r.run_id)) cost ON (true));

CREATE TABLE agent_policy.underwriting_policy_limits (
    purpose text NOT NULL,
    policy_name text NOT NULL,
    policy_version text NOT NULL,
    minimum_score integer NOT NULL,
    automatic_approval_dti numeric NOT NULL,
    hard_reject_score integer NOT NULL,
    hard_reject_dti numeric NOT NULL,
    source text DEFAULT 'unity_catalog'::text NOT NULL,
    synced_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE ONLY agent_policy.underwriting_policy_limits REPLICA IDENTITY FULL;

CREATE TABLE lockkeeper.agent_changes (
    agent text NOT NULL,
    version bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL,
    settings jsonb NOT NULL
);

CREATE TABLE lockkeeper.agent_circuits (
    agent text NOT NULL,
    failed_tasks uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    opened_at timestamp with time zone,
    open_until timestamp with time zone
);

CREATE TABLE lockkeeper.agent_estimates (
    agent text NOT NULL,
    samples integer NOT NULL,
    tokens double precision NOT NULL,
    seconds double precision NOT NULL,
    page_samples integer DEFAULT 0 NOT NULL,
    tokens_per_page double precision,
    cost_samples integer DEFAULT 0 NOT NULL,
    cost numeric,
    measured_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL
);

CREATE TABLE lockkeeper.agents (
    name text NOT NULL,
    target text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    max_concurrent_tasks integer,
    max_tpm bigint,
    lease_seconds integer DEFAULT 300 NOT NULL,
    max_attempts smallint DEFAULT 3 NOT NULL,
    expected_seconds integer DEFAULT 60 NOT NULL,
    max_run_seconds integer DEFAULT 86400 NOT NULL,
    default_tokens bigint DEFAULT 4000 NOT NULL,
    tokens_per_page bigint DEFAULT 1500 NOT NULL,
    backfill boolean DEFAULT false NOT NULL,
    fair_share boolean DEFAULT false NOT NULL,
    tasks_per_run smallint DEFAULT 1 NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    cooldown_until timestamp with time zone,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    updated_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    updated_by text DEFAULT CURRENT_USER NOT NULL,
    backfill_limit smallint DEFAULT 10 NOT NULL,
    customer_weights jsonb DEFAULT '{}'::jsonb NOT NULL,
    daily_budget numeric,
    monthly_budget numeric,
    expected_cost numeric DEFAULT 0.05 NOT NULL,
    circuit_failures smallint,
    circuit_seconds integer DEFAULT 60 NOT NULL,
    learn_estimates boolean DEFAULT true NOT NULL,
    by_policy boolean DEFAULT false NOT NULL,
    learned_tokens_per_page bigint,
    CONSTRAINT agents_backfill_limit_check CHECK (((backfill_limit >= 1) AND (backfill_limit <= 1000))),
    CONSTRAINT agents_circuit_failures_check CHECK (((circuit_failures >= 1) AND (circuit_failures <= 100))),
    CONSTRAINT agents_circuit_seconds_check CHECK (((circuit_seconds >= 1) AND (circuit_seconds <= 86400))),
    CONSTRAINT agents_customer_weights_check CHECK ((jsonb_typeof(customer_weights) = 'object'::text)),
    CONSTRAINT agents_daily_budget_check CHECK ((daily_budget >= (0)::numeric)),
    CONSTRAINT agents_default_tokens_check CHECK ((default_tokens >= 1)),
    CONSTRAINT agents_expected_cost_check CHECK ((expected_cost >= (0)::numeric)),
    CONSTRAINT agents_expected_seconds_check CHECK ((expected_seconds >= 1)),
    CONSTRAINT agents_learned_tokens_per_page_check CHECK ((learned_tokens_per_page >= 1)),
    CONSTRAINT agents_lease_seconds_check CHECK (((lease_seconds >= 5) AND (lease_seconds <= 86400))),
    CONSTRAINT agents_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT agents_max_concurrent_tasks_check CHECK ((max_concurrent_tasks >= 0)),
    CONSTRAINT agents_max_run_seconds_check CHECK ((max_run_seconds >= 10)),
    CONSTRAINT agents_max_tpm_check CHECK ((max_tpm >= 0)),
    CONSTRAINT agents_monthly_budget_check CHECK ((monthly_budget >= (0)::numeric)),
    CONSTRAINT agents_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)),
    CONSTRAINT agents_target_check CHECK ((target <> ''::text)),
    CONSTRAINT agents_tasks_per_run_check CHECK (((tasks_per_run >= 1) AND (tasks_per_run <= 100))),
    CONSTRAINT agents_tokens_per_page_check CHECK ((tokens_per_page >= 1))
);

CREATE VIEW lockkeeper.agent_rules AS
 SELECT a.name AS agent,
    a.max_concurrent_tasks,
    a.max_tpm,
    a.paused,
    GREATEST(a.cooldown_until, c.open_until) AS cooldown_until,
        CASE
            WHEN (a.learn_estimates AND (e.samples >= 20)) THEN (GREATEST((1)::double precision, ceil(e.tokens)))::bigint
            ELSE a.default_tokens
        END AS default_tokens,
        CASE
            WHEN (a.learn_estimates AND (e.samples >= 20)) THEN (GREATEST((1)::double precision, ceil(e.seconds)))::integer
            ELSE a.expected_seconds
        END AS expected_seconds,
    a.backfill,
    a.lease_seconds,
    a.by_policy,
    a.backfill_limit,
    a.fair_share,
    a.customer_weights,
        CASE
            WHEN (a.learn_estimates AND (e.cost_samples >= 20)) THEN e.cost
            ELSE a.expected_cost
        END AS expected_cost,
    a.cooldown_until AS cooled_until,
    c.open_until AS circuit_until,
        CASE
            WHEN (c.open_until IS NULL) THEN 'closed'::text
            WHEN (c.open_until > lockkeeper.clock()) THEN 'open'::text
            ELSE 'half_open'::text
        END AS circuit
   FROM ((lockkeeper.agents a
     LEFT JOIN lockkeeper.agent_estimates e ON ((e.agent = a.name)))
     LEFT JOIN lockkeeper.agent_circuits c ON (((c.agent = a.name) AND (a.circuit_failures IS NOT NULL))));

CREATE TABLE lockkeeper.token_spending (
    agent text NOT NULL,
    at timestamp with time zone NOT NULL,
    tpm bigint NOT NULL
);

CREATE VIEW lockkeeper.agent_headroom AS
 SELECT r.agent,
    r.max_concurrent_tasks,
    r.max_tpm,
    r.paused,
    r.cooldown_until,
    r.default_tokens,
    r.expected_seconds,
    r.backfill,
    r.lease_seconds,
    live.running,
    live.reserved_tpm,
    spent.used_tpm,
        CASE
            WHEN (r.circuit_until IS NOT NULL) THEN GREATEST((LEAST(r.max_concurrent_tasks, 1) - live.running), (0)::bigint)
            WHEN (r.max_concurrent_tasks IS NOT NULL) THEN GREATEST((r.max_concurrent_tasks - live.running), (0)::bigint)
            ELSE NULL::bigint
        END AS slots,
        CASE
            WHEN (r.max_tpm IS NOT NULL) THEN GREATEST(((r.max_tpm - live.reserved_tpm) - spent.used_tpm), (0)::bigint)
            ELSE NULL::bigint
        END AS tokens_left,
    r.by_policy,
    r.backfill_limit,
    r.fair_share,
    r.customer_weights,
    r.expected_cost,
    r.cooled_until,
    r.circuit_until,
    r.circuit
   FROM ((lockkeeper.agent_rules r
     CROSS JOIN LATERAL ( SELECT count(*) AS running,
            (COALESCE(sum(t.reserved_tpm), (0)::numeric))::bigint AS reserved_tpm
           FROM lockkeeper.tasks t
          WHERE ((t.agent = r.agent) AND (t.status = 'processing'::text))) live)
     CROSS JOIN LATERAL ( SELECT (COALESCE(sum(s.tpm), (0)::numeric))::bigint AS used_tpm
           FROM lockkeeper.token_spending s
          WHERE ((r.max_tpm IS NOT NULL) AND (s.agent = r.agent) AND (s.at > (lockkeeper.clock() - '00:01:00'::interval)))) spent);

CREATE VIEW lockkeeper.agent_inputs AS
 SELECT x.id AS attempt_id,
    x.task_id,
    x.attempt,
    x.status,
    t.status AS task_status,
    t.agent,
    t.customer,
    t.input,
    t.labels,
    a.options,
    d.id AS document_id,
    d.name AS document_name,
    d.volume_path,
    d.sha256,
    d.bytes,
    x.pack_id,
    t.priority,
    t.created_at
   FROM (((lockkeeper.task_attempts x
     JOIN lockkeeper.tasks t ON ((t.id = x.task_id)))
     LEFT JOIN lockkeeper.agents a ON ((a.name = t.agent)))
     LEFT JOIN lockkeeper.documents d ON ((d.id = t.document_id)));

CREATE TABLE lockkeeper.api_tokens (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    rights text[] NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    created_by text DEFAULT CURRENT_USER NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    revoked_at timestamp with time zone,
    CONSTRAINT api_tokens_digest_check CHECK ((length(digest) = 32)),
    CONSTRAINT api_tokens_name_check CHECK ((name <> ''::text)),
    CONSTRAINT api_tokens_rights_check CHECK (((rights <@ ARRAY['read'::text, 'operate'::text, 'review'::text, 'administer'::text]) AND (rights <> '{}'::text[])))
);

CREATE TABLE lockkeeper.attempt_results (
    attempt_id uuid NOT NULL,
    result jsonb NOT NULL,
    confidence real,
    pages integer,
    report jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL
);

CREATE TABLE lockkeeper.budget_alerts (
    scope text NOT NULL,
    name text NOT NULL,
    period text NOT NULL,
    begins date NOT NULL,
    share numeric NOT NULL,
    budget numeric NOT NULL,
    spent numeric NOT NULL,
    reserved numeric NOT NULL,
    at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    CONSTRAINT budget_alerts_period_check CHECK ((period = ANY (ARRAY['day'::text, 'month'::text])))
);

CREATE TABLE lockkeeper.customers (
    name text NOT NULL,
    daily_budget numeric,
    monthly_budget numeric,
    version bigint DEFAULT 1 NOT NULL,
    updated_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    updated_by text DEFAULT CURRENT_USER NOT NULL,
    CONSTRAINT customers_daily_budget_check CHECK ((daily_budget >= (0)::numeric)),
    CONSTRAINT customers_monthly_budget_check CHECK ((monthly_budget >= (0)::numeric)),
    CONSTRAINT customers_name_check CHECK ((name <> ''::text))
);

CREATE TABLE lockkeeper.reservations (
    attempt_id uuid NOT NULL,
    agent text NOT NULL,
    customer text,
    day date NOT NULL,
    amount numeric NOT NULL
);

CREATE TABLE lockkeeper.spending (
    scope text NOT NULL,
    name text NOT NULL,
    day date NOT NULL,
    llm_cost numeric DEFAULT 0 NOT NULL,
    compute_cost numeric DEFAULT 0 NOT NULL,
    CONSTRAINT spending_scope_check CHECK ((scope = ANY (ARRAY['agent'::text, 'customer'::text])))
)
WITH (fillfactor='50');

CREATE VIEW lockkeeper.budget_state AS
 SELECT b.scope,
    b.name,
    b.daily_budget,
    b.monthly_budget,
    s.spent_today,
    s.spent_this_month,
    r.reserved_today,
    r.reserved_this_month,
    LEAST(((b.daily_budget - s.spent_today) - r.reserved_today), ((b.monthly_budget - s.spent_this_month) - r.reserved_this_month)) AS cost_left,
        CASE
            WHEN (((b.monthly_budget - s.spent_this_month) - r.reserved_this_month) <= COALESCE(((b.daily_budget - s.spent_today) - r.reserved_today), 'Infinity'::numeric)) THEN lockkeeper.next_period('month'::text)
            ELSE lockkeeper.next_period('day'::text)
        END AS renewed_at
   FROM (((( SELECT 'agent'::text AS scope,
            agents.name,
            agents.daily_budget,
            agents.monthly_budget
           FROM lockkeeper.agents
        UNION ALL
         SELECT 'customer'::text,
            customers.name,
            customers.daily_budget,
            customers.monthly_budget
           FROM lockkeeper.customers) b
     CROSS JOIN LATERAL ( SELECT ((lockkeeper.clock() AT TIME ZONE 'UTC'::text))::date AS today,
            (date_trunc('month'::text, (lockkeeper.clock() AT TIME ZONE 'UTC'::text)))::date AS month) p)
     CROSS JOIN LATERAL ( SELECT COALESCE(sum((s_1.llm_cost + s_1.compute_cost)) FILTER (WHERE (s_1.day = p.today)), (0)::numeric) AS spent_today,
            COALESCE(sum((s_1.llm_cost + s_1.compute_cost)), (0)::numeric) AS spent_this_month
           FROM lockkeeper.spending s_1
          WHERE ((s_1.scope = b.scope) AND (s_1.name = b.name) AND (s_1.day >= p.month))) s)
     CROSS JOIN LATERAL ( SELECT COALESCE(sum(r_1.amount) FILTER (WHERE (r_1.day = p.today)), (0)::numeric) AS reserved_today,
            COALESCE(sum(r_1.amount), (0)::numeric) AS reserved_this_month
           FROM (( SELECT o.attempt_id,
                    o.day,
                    o.amount
                   FROM lockkeeper.reservations o
                  WHERE ((b.scope = 'agent'::text) AND (o.agent = b.name))
                UNION ALL
                 SELECT o.attempt_id,
                    o.day,
                    o.amount
                   FROM lockkeeper.reservations o
                  WHERE ((b.scope = 'customer'::text) AND (o.customer = b.name))) r_1
             JOIN lockkeeper.task_attempts x ON ((x.id = r_1.attempt_id)))
          WHERE ((r_1.day >= p.month) AND (x.llm_cost IS NULL) AND (x.status <> 'released'::text) AND ((x.finished_at IS NULL) OR (x.run_id IS NOT NULL)))) r)
  WHERE (COALESCE(b.daily_budget, b.monthly_budget) IS NOT NULL);

CREATE TABLE lockkeeper.closed_bills (
    run_id bigint NOT NULL,
    closed_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL
);

CREATE TABLE lockkeeper.cost_entry_versions (
    source text CONSTRAINT cost_entries_source_not_null NOT NULL,
    record_id text CONSTRAINT cost_entries_record_id_not_null NOT NULL,
    attempt_id uuid CONSTRAINT cost_entries_attempt_id_not_null NOT NULL,
    task_id uuid CONSTRAINT cost_entries_task_id_not_null NOT NULL,
    kind text CONSTRAINT cost_entries_kind_not_null NOT NULL,
    model text,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    quantity numeric,
    unit text,
    sku text,
    amount numeric,
    currency text CONSTRAINT cost_entries_currency_not_null NOT NULL,
    priced_by text,
    price_id bigint,
    record_type text,
    usage_start_at timestamp with time zone,
    usage_end_at timestamp with time zone,
    recorded_at timestamp with time zone CONSTRAINT cost_entries_recorded_at_not_null NOT NULL,
    agent text,
    customer text,
    parts jsonb,
    list_amount numeric,
    is_whole boolean CONSTRAINT cost_entries_is_whole_not_null NOT NULL,
    version integer CONSTRAINT cost_entries_version_not_null NOT NULL,
    reason text CONSTRAINT cost_entries_reason_not_null NOT NULL,
    replaced_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE VIEW lockkeeper.cost_forecast AS
 WITH history AS MATERIALIZED (
         SELECT a_1.name AS agent,
            h_1.llm_tasks,
            h_1.llm_cost,
            h_1.llm_tokens,
            h_1.compute_tasks,
            h_1.compute_cost,
            h_1.compute_tokens
           FROM (lockkeeper.agents a_1
             CROSS JOIN LATERAL ( SELECT count(c.llm_cost) AS llm_tasks,
                    sum(c.llm_cost) AS llm_cost,
                    sum(p.tokens) FILTER (WHERE (c.llm_cost IS NOT NULL)) AS llm_tokens,
                    count(c.compute_cost) AS compute_tasks,
                    sum(c.compute_cost) AS compute_cost,
                    sum(p.tokens) FILTER (WHERE (c.compute_cost IS NOT NULL)) AS compute_tokens
                   FROM (( SELECT t_1.id,
                            COALESCE(t_1.estimated_tokens, a_1.default_tokens) AS tokens
                           FROM lockkeeper.tasks t_1
                          WHERE ((t_1.agent = a_1.name) AND (t_1.status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])) AND (t_1.created_at >= (lockkeeper.clock() - '30 days'::interval)))
                          ORDER BY t_1.created_at DESC, t_1.id DESC
                         LIMIT 1000) p
                     JOIN lockkeeper.task_costs c ON ((c.task_id = p.id)))
                  WHERE (c.attempts > 0)) h_1)
        )
 SELECT t.id AS task_id,
    t.agent,
    t.customer,
    t.created_at,
    COALESCE(t.estimated_tokens, a.default_tokens) AS tokens,
    (((COALESCE(t.estimated_tokens, a.default_tokens))::numeric * h.llm_cost) / NULLIF(h.llm_tokens, (0)::numeric)) AS llm_forecast,
    (((COALESCE(t.estimated_tokens, a.default_tokens))::numeric * h.compute_cost) / NULLIF(h.compute_tokens, (0)::numeric)) AS compute_forecast,
    'USD'::text AS currency,
    COALESCE(h.llm_tasks, (0)::bigint) AS llm_tasks,
    COALESCE(h.compute_tasks, (0)::bigint) AS compute_tasks
   FROM ((lockkeeper.tasks t
     LEFT JOIN lockkeeper.agents a ON ((a.name = t.agent)))
     LEFT JOIN history h ON ((h.agent = t.agent)))
  WHERE (t.status = 'enqueued'::text);

CREATE VIEW lockkeeper.cost_reconciliation AS
 WITH second AS (
         SELECT d.agent,
            d.day,
            (sum(d.cost) OVER before / NULLIF(sum(d.seconds) OVER before, (0)::numeric)) AS price
           FROM ( SELECT x.agent,
                    ((x.leased_at AT TIME ZONE 'UTC'::text))::date AS day,
                    sum(x.compute_cost) AS cost,
                    sum(EXTRACT(epoch FROM (x.finished_at - COALESCE(x.started_at, x.submitted_at, x.leased_at)))) FILTER (WHERE (x.compute_cost IS NOT NULL)) AS seconds
                   FROM lockkeeper.task_attempts x
                  WHERE (x.run_id IS NOT NULL)
                  GROUP BY x.agent, (((x.leased_at AT TIME ZONE 'UTC'::text))::date)) d
          WINDOW before AS (PARTITION BY d.agent ORDER BY d.day RANGE BETWEEN '30 days'::interval PRECEDING AND '1 day'::interval PRECEDING)
        ), compute AS (
         SELECT x.task_id,
            x.agent,
            x.compute_cost AS bill,
                CASE
                    WHEN (x.run_id IS NOT NULL) THEN round((s.price * EXTRACT(epoch FROM (x.finished_at - COALESCE(x.started_at, x.submitted_at, x.leased_at)))), 9)
                    ELSE NULL::numeric
                END AS estimate,
            COALESCE(c.corrections, (0)::numeric) AS corrections,
            COALESCE(c.unpriced, (0)::bigint) AS unpriced
           FROM ((lockkeeper.task_attempts x
             LEFT JOIN second s ON (((s.agent = x.agent) AND (s.day = ((x.leased_at AT TIME ZONE 'UTC'::text))::date))))
             LEFT JOIN LATERAL ( SELECT sum(c_1.amount) FILTER (WHERE ((c_1.record_type <> 'ORIGINAL'::text) AND (c_1.currency = 'USD'::text))) AS corrections,
                    count(*) FILTER (WHERE (c_1.amount IS NULL)) AS unpriced
                   FROM lockkeeper.cost_entries c_1
                  WHERE ((c_1.attempt_id = x.id) AND (c_1.kind = 'compute'::text))) c ON (true))
          WHERE (x.status <> 'released'::text)
        ), line AS (
         SELECT l.source,
            l.record_id,
            l.attempt_id,
            l.task_id,
            l.kind,
            l.model,
            l.input_tokens,
            l.output_tokens,
            l.cache_read_tokens,
            l.cache_write_tokens,
            l.quantity,
            l.unit,
            l.sku,
            l.amount,
            l.list_amount,
            l.currency,
            l.priced_by,
            l.price_id,
            l.record_type,
            l.usage_start_at,
            l.usage_end_at,
            l.recorded_at,
            l.is_whole,
            l.version,
            l.reason,
            l.parts,
            l.agent,
            l.customer,
            l.attempt,
            l.outcome,
            l.run_id,
            l.pages,
            l.task_created_at,
                CASE l.priced_by
                    WHEN 'price_table'::text THEN COALESCE(l.list_amount, l.amount)
                    ELSE l.list_amount
                END AS listed
           FROM lockkeeper.cost_lines l
          WHERE (l.kind = 'llm'::text)
        )
 SELECT l.task_id,
    l.agent,
    'llm'::text AS part,
    l.currency,
    sum(l.listed) AS estimate,
    sum(l.amount) AS bill,
    (COALESCE(sum(l.amount), (0)::numeric) - COALESCE(sum(l.listed), (0)::numeric)) AS gap,
    COALESCE(sum((l.amount - l.listed)) FILTER (WHERE (l.priced_by = 'trace'::text)), (0)::numeric) AS named_by_trace,
    COALESCE(sum(l.amount) FILTER (WHERE (l.listed IS NULL)), (0)::numeric) AS not_in_table,
    COALESCE(sum((l.amount - l.listed)) FILTER (WHERE (l.priced_by = 'price_table'::text)), (0)::numeric) AS older_price,
    (0)::numeric AS not_billed_yet,
    (0)::numeric AS no_estimate,
    (0)::numeric AS corrections,
    (0)::numeric AS rate,
    (0)::bigint AS pending_attempts,
    count(*) FILTER (WHERE (l.amount IS NULL)) AS unpriced_lines
   FROM line l
  GROUP BY l.task_id, l.agent, l.currency
UNION ALL
 SELECT c.task_id,
    c.agent,
    'compute'::text AS part,
    'USD'::text AS currency,
    sum(c.estimate) AS estimate,
    sum(c.bill) AS bill,
    (COALESCE(sum(c.bill), (0)::numeric) - COALESCE(sum(c.estimate), (0)::numeric)) AS gap,
    0 AS named_by_trace,
    0 AS not_in_table,
    0 AS older_price,
    (- COALESCE(sum(c.estimate) FILTER (WHERE (c.bill IS NULL)), (0)::numeric)) AS not_billed_yet,
    COALESCE(sum(c.bill) FILTER (WHERE (c.estimate IS NULL)), (0)::numeric) AS no_estimate,
    COALESCE(sum(c.corrections) FILTER (WHERE ((c.bill IS NOT NULL) AND (c.estimate IS NOT NULL))), (0)::numeric) AS corrections,
    COALESCE(sum(((c.bill - c.estimate) - c.corrections)), (0)::numeric) AS rate,
    count(*) FILTER (WHERE (c.bill IS NULL)) AS pending_attempts,
    (sum(c.unpriced))::bigint AS unpriced_lines
   FROM compute c
  GROUP BY c.task_id, c.agent;

CREATE TABLE lockkeeper.cost_requests (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    locked_by text,
    lease_expires_at timestamp with time zone,
    attempts_billed integer,
    records integer,
    error text,
    finished_at timestamp with time zone,
    CONSTRAINT cost_requests_check CHECK ((to_at > from_at)),
    CONSTRAINT cost_requests_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'done'::text, 'failed'::text])))
);

CREATE VIEW lockkeeper.customer_costs WITH (security_barrier='true') AS
 SELECT task_id,
    agent,
    customer,
    status,
    created_at,
    finished_at,
    document_id,
    attempts,
    pages,
    input_tokens,
    output_tokens,
    cache_read_tokens,
    cache_write_tokens,
    llm_cost,
    compute_cost,
    retry_cost,
    currency,
    cost_status,
    superseded_cost,
    compute_status
   FROM lockkeeper.task_costs c
  WHERE lockkeeper.may_read(customer);

CREATE TABLE lockkeeper.deployment (
    only_row boolean DEFAULT true NOT NULL,
    database oid NOT NULL,
    branch text NOT NULL,
    adopted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    adopted_by text DEFAULT SESSION_USER NOT NULL,
    CONSTRAINT deployment_only_row_check CHECK (only_row)
);

CREATE TABLE lockkeeper.duties (
    duty text NOT NULL,
    holder text NOT NULL,
    term bigint DEFAULT 1 NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE lockkeeper.fair_shares (
    agent text NOT NULL,
    customer text NOT NULL,
    started double precision NOT NULL,
    finished double precision NOT NULL
)
WITH (fillfactor='50');

CREATE VIEW lockkeeper.families AS
 SELECT p.id AS parent_id,
    p.agent,
    p.gather,
    p.status,
    c.children,
    c.enqueued,
    c.processing,
    c.completed,
    c.failed,
    c.cancelled
   FROM (lockkeeper.tasks p
     CROSS JOIN LATERAL ( SELECT count(*) AS children,
            count(*) FILTER (WHERE (k.status = 'enqueued'::text)) AS enqueued,
            count(*) FILTER (WHERE (k.status = 'processing'::text)) AS processing,
            count(*) FILTER (WHERE (k.status = 'completed'::text)) AS completed,
            count(*) FILTER (WHERE (k.status = 'failed'::text)) AS failed,
            count(*) FILTER (WHERE (k.status = 'cancelled'::text)) AS cancelled
           FROM lockkeeper.tasks k
          WHERE ((k.parent_task_id = p.id) AND (NOT (EXISTS ( SELECT
                   FROM lockkeeper.tasks n
                  WHERE ((n.source_task_id = k.id) AND (n.parent_task_id = p.id))))))) c)
  WHERE (p.gather IS NOT NULL);

CREATE VIEW lockkeeper.family_costs AS
 SELECT p.id AS parent_id,
    c.input_tokens,
    c.output_tokens,
    c.cache_read_tokens,
    c.cache_write_tokens,
    c.llm_cost,
    c.compute_cost,
    c.retry_cost,
    c.currency,
    c.cost_status
   FROM (lockkeeper.tasks p
     CROSS JOIN LATERAL ( SELECT (sum(k.input_tokens))::bigint AS input_tokens,
            (sum(k.output_tokens))::bigint AS output_tokens,
            (sum(k.cache_read_tokens))::bigint AS cache_read_tokens,
            (sum(k.cache_write_tokens))::bigint AS cache_write_tokens,
            sum(k.llm_cost) AS llm_cost,
            sum(k.compute_cost) AS compute_cost,
            sum(k.retry_cost) AS retry_cost,
            COALESCE(min(k.currency), 'USD'::text) AS currency,
                CASE
                    WHEN (count(*) = 0) THEN 'final'::text
                    WHEN bool_or((k.cost_status = 'pending'::text)) THEN 'pending'::text
                    WHEN bool_or((k.cost_status = 'unknown'::text)) THEN 'unknown'::text
                    WHEN bool_or((k.cost_status = 'partial'::text)) THEN 'partial'::text
                    ELSE 'final'::text
                END AS cost_status
           FROM (lockkeeper.tasks t
             JOIN lockkeeper.task_costs k ON ((k.task_id = t.id)))
          WHERE ((t.parent_task_id = p.id) AND (k.attempts > 0))) c)
  WHERE (p.gather IS NOT NULL);

CREATE TABLE lockkeeper.model_prices (
    id bigint NOT NULL,
    model text NOT NULL,
    currency text DEFAULT 'USD'::text NOT NULL,
    input_price numeric NOT NULL,
    output_price numeric NOT NULL,
    cache_read_price numeric DEFAULT 0 NOT NULL,
    cache_write_price numeric DEFAULT 0 NOT NULL,
    valid_from timestamp with time zone NOT NULL,
    valid_to timestamp with time zone,
    note text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    created_by text DEFAULT CURRENT_USER NOT NULL,
    CONSTRAINT model_prices_cache_read_price_check CHECK ((cache_read_price >= (0)::numeric)),
    CONSTRAINT model_prices_cache_write_price_check CHECK ((cache_write_price >= (0)::numeric)),
    CONSTRAINT model_prices_check CHECK ((valid_to > valid_from)),
    CONSTRAINT model_prices_input_price_check CHECK ((input_price >= (0)::numeric)),
    CONSTRAINT model_prices_output_price_check CHECK ((output_price >= (0)::numeric))
);

ALTER TABLE lockkeeper.model_prices ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lockkeeper.model_prices_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW lockkeeper.model_usage AS
 SELECT l.task_id,
    l.attempt_id,
    l.source,
    l.record_id,
    l.agent,
    l.customer,
    l.outcome,
    l.currency,
    l.task_created_at,
    u.model,
    u.input_tokens,
    u.output_tokens,
    u.cache_read_tokens,
    u.cache_write_tokens,
    u.amount
   FROM (lockkeeper.cost_lines l
     CROSS JOIN LATERAL ( SELECT l.model,
            l.input_tokens,
            l.output_tokens,
            l.cache_read_tokens,
            l.cache_write_tokens,
            l.amount
          WHERE (l.parts IS NULL)
        UNION ALL
         SELECT p.model,
            p.input_tokens,
            p.output_tokens,
            p.cache_read_tokens,
            p.cache_write_tokens,
                CASE
                    WHEN (l.amount IS NULL) THEN NULL::numeric
                    WHEN (p.number = 1) THEN ((l.amount - COALESCE(sum(own.amount) OVER (), (0)::numeric)) + COALESCE(own.amount, (0)::numeric))
                    ELSE own.amount
                END AS amount
           FROM (ROWS FROM(jsonb_to_recordset(l.parts) AS (model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint)) WITH ORDINALITY p(model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, number)
             LEFT JOIN LATERAL ( SELECT ((((((p.input_tokens)::numeric * m.input_price) + ((p.output_tokens)::numeric * m.output_price)) + ((p.cache_read_tokens)::numeric * m.cache_read_price)) + ((p.cache_write_tokens)::numeric * m.cache_write_price)) * 0.000001) AS amount
                   FROM lockkeeper.model_prices m
                  WHERE ((m.model = p.model) AND (m.currency = l.currency) AND (m.valid_from <= l.usage_start_at) AND ((m.valid_to IS NULL) OR (l.usage_start_at < m.valid_to)))
                  ORDER BY m.valid_from DESC
                 LIMIT 1) own ON (true))
          WHERE (l.parts IS NOT NULL)) u)
  WHERE ((l.kind = 'llm'::text) AND ((l.model IS NOT NULL) OR (l.input_tokens > 0) OR (l.output_tokens > 0)));

CREATE TABLE lockkeeper.operator_audit (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    before jsonb,
    after jsonb,
    note text
);

CREATE TABLE lockkeeper.retired_prices (
    id bigint CONSTRAINT model_prices_id_not_null NOT NULL,
    model text CONSTRAINT model_prices_model_not_null NOT NULL,
    currency text CONSTRAINT model_prices_currency_not_null NOT NULL,
    input_price numeric CONSTRAINT model_prices_input_price_not_null NOT NULL,
    output_price numeric CONSTRAINT model_prices_output_price_not_null NOT NULL,
    cache_read_price numeric CONSTRAINT model_prices_cache_read_price_not_null NOT NULL,
    cache_write_price numeric CONSTRAINT model_prices_cache_write_price_not_null NOT NULL,
    valid_from timestamp with time zone CONSTRAINT model_prices_valid_from_not_null NOT NULL,
    valid_to timestamp with time zone,
    note text CONSTRAINT model_prices_note_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT model_prices_created_at_not_null NOT NULL,
    created_by text CONSTRAINT model_prices_created_by_not_null NOT NULL,
    retired_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    retired_by text DEFAULT lockkeeper.actor() NOT NULL
);

CREATE VIEW lockkeeper.prices_ever AS
 SELECT p.id,
    p.model,
    p.currency,
    p.input_price,
    p.output_price,
    p.cache_read_price,
    p.cache_write_price,
    p.valid_from,
    p.valid_to,
    p.note,
    p.created_at,
    p.created_by,
    NULL::timestamp with time zone AS retired_at,
    NULL::text AS retired_by
   FROM lockkeeper.model_prices p
UNION ALL
 SELECT retired_prices.id,
    retired_prices.model,
    retired_prices.currency,
    retired_prices.input_price,
    retired_prices.output_price,
    retired_prices.cache_read_price,
    retired_prices.cache_write_price,
    retired_prices.valid_from,
    retired_prices.valid_to,
    retired_prices.note,
    retired_prices.created_at,
    retired_prices.created_by,
    retired_prices.retired_at,
    retired_prices.retired_by
   FROM lockkeeper.retired_prices;

CREATE VIEW lockkeeper.queue_state AS
 SELECT a.name AS agent,
    a.paused,
    h.running,
    h.max_concurrent_tasks,
    h.reserved_tpm,
    h.used_tpm,
    h.max_tpm,
    r.waiting,
    COALESCE(d.deferred, (0)::bigint) AS deferred,
    r.oldest_created_at,
    EXTRACT(epoch FROM (lockkeeper.clock() - r.oldest_created_at)) AS oldest_waiting_seconds
   FROM (((lockkeeper.agents a
     JOIN lockkeeper.agent_headroom h ON ((h.agent = a.name)))
     CROSS JOIN LATERAL ( SELECT count(*) AS waiting,
            min(t.created_at) AS oldest_created_at
           FROM lockkeeper.tasks t
          WHERE ((t.agent = a.name) AND (t.status = 'enqueued'::text) AND (NOT t.deferred))) r)
     LEFT JOIN ( SELECT t.agent,
            count(*) AS deferred
           FROM lockkeeper.tasks t
          WHERE ((t.status = 'enqueued'::text) AND t.deferred)
          GROUP BY t.agent) d ON ((d.agent = a.name)));

CREATE TABLE lockkeeper.reader_customers (
    reader name NOT NULL,
    customer text NOT NULL
);

CREATE TABLE lockkeeper.recovered_results (
    attempt_id uuid NOT NULL,
    found_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    settled_at timestamp with time zone
);

CREATE TABLE lockkeeper.replicas (
    id text NOT NULL,
    service text NOT NULL,
    started_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    stopped_at timestamp with time zone,
    info jsonb DEFAULT '{}'::jsonb NOT NULL
);

CREATE TABLE lockkeeper.repricings (
    id uuid DEFAULT lockkeeper.uuid7() NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    models text[],
    status text DEFAULT 'pending'::text NOT NULL,
    locked_by text,
    lease_expires_at timestamp with time zone,
    lines bigint DEFAULT 0 NOT NULL,
    changed bigint DEFAULT 0 NOT NULL,
    after_attempt uuid,
    difference jsonb DEFAULT '{}'::jsonb NOT NULL,
    error text,
    finished_at timestamp with time zone,
    CONSTRAINT repricings_check CHECK ((to_at > from_at)),
    CONSTRAINT repricings_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'done'::text, 'failed'::text])))
);

CREATE VIEW lockkeeper.task_contributions AS
 SELECT t.id AS task_id,
    t.version,
    t.agent,
    COALESCE(t.customer, ''::text) AS customer,
    t.status,
    t.created_at,
    t.finished_at,
        CASE
            WHEN (t.status = 'completed'::text) THEN lockkeeper.response_class((EXTRACT(epoch FROM (t.finished_at - t.created_at)))::double precision)
            ELSE (0)::smallint
        END AS class,
        CASE
            WHEN (t.status = 'completed'::text) THEN t.confidence
            ELSE NULL::real
        END AS confidence,
    x.attempts,
    x.input_tokens,
    x.output_tokens,
    x.cache_read_tokens,
    x.cache_write_tokens,
    x.llm_cost,
    x.compute_cost,
    x.currency,
    x.llm_cost_pending,
    x.compute_cost_pending
   FROM (lockkeeper.tasks t
     CROSS JOIN LATERAL ( SELECT (count(*))::integer AS attempts,
            (sum(a.input_tokens))::bigint AS input_tokens,
            (sum(a.output_tokens))::bigint AS output_tokens,
            (sum(a.cache_read_tokens))::bigint AS cache_read_tokens,
            (sum(a.cache_write_tokens))::bigint AS cache_write_tokens,
            sum(a.llm_cost) AS llm_cost,
            sum(a.compute_cost) AS compute_cost,
            COALESCE(min(a.currency), 'USD'::text) AS currency,
            (count(*) FILTER (WHERE (a.llm_cost IS NULL)))::integer AS llm_cost_pending,
            (count(*) FILTER (WHERE (a.compute_cost IS NULL)))::integer AS compute_cost_pending
           FROM lockkeeper.task_attempts a
          WHERE ((a.task_id = t.id) AND (a.status <> 'released'::text))) x);

CREATE TABLE lockkeeper.task_counted (
    task_id uuid NOT NULL,
    version integer NOT NULL,
    agent text NOT NULL,
    customer text NOT NULL,
    status text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    class smallint NOT NULL,
    confidence real,
    attempts integer NOT NULL,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    llm_cost numeric,
    compute_cost numeric,
    currency text NOT NULL,
    llm_cost_pending integer NOT NULL,
    compute_cost_pending integer NOT NULL
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE lockkeeper.task_events (
    task_id uuid NOT NULL,
    version integer NOT NULL,
    at timestamp with time zone NOT NULL,
    verb text NOT NULL,
    status text NOT NULL,
    attempt integer NOT NULL,
    agent text NOT NULL,
    running smallint NOT NULL,
    reserved_tpm bigint NOT NULL,
    actor text NOT NULL,
    reason text
);

CREATE VIEW lockkeeper.task_history AS
 SELECT t.id AS task_id,
    1 AS version,
    t.created_at AS at,
    'enqueue'::text AS verb,
    'enqueued'::text AS status,
    0 AS attempt,
    t.agent,
    t.created_by AS actor,
    NULL::text AS reason
   FROM lockkeeper.tasks t
UNION ALL
 SELECT e.task_id,
    e.version,
    e.at,
    e.verb,
    e.status,
    e.attempt,
    e.agent,
    e.actor,
    e.reason
   FROM lockkeeper.task_events e;

CREATE TABLE lockkeeper.task_totals (
    grain text NOT NULL,
    customer text NOT NULL,
    bucket timestamp with time zone NOT NULL,
    agent text NOT NULL,
    status text NOT NULL,
    class smallint NOT NULL,
    currency text NOT NULL,
    tasks bigint NOT NULL,
    attempts bigint NOT NULL,
    judged bigint NOT NULL,
    confidence double precision NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    llm_cost numeric NOT NULL,
    compute_cost numeric NOT NULL,
    llm_cost_pending bigint NOT NULL,
    compute_cost_pending bigint NOT NULL,
    CONSTRAINT task_totals_grain_check CHECK ((grain = ANY (ARRAY['hour'::text, 'day'::text, 'ended'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE lockkeeper.totals_state (
    is_only boolean DEFAULT true NOT NULL,
    counted_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    walked_to uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    walked_at timestamp with time zone,
    CONSTRAINT totals_state_is_only_check CHECK (is_only)
);

CREATE TABLE lockkeeper.watched_attempts (
    attempt_id uuid NOT NULL,
    watched_at timestamp with time zone DEFAULT lockkeeper.clock() NOT NULL,
    judged boolean DEFAULT false NOT NULL
);

ALTER TABLE ONLY agent_ops.agent_messages
    ADD CONSTRAINT agent_messages_pkey PRIMARY KEY (message_id);

ALTER TABLE ONLY agent_ops.agent_review_decisions
    ADD CONSTRAINT agent_review_decisions_pkey PRIMARY KEY (decision_id);

ALTER TABLE ONLY agent_ops.agent_runs
    ADD CONSTRAINT agent_runs_idempotency_key_key UNIQUE (idempotency_key);

ALTER TABLE ONLY agent_ops.agent_runs
    ADD CONSTRAINT agent_runs_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY agent_ops.agent_runs
    ADD CONSTRAINT agent_runs_workflow_id_key UNIQUE (workflow_id);

ALTER TABLE ONLY agent_ops.agent_tool_calls
    ADD CONSTRAINT agent_tool_calls_pkey PRIMARY KEY (tool_call_id);

ALTER TABLE ONLY agent_ops.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (event_id);

ALTER TABLE ONLY agent_ops.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (metric_id);

ALTER TABLE ONLY agent_policy.underwriting_policy_limits
    ADD CONSTRAINT underwriting_policy_limits_pkey PRIMARY KEY (purpose);

ALTER TABLE ONLY lockkeeper.agent_changes
    ADD CONSTRAINT agent_changes_pkey PRIMARY KEY (agent, version);

ALTER TABLE ONLY lockkeeper.agent_circuits
    ADD CONSTRAINT agent_circuits_pkey PRIMARY KEY (agent);

ALTER TABLE ONLY lockkeeper.agent_estimates
    ADD CONSTRAINT agent_estimates_pkey PRIMARY KEY (agent);

ALTER TABLE ONLY lockkeeper.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (name);

ALTER TABLE ONLY lockkeeper.api_tokens
    ADD CONSTRAINT api_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.attempt_results
    ADD CONSTRAINT attempt_results_pkey PRIMARY KEY (attempt_id);

ALTER TABLE lockkeeper.tasks
    ADD CONSTRAINT available_within_reach CHECK (((available_at > '1900-01-01 00:00:00+00'::timestamp with time zone) AND (available_at < '9999-12-31 00:00:00+00'::timestamp with time zone))) NOT VALID;

ALTER TABLE ONLY lockkeeper.budget_alerts
    ADD CONSTRAINT budget_alerts_pkey PRIMARY KEY (scope, name, period, begins, share);

ALTER TABLE ONLY lockkeeper.closed_bills
    ADD CONSTRAINT closed_bills_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY lockkeeper.cost_entries
    ADD CONSTRAINT cost_entries_pkey PRIMARY KEY (source, record_id, attempt_id);

ALTER TABLE lockkeeper.cost_entries
    ADD CONSTRAINT cost_entries_source_check CHECK ((source = ANY (ARRAY['trace'::text, 'callback'::text, 'billing'::text, 'underwriting'::text]))) NOT VALID;

ALTER TABLE ONLY lockkeeper.cost_entry_versions
    ADD CONSTRAINT cost_entry_versions_pkey PRIMARY KEY (attempt_id, source, record_id, version);

ALTER TABLE ONLY lockkeeper.cost_requests
    ADD CONSTRAINT cost_requests_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.customers
    ADD CONSTRAINT customers_pkey PRIMARY KEY (name);

ALTER TABLE ONLY lockkeeper.deployment
    ADD CONSTRAINT deployment_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY lockkeeper.documents
    ADD CONSTRAINT documents_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.documents
    ADD CONSTRAINT documents_volume_path_key UNIQUE (volume_path);

ALTER TABLE ONLY lockkeeper.duties
    ADD CONSTRAINT duties_pkey PRIMARY KEY (duty);

ALTER TABLE ONLY lockkeeper.fair_shares
    ADD CONSTRAINT fair_shares_pkey PRIMARY KEY (agent, customer);

ALTER TABLE ONLY lockkeeper.model_prices
    ADD CONSTRAINT model_prices_model_currency_valid_from_key UNIQUE (model, currency, valid_from);

ALTER TABLE ONLY lockkeeper.model_prices
    ADD CONSTRAINT model_prices_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.operator_audit
    ADD CONSTRAINT operator_audit_pkey PRIMARY KEY (id);

ALTER TABLE lockkeeper.tasks
    ADD CONSTRAINT parents_only_wait CHECK (((gather IS NULL) OR ((gather = ANY (ARRAY['all_completed'::text, 'any_completed'::text, 'all_ended'::text])) AND (status <> 'processing'::text) AND (deferred = (status = 'enqueued'::text)) AND (parent_task_id IS NULL)))) NOT VALID;

ALTER TABLE ONLY lockkeeper.reader_customers
    ADD CONSTRAINT reader_customers_pkey PRIMARY KEY (reader, customer);

ALTER TABLE ONLY lockkeeper.recovered_results
    ADD CONSTRAINT recovered_results_pkey PRIMARY KEY (attempt_id);

ALTER TABLE ONLY lockkeeper.replicas
    ADD CONSTRAINT replicas_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.repricings
    ADD CONSTRAINT repricings_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.reservations
    ADD CONSTRAINT reservations_pkey PRIMARY KEY (attempt_id);

ALTER TABLE ONLY lockkeeper.retired_prices
    ADD CONSTRAINT retired_prices_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.run_bills
    ADD CONSTRAINT run_bills_pkey PRIMARY KEY (run_id);

ALTER TABLE ONLY lockkeeper.spending
    ADD CONSTRAINT spending_pkey PRIMARY KEY (scope, name, day);

ALTER TABLE ONLY lockkeeper.task_attempts
    ADD CONSTRAINT task_attempts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.task_attempts
    ADD CONSTRAINT task_attempts_task_id_attempt_key UNIQUE (task_id, attempt);

ALTER TABLE ONLY lockkeeper.task_counted
    ADD CONSTRAINT task_counted_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY lockkeeper.task_events
    ADD CONSTRAINT task_events_pkey PRIMARY KEY (task_id, version);

ALTER TABLE ONLY lockkeeper.task_totals
    ADD CONSTRAINT task_totals_pkey PRIMARY KEY (grain, customer, agent, bucket, status, class, currency);

ALTER TABLE ONLY lockkeeper.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY lockkeeper.totals_state
    ADD CONSTRAINT totals_state_pkey PRIMARY KEY (is_only);

ALTER TABLE lockkeeper.model_prices
    ADD CONSTRAINT valid_within_reach CHECK (((valid_from > '1900-01-01 00:00:00+00'::timestamp with time zone) AND (valid_from < '9999-12-31 00:00:00+00'::timestamp with time zone) AND (valid_to < '9999-12-31 00:00:00+00'::timestamp with time zone))) NOT VALID;

ALTER TABLE ONLY lockkeeper.watched_attempts
    ADD CONSTRAINT watched_attempts_pkey PRIMARY KEY (attempt_id);

CREATE INDEX decisions_by_run ON agent_ops.agent_review_decisions USING btree (run_id, received_at);

CREATE INDEX decisions_to_deliver ON agent_ops.agent_review_decisions USING btree (next_delivery_at) WHERE (status = 'received'::text);

CREATE INDEX events_by_run ON agent_ops.events USING btree (run_id, at);

CREATE INDEX messages_by_run ON agent_ops.agent_messages USING btree (run_id, turn, "position");

CREATE INDEX metrics_by_run ON agent_ops.metrics USING btree (run_id, started_at);

CREATE INDEX metrics_by_time ON agent_ops.metrics USING btree (started_at);

CREATE INDEX metrics_open ON agent_ops.metrics USING btree (run_id, step_id) WHERE (outcome = 'running'::text);

CREATE UNIQUE INDEX one_deciding_decision ON agent_ops.agent_review_decisions USING btree (review_id) WHERE (effect = 'decided'::text);

CREATE INDEX runs_by_age ON agent_ops.agent_runs USING btree (created_at DESC, run_id DESC);

CREATE INDEX runs_by_user ON agent_ops.agent_runs USING btree (user_name, created_at DESC, run_id DESC);

CREATE INDEX runs_to_cancel ON agent_ops.agent_runs USING btree (next_cancel_at) WHERE (next_cancel_at IS NOT NULL);

CREATE INDEX runs_to_start ON agent_ops.agent_runs USING btree (next_start_at) WHERE (next_start_at IS NOT NULL);

CREATE INDEX tool_calls_by_run ON agent_ops.agent_tool_calls USING btree (run_id, turn, "position");

CREATE INDEX attempts_by_pack ON lockkeeper.task_attempts USING btree (pack_id) WHERE (pack_id IS NOT NULL);

CREATE INDEX attempts_to_cancel ON lockkeeper.task_attempts USING btree (cancel_requested_at) WHERE ((cancel_requested_at IS NOT NULL) AND (cancel_confirmed_at IS NULL));

CREATE INDEX attempts_to_cost ON lockkeeper.task_attempts USING btree (id) WHERE (cost_status = 'pending'::text);

CREATE INDEX budget_alerts_by_time ON lockkeeper.budget_alerts USING btree (at DESC);

CREATE INDEX cost_entries_by_attempt ON lockkeeper.cost_entries USING btree (attempt_id);

CREATE INDEX cost_entries_by_task ON lockkeeper.cost_entries USING btree (task_id);

CREATE INDEX cost_entries_by_time ON lockkeeper.cost_entries USING brin (recorded_at) WITH (pages_per_range='16', autosummarize='on');

CREATE INDEX cost_entries_in_other_currencies ON lockkeeper.cost_entries USING btree (task_id) WHERE (currency <> 'USD'::text);

CREATE INDEX cost_requests_open ON lockkeeper.cost_requests USING btree (requested_at) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));

CREATE INDEX documents_by_age ON lockkeeper.documents USING btree (created_at DESC, id DESC);

CREATE INDEX documents_by_digest ON lockkeeper.documents USING btree (sha256, created_at);

CREATE INDEX recovered_to_settle ON lockkeeper.recovered_results USING btree (found_at) WHERE (settled_at IS NULL);

CREATE INDEX repricings_open ON lockkeeper.repricings USING btree (requested_at) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));

CREATE INDEX reservations_by_agent ON lockkeeper.reservations USING btree (agent);

CREATE INDEX reservations_by_customer ON lockkeeper.reservations USING btree (customer) WHERE (customer IS NOT NULL);

CREATE INDEX run_bills_open ON lockkeeper.run_bills USING btree (submitted_at) WHERE (status = ANY (ARRAY['pending'::text, 'preliminary'::text]));

CREATE INDEX task_counted_by_age ON lockkeeper.task_counted USING btree (created_at);

CREATE INDEX task_counted_by_customer ON lockkeeper.task_counted USING btree (customer, created_at);

CREATE INDEX task_events_by_time ON lockkeeper.task_events USING brin (at) WITH (pages_per_range='16', autosummarize='on');

CREATE INDEX tasks_by_age ON lockkeeper.tasks USING btree (created_at DESC, id DESC);

CREATE INDEX tasks_by_document ON lockkeeper.tasks USING btree (document_id) WHERE (document_id IS NOT NULL);

CREATE INDEX tasks_by_source ON lockkeeper.tasks USING btree (source_task_id) WHERE (source_task_id IS NOT NULL);

CREATE INDEX tasks_children ON lockkeeper.tasks USING btree (parent_task_id) WHERE (parent_task_id IS NOT NULL);

CREATE INDEX tasks_deferred ON lockkeeper.tasks USING btree (available_at) WHERE ((status = 'enqueued'::text) AND deferred);

CREATE INDEX tasks_failed ON lockkeeper.tasks USING btree (agent, finished_at) WHERE (status = 'failed'::text);

CREATE INDEX tasks_gathering ON lockkeeper.tasks USING btree (id) WHERE ((gather IS NOT NULL) AND (status = 'enqueued'::text));

CREATE UNIQUE INDEX tasks_idempotency ON lockkeeper.tasks USING btree (idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE INDEX tasks_open_children ON lockkeeper.tasks USING btree (parent_task_id) WHERE ((parent_task_id IS NOT NULL) AND (status = ANY (ARRAY['enqueued'::text, 'processing'::text])));

CREATE INDEX tasks_processing ON lockkeeper.tasks USING btree (agent) WHERE (status = 'processing'::text);

CREATE INDEX tasks_ready ON lockkeeper.tasks USING btree (agent, priority DESC, created_at, id) WHERE ((status = 'enqueued'::text) AND (NOT deferred));

CREATE INDEX tasks_ready_by_customer ON lockkeeper.tasks USING btree (agent, customer, priority DESC, created_at, id) WHERE ((status = 'enqueued'::text) AND (NOT deferred) AND (customer IS NOT NULL));

CREATE INDEX token_spending_by_agent ON lockkeeper.token_spending USING btree (agent, at);

CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_messages FOR EACH ROW WHEN (((old.state = ANY (ARRAY['complete'::text, 'failed'::text])) AND (old.state <> new.state))) EXECUTE FUNCTION agent_ops.refuse_reopening();

CREATE TRIGGER refuse_reopening BEFORE UPDATE OF status ON agent_ops.agent_review_decisions FOR EACH ROW WHEN (((old.status = ANY (ARRAY['accepted'::text, 'refused'::text])) AND (old.status <> new.status))) EXECUTE FUNCTION agent_ops.refuse_reopening();

CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_runs FOR EACH ROW WHEN (((old.state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text])) AND (old.state <> new.state))) EXECUTE FUNCTION agent_ops.refuse_reopening();

CREATE TRIGGER refuse_reopening BEFORE UPDATE OF state ON agent_ops.agent_tool_calls FOR EACH ROW WHEN (((old.state = ANY (ARRAY['succeeded'::text, 'failed'::text])) AND (old.state <> new.state))) EXECUTE FUNCTION agent_ops.refuse_reopening();

CREATE TRIGGER close_bills AFTER DELETE ON lockkeeper.task_attempts REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper.close_bills();

CREATE TRIGGER guard_budgets BEFORE INSERT OR UPDATE ON lockkeeper.customers FOR EACH ROW EXECUTE FUNCTION lockkeeper.guard_limits();

CREATE TRIGGER guard_limits BEFORE UPDATE OF max_concurrent_tasks, max_tpm, paused ON lockkeeper.agents FOR EACH ROW WHEN (((old.max_concurrent_tasks IS DISTINCT FROM new.max_concurrent_tasks) OR (old.max_tpm IS DISTINCT FROM new.max_tpm) OR (old.paused <> new.paused))) EXECUTE FUNCTION lockkeeper.guard_limits();

CREATE TRIGGER guard_options BEFORE UPDATE OF backfill, fair_share, daily_budget, monthly_budget, circuit_failures ON lockkeeper.agents FOR EACH ROW WHEN (((old.backfill <> new.backfill) OR (old.fair_share <> new.fair_share) OR (old.daily_budget IS DISTINCT FROM new.daily_budget) OR (old.monthly_budget IS DISTINCT FROM new.monthly_budget) OR (old.circuit_failures IS DISTINCT FROM new.circuit_failures))) EXECUTE FUNCTION lockkeeper.guard_limits();

CREATE TRIGGER keep_entry BEFORE UPDATE ON lockkeeper.cost_entries FOR EACH ROW WHEN (((((((((((old.amount IS DISTINCT FROM new.amount) OR (old.currency IS DISTINCT FROM new.currency)) OR (old.quantity IS DISTINCT FROM new.quantity)) OR (old.input_tokens IS DISTINCT FROM new.input_tokens)) OR (old.output_tokens IS DISTINCT FROM new.output_tokens)) OR (old.cache_read_tokens IS DISTINCT FROM new.cache_read_tokens)) OR (old.cache_write_tokens IS DISTINCT FROM new.cache_write_tokens)) OR (old.model IS DISTINCT FROM new.model)) OR (old.priced_by IS DISTINCT FROM new.priced_by)) OR (old.price_id IS DISTINCT FROM new.price_id))) EXECUTE FUNCTION lockkeeper.keep_entry();

CREATE TRIGGER keep_price AFTER DELETE ON lockkeeper.model_prices FOR EACH ROW EXECUTE FUNCTION lockkeeper.keep_price();

CREATE TRIGGER log_agent_changed AFTER UPDATE ON lockkeeper.agents FOR EACH ROW WHEN ((old.version <> new.version)) EXECUTE FUNCTION lockkeeper.log_agent();

CREATE TRIGGER log_agent_created AFTER INSERT ON lockkeeper.agents FOR EACH ROW EXECUTE FUNCTION lockkeeper.log_agent();

CREATE TRIGGER log_changed AFTER UPDATE OF version ON lockkeeper.tasks FOR EACH ROW WHEN (((new.version <> old.version) AND (new.verb <> ALL (ARRAY['claim'::text, 'complete'::text, 'fail'::text, 'retry'::text])))) EXECUTE FUNCTION lockkeeper.log_changed();

CREATE TRIGGER mark_all_by_policy AFTER INSERT OR UPDATE ON lockkeeper.customers FOR EACH STATEMENT EXECUTE FUNCTION lockkeeper.mark_all_by_policy();

CREATE TRIGGER mark_by_policy BEFORE INSERT OR UPDATE OF backfill, fair_share, daily_budget, monthly_budget ON lockkeeper.agents FOR EACH ROW EXECUTE FUNCTION lockkeeper.mark_by_policy();

CREATE TRIGGER refuse_removal AFTER DELETE ON lockkeeper.tasks FOR EACH ROW WHEN ((old.finished_at IS NULL)) EXECUTE FUNCTION lockkeeper.refuse_removal();

CREATE TRIGGER refuse_transition AFTER UPDATE OF status ON lockkeeper.tasks FOR EACH ROW WHEN (((old.status <> new.status) AND (((old.status || '>'::text) || new.status) <> ALL (ARRAY['enqueued>processing'::text, 'enqueued>completed'::text, 'enqueued>failed'::text, 'enqueued>cancelled'::text, 'processing>enqueued'::text, 'processing>completed'::text, 'processing>failed'::text, 'processing>cancelled'::text])))) EXECUTE FUNCTION lockkeeper.refuse_transition();
