-- The system as it stands.

-- name: list_replicas
-- The processes that were alive within the last hour; alive means heard of within the last seconds.
SELECT id, service, started_at, heartbeat_at, info ->> 'listener' AS listener,
       stopped_at IS NULL AND heartbeat_at > lockkeeper.clock() - make_interval(secs => $1) AS is_alive,
       lockkeeper.clock() AS now
  FROM lockkeeper.replicas
 WHERE heartbeat_at > lockkeeper.clock() - interval '1 hour'
 ORDER BY service, started_at

-- name: list_queue_state
-- The queue by agent.
SELECT agent, paused, running, max_concurrent_tasks, reserved_tpm, used_tpm, max_tpm, waiting, deferred,
       oldest_waiting_seconds::float8 AS oldest_waiting_seconds
  FROM lockkeeper.queue_state
 ORDER BY agent
