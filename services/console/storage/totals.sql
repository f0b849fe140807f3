-- Counting what changed into the totals, a batch at a time; see 0060_totals.pre.sql for why it may be done twice.

-- name: take_counting
-- Let one console count at a time.
-- locks: a transaction-wide advisory lock
-- returns: the database's time; no row when another console counts
SELECT lockkeeper.clock() WHERE pg_try_advisory_xact_lock(4951, 3)

-- name: list_uncounted
-- Tasks that were made, changed or priced lately and stand in the totals as they were before.
-- returns: their ids; a full batch means that there may be more
WITH moved AS MATERIALIZED (
    SELECT e.task_id AS id, max(e.version) AS version
      FROM lockkeeper.task_events e
     WHERE e.at > clock_timestamp() - make_interval(secs => $1)
     GROUP BY e.task_id
), made AS MATERIALIZED (
    SELECT t.id, t.version FROM lockkeeper.tasks t
     WHERE t.created_at > clock_timestamp() - make_interval(secs => $1)
), priced AS MATERIALIZED (
    SELECT DISTINCT c.task_id AS id FROM lockkeeper.cost_entries c
     WHERE c.recorded_at > clock_timestamp() - make_interval(secs => $1)
)
SELECT s.id FROM (
    SELECT m.id FROM moved m
     WHERE NOT EXISTS (SELECT FROM lockkeeper.task_counted c WHERE c.task_id = m.id AND c.version >= m.version)
    UNION
    SELECT m.id FROM made m
     WHERE NOT EXISTS (SELECT FROM lockkeeper.task_counted c WHERE c.task_id = m.id AND c.version >= m.version)
    UNION
    SELECT p.id FROM priced p
      JOIN lockkeeper.task_contributions f ON f.task_id = p.id
     WHERE NOT EXISTS (
           SELECT FROM lockkeeper.task_counted c
            WHERE c.task_id = p.id
              AND (c.llm_cost, c.compute_cost, c.input_tokens, c.output_tokens)
                  IS NOT DISTINCT FROM (f.llm_cost, f.compute_cost, f.input_tokens, f.output_tokens))
) s
 LIMIT $2

-- name: list_walk
-- The next tasks of the walk through all of them, and those after the same place that were counted and are gone.
-- returns: ids in their order
SELECT s.id FROM (
    (SELECT t.id FROM lockkeeper.tasks t WHERE t.id > $1 ORDER BY t.id LIMIT $2)
    UNION
    (SELECT c.task_id FROM lockkeeper.task_counted c WHERE c.task_id > $1 ORDER BY c.task_id LIMIT $2)
) s
 ORDER BY s.id
 LIMIT $2

-- name: count_tasks
-- Move the totals by what these tasks count for now, less what they were counted for before; a task that is gone
-- counts for nothing.
-- owner: console
-- fence: take_counting; what is written down and what the cells hold change in this one statement
-- returns: how many tasks counted for something else before
WITH fresh AS MATERIALIZED (
    SELECT f.* FROM lockkeeper.task_contributions f WHERE f.task_id = ANY ($1::uuid[])
), known AS MATERIALIZED (
    SELECT c.* FROM lockkeeper.task_counted c WHERE c.task_id = ANY ($1::uuid[])
), gained AS MATERIALIZED (
    SELECT * FROM fresh EXCEPT SELECT * FROM known
), lost AS MATERIALIZED (
    SELECT * FROM known EXCEPT SELECT * FROM fresh
), change AS (
    SELECT 1 AS sign, g.* FROM gained g UNION ALL SELECT -1, l.* FROM lost l
), cell AS (
    SELECT p.grain, p.customer, p.bucket, p.agent, c.status, p.class, c.currency, sum(c.sign) AS tasks,
           sum(c.sign * c.attempts) AS attempts, sum(c.sign * (c.confidence IS NOT NULL)::int) AS judged,
           sum(c.sign * coalesce(c.confidence, 0)::float8) AS confidence,
           sum(c.sign * coalesce(c.input_tokens, 0)) AS input_tokens,
           sum(c.sign * coalesce(c.output_tokens, 0)) AS output_tokens,
           sum(c.sign * coalesce(c.cache_read_tokens, 0)) AS cache_read_tokens,
           sum(c.sign * coalesce(c.cache_write_tokens, 0)) AS cache_write_tokens,
           sum(c.sign * coalesce(c.llm_cost, 0)) AS llm_cost, sum(c.sign * coalesce(c.compute_cost, 0)) AS compute_cost,
           sum(c.sign * c.llm_cost_pending) AS llm_cost_pending,
           sum(c.sign * c.compute_cost_pending) AS compute_cost_pending
      FROM change c
     CROSS JOIN LATERAL (VALUES
           ('hour', '*', date_trunc('hour', c.created_at, 'UTC'), c.agent, c.class),
           ('hour', '*', date_trunc('hour', c.created_at, 'UTC'), '*', c.class),
           ('day', '*', date_trunc('day', c.created_at, 'UTC'), c.agent, c.class),
           ('day', '*', date_trunc('day', c.created_at, 'UTC'), '*', c.class),
           ('day', c.customer, date_trunc('day', c.created_at, 'UTC'), '*', c.class),
           ('ended', '*', date_trunc('hour', c.finished_at, 'UTC'), c.agent, 0),
           ('ended', '*', date_trunc('hour', c.finished_at, 'UTC'), '*', 0)) AS p (grain, customer, bucket, agent, class)
     WHERE p.bucket IS NOT NULL
     GROUP BY p.grain, p.customer, p.bucket, p.agent, c.status, p.class, c.currency
), moved AS (
    INSERT INTO lockkeeper.task_totals AS t
    SELECT * FROM cell
        ON CONFLICT (grain, customer, agent, bucket, status, class, currency) DO UPDATE
       SET tasks = t.tasks + excluded.tasks, attempts = t.attempts + excluded.attempts, judged = t.judged + excluded.judged,
           confidence = t.confidence + excluded.confidence, input_tokens = t.input_tokens + excluded.input_tokens,
           output_tokens = t.output_tokens + excluded.output_tokens,
           cache_read_tokens = t.cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = t.cache_write_tokens + excluded.cache_write_tokens,
           llm_cost = t.llm_cost + excluded.llm_cost, compute_cost = t.compute_cost + excluded.compute_cost,
           llm_cost_pending = t.llm_cost_pending + excluded.llm_cost_pending,
           compute_cost_pending = t.compute_cost_pending + excluded.compute_cost_pending
), kept AS (
    INSERT INTO lockkeeper.task_counted AS t
    SELECT * FROM gained
        ON CONFLICT (task_id) DO UPDATE
       SET version = excluded.version, status = excluded.status, finished_at = excluded.finished_at, class = excluded.class,
           confidence = excluded.confidence, attempts = excluded.attempts, input_tokens = excluded.input_tokens,
           output_tokens = excluded.output_tokens, cache_read_tokens = excluded.cache_read_tokens,
           cache_write_tokens = excluded.cache_write_tokens, llm_cost = excluded.llm_cost,
           compute_cost = excluded.compute_cost, currency = excluded.currency,
           llm_cost_pending = excluded.llm_cost_pending, compute_cost_pending = excluded.compute_cost_pending
), gone AS (
    DELETE FROM lockkeeper.task_counted c
     USING lost l
     WHERE c.task_id = l.task_id AND NOT EXISTS (SELECT FROM fresh f WHERE f.task_id = l.task_id)
)
SELECT (SELECT count(*) FROM gained) + (SELECT count(*) FROM lost l WHERE l.task_id NOT IN (SELECT task_id FROM gained))

