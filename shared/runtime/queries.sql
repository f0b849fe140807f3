-- What every process writes about itself.

-- name: beat_replica
-- Say that this replica lives, and how it hears.
INSERT INTO lockkeeper.replicas (id, service, info) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET heartbeat_at = lockkeeper.clock(), info = excluded.info, stopped_at = NULL

-- name: farewell_replica
-- Say that this replica ended on purpose.
UPDATE lockkeeper.replicas SET stopped_at = lockkeeper.clock() WHERE id = $1
