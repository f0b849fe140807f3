-- The oldest waiting task is found by its age, from the first hour on in which anything waits: asked as a join, all that
-- waits was read and sorted, 0.3 s with 50,000 of them.

-- Totals over the filters of `find_tasks`. Of few tasks they are counted here and now; of many they come from the cells.
-- Text and labels stand in no cell: over many tasks they are counted among the newest, since `counted_from`.
CREATE OR REPLACE FUNCTION lockkeeper.summarise_tasks(
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