-- name: drop_empty_cells
-- Forget cells that nothing counts for any more; those of the last hours may come back.
-- owner: console
DELETE FROM lockkeeper.task_totals
 WHERE tasks = 0 AND bucket < date_trunc('day', lockkeeper.clock(), 'UTC') - interval '1 day'

-- name: read_totals_state
-- Where the walk stands.
SELECT counted_at, walked_to, walked_at FROM lockkeeper.totals_state

-- name: mark_counted
-- What had been committed by this instant is counted, but for what commits late.
-- owner: console
UPDATE lockkeeper.totals_state SET counted_at = greatest(counted_at, $1)

-- name: mark_walked
-- Where the walk goes on; `walked_at` is set at its end.
-- owner: console
UPDATE lockkeeper.totals_state
   SET walked_to = $1, walked_at = CASE WHEN $2 THEN lockkeeper.clock() ELSE walked_at END

-- name: list_series
-- The totals of each hour or day since an instant, by the hour of the end for `ended`.
SELECT c.bucket, c.status, c.class, sum(c.tasks)::bigint AS tasks, sum(c.judged)::bigint AS judged,
       sum(c.confidence) AS confidence, sum(c.input_tokens)::bigint AS input_tokens,
       sum(c.output_tokens)::bigint AS output_tokens, sum(c.llm_cost) AS llm_cost, sum(c.compute_cost) AS compute_cost
  FROM lockkeeper.task_totals c
 WHERE c.grain = $1 AND c.customer = ANY (coalesce($2::text[], ARRAY['*'])) AND c.bucket >= $3 AND c.bucket < $4
   AND c.agent = ANY (coalesce($5::text[], ARRAY['*']))
   AND ($6::text[] IS NULL OR c.status = ANY ($6))
   AND c.tasks > 0
 GROUP BY c.bucket, c.status, c.class
 ORDER BY c.bucket

-- name: list_shares
-- The totals of whole days by agent or by customer, the largest first.
SELECT CASE $1::text WHEN 'agent' THEN c.agent ELSE c.customer END AS key, sum(c.tasks)::bigint AS tasks,
       coalesce(sum(c.tasks) FILTER (WHERE c.status = 'failed'), 0)::bigint AS failed,
       coalesce(sum(c.tasks) FILTER (WHERE c.status IN ('enqueued', 'processing')), 0)::bigint AS unfinished,
       sum(c.input_tokens + c.output_tokens)::bigint AS tokens, sum(c.llm_cost) AS llm_cost,
       sum(c.compute_cost) AS compute_cost, sum(c.confidence) / nullif(sum(c.judged), 0)::float8 AS confidence,
       min(c.currency) AS currency
  FROM lockkeeper.task_totals c
 WHERE c.grain = 'day' AND c.bucket >= $2 AND c.bucket < $3 AND c.tasks > 0
   AND (c.customer = '*') = ($1 = 'agent') AND (c.agent = '*') = ($1 <> 'agent')
   AND ($4::text[] IS NULL OR c.customer = ANY ($4))
   AND ($5::text[] IS NULL OR c.agent = ANY ($5))
   AND ($6::text[] IS NULL OR c.status = ANY ($6))
 GROUP BY 1
 ORDER BY sum(c.tasks) DESC, 1
 LIMIT 12
