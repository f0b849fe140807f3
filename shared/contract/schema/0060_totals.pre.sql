-- Totals that stay quick with ten million tasks: kept beside the queue, never on its hot path.
--
-- A console counts what changed, a batch at a time: it writes down what each task counts for (`task_counted`) and
-- moves the cells of `task_totals` by the difference to what was written down before. So a task may be counted any
-- number of times, by a late commit or twice at once, and a cell is right all the same; nothing follows an id.
--
-- Response times stand in classes, each a tenth longer than the one before: a median or p95 read from them is at most
-- 5 % off.

CREATE FUNCTION lockkeeper.response_class(seconds double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(250, greatest(1, ceil(ln(greatest(seconds, 0.01) * 100) / ln(1.1))))::smallint $$;

-- The time at a part (0 to 1) of a class.
CREATE FUNCTION lockkeeper.response_seconds(class integer, part double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 0.01 * 1.1 ^ (class - 1 + part) $$;

-- What a task counts for, as it stands now. `customer` is '' for none, `class` 0 for a task that did not complete.
CREATE VIEW lockkeeper.task_contributions AS
SELECT t.id AS task_id, t.version, t.agent, coalesce(t.customer, '') AS customer, t.status, t.created_at, t.finished_at,
       CASE WHEN t.status = 'completed'
            THEN lockkeeper.response_class(extract(epoch FROM t.finished_at - t.created_at)::float8)
            ELSE 0::smallint END AS class,
       CASE WHEN t.status = 'completed' THEN t.confidence END AS confidence,
       x.attempts, x.input_tokens, x.output_tokens, x.cache_read_tokens, x.cache_write_tokens,
       x.llm_cost, x.compute_cost, x.currency, x.llm_cost_pending, x.compute_cost_pending
  FROM lockkeeper.tasks t
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS attempts, sum(a.input_tokens)::bigint AS input_tokens,
              sum(a.output_tokens)::bigint AS output_tokens, sum(a.cache_read_tokens)::bigint AS cache_read_tokens,
              sum(a.cache_write_tokens)::bigint AS cache_write_tokens,
              sum(a.llm_cost) AS llm_cost, sum(a.compute_cost) AS compute_cost,
              coalesce(min(a.currency), 'USD') AS currency,
              (count(*) FILTER (WHERE a.llm_cost IS NULL))::integer AS llm_cost_pending,
              (count(*) FILTER (WHERE a.compute_cost IS NULL))::integer AS compute_cost_pending
         FROM lockkeeper.task_attempts a WHERE a.task_id = t.id AND a.status <> 'released') x;

-- What each task was last counted for: the columns of `task_contributions` in their order.
CREATE TABLE lockkeeper.task_counted (
    task_id              uuid PRIMARY KEY,
    version              integer NOT NULL,
    agent                text NOT NULL,
    customer             text NOT NULL,
    status               text NOT NULL,
    created_at           timestamptz NOT NULL,
    finished_at          timestamptz,
    class                smallint NOT NULL,
    confidence           real,
    attempts             integer NOT NULL,
    input_tokens         bigint,
    output_tokens        bigint,
    cache_read_tokens    bigint,
    cache_write_tokens   bigint,
    llm_cost             numeric,
    compute_cost         numeric,
    currency             text NOT NULL,
    llm_cost_pending     integer NOT NULL,
    compute_cost_pending integer NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- What is less than a cell is added up from here. An index costs the queue nothing: nobody on its path writes this table.
CREATE INDEX task_counted_by_age ON lockkeeper.task_counted (created_at);
CREATE INDEX task_counted_by_customer ON lockkeeper.task_counted (customer, created_at);

-- The sums by hour and by day (UTC) of acceptance and by hour of the end (`grain` is 'ended', without classes): by agent
-- and over all agents (`agent` is '*') for all customers (`customer` is '*'); by day and customer ('' is none) over all
-- agents.
CREATE TABLE lockkeeper.task_totals (
    grain                text NOT NULL CHECK (grain IN ('hour', 'day', 'ended')),
    customer             text NOT NULL,
    bucket               timestamptz NOT NULL,
    agent                text NOT NULL,
    status               text NOT NULL,
    class                smallint NOT NULL,
    currency             text NOT NULL,
    tasks                bigint NOT NULL,
    attempts             bigint NOT NULL,
    judged               bigint NOT NULL,
    confidence           double precision NOT NULL,
    input_tokens         bigint NOT NULL,
    output_tokens        bigint NOT NULL,
    cache_read_tokens    bigint NOT NULL,
    cache_write_tokens   bigint NOT NULL,
    llm_cost             numeric NOT NULL,
    compute_cost         numeric NOT NULL,
    llm_cost_pending     bigint NOT NULL,
    compute_cost_pending bigint NOT NULL,
    PRIMARY KEY (grain, customer, agent, bucket, status, class, currency)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- How far the counting is: what was committed by `counted_at` is in the totals, but for what committed late, which the
-- walk through all tasks finds; `walked_to` is where it stands.
CREATE TABLE lockkeeper.totals_state (
    is_only    boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    counted_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    walked_to  uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    -- When the walk last came to its end.
    walked_at  timestamptz
);
INSERT INTO lockkeeper.totals_state DEFAULT VALUES;

-- Finds what the cost attributor wrote lately; the ledger grows at its end.
CREATE INDEX cost_entries_by_time ON lockkeeper.cost_entries USING brin (recorded_at)
    WITH (pages_per_range = 16, autosummarize = on);

-- The cells that make up a range: whole days where it holds whole days, hours towards its ends, and task by task what is
-- less than that. Of a customer there are days only; of an agent's tasks for a customer there is no cell at all.
CREATE FUNCTION lockkeeper.totals_between(
    from_at timestamptz, to_at timestamptz, statuses text[], agents text[], customers text[])
RETURNS TABLE (
    status text, class smallint, currency text, tasks bigint, attempts bigint, judged bigint, confidence double precision,
    input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, llm_cost numeric,
    compute_cost numeric, llm_cost_pending bigint, compute_cost_pending bigint)
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

-- Totals over the filters of `find_tasks`. Of few tasks they are counted here and now; of many they come from the cells.
-- Text and labels stand in no cell: over many tasks they are counted among the newest, since `counted_from`.
CREATE FUNCTION lockkeeper.summarise_tasks(
    statuses text[], agents text[], customers text[], from_at timestamptz, to_at timestamptz,
    with_text text, with_labels jsonb, label_keys text[], few integer DEFAULT 5000)
RETURNS TABLE (
    enqueued bigint, processing bigint, completed bigint, failed bigint, cancelled bigint,
    median_seconds double precision, p95_seconds double precision, confidence double precision,
    oldest_waiting_at timestamptz, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
    cache_write_tokens bigint, llm_cost numeric, compute_cost numeric, currency text,
    llm_cost_pending bigint, compute_cost_pending bigint, attempts bigint,
    is_exact boolean, counted_from timestamptz, counted_at timestamptz)
LANGUAGE plpgsql STABLE
-- Cells are found by their index, however few rows the planner thinks there are.
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
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
        -- The first hour in which anything waits.
        SELECT min(h.bucket) AS bucket FROM lockkeeper.task_totals h
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
           (SELECT t.created_at FROM oldest o
              JOIN lockkeeper.tasks t ON t.created_at >= greatest(o.bucket, coalesce(from_at, '-infinity'))
             WHERE o.bucket IS NOT NULL AND t.status = 'enqueued' AND t.created_at < coalesce(to_at, 'infinity')
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
