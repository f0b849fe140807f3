-- What browsers are shown; each is read once for all of them.

-- name: read_tasks
-- Changed tasks as they are now, each waiting one with the word why.
WITH changed AS MATERIALIZED (
    SELECT * FROM lockkeeper.task_overview WHERE id = ANY ($1::uuid[])
)
SELECT changed.*, w.reason AS waiting_reason
  FROM changed
  LEFT JOIN lockkeeper.why_waiting(ARRAY (SELECT id FROM changed WHERE status = 'enqueued')) w
    ON w.task_id = changed.id

-- name: list_tasks
-- The first page of a filter.
WITH page AS MATERIALIZED (
    SELECT * FROM lockkeeper.find_tasks($1, $2, $3, $4, $5, $6, $7, $8, NULL, NULL, $9)
)
SELECT page.*, w.reason AS waiting_reason
  FROM page
  LEFT JOIN lockkeeper.why_waiting(ARRAY (SELECT id FROM page WHERE status = 'enqueued')) w ON w.task_id = page.id
 ORDER BY page.created_at DESC, page.id DESC

-- name: summarise_tasks
-- The totals of a filter.
SELECT * FROM lockkeeper.summarise_tasks($1, $2, $3, $4, $5, $6, $7, $8)

-- name: list_queue_state
-- The use of every agent's limits.
SELECT agent AS name, paused, max_concurrent_tasks, max_tpm, running, reserved_tpm, used_tpm,
       CASE WHEN max_concurrent_tasks IS NOT NULL
            THEN greatest(max_concurrent_tasks - running, 0) END AS slots,
       CASE WHEN max_tpm IS NOT NULL
            THEN greatest(max_tpm - reserved_tpm - used_tpm, 0) END AS tokens_left,
       waiting, deferred, oldest_waiting_seconds
  FROM lockkeeper.queue_state
 ORDER BY agent

-- name: list_recently_changed
-- Tasks that were made or whose log grew within the last seconds, with their version, and those that are running.
-- The window reaches back further than any transaction may last, so that a late commit is not missed.
SELECT task_id AS id, max(version) AS version
  FROM lockkeeper.task_events
 WHERE at > clock_timestamp() - make_interval(secs => $1)
 GROUP BY task_id
UNION ALL
(SELECT id, 1 FROM lockkeeper.tasks
  WHERE created_at > clock_timestamp() - make_interval(secs => $1)
  ORDER BY created_at DESC, id DESC
  LIMIT 5000)
UNION ALL
(SELECT id, NULL FROM lockkeeper.tasks WHERE status = 'processing' LIMIT 2000)
UNION ALL
-- A new task has no event yet: its first version is its own row.
(SELECT id, version FROM lockkeeper.tasks WHERE created_at > clock_timestamp() - make_interval(secs => $1)
  ORDER BY created_at DESC, id DESC LIMIT 2000)
