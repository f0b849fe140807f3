-- What waits, read from the indexes of what waits: no index holds the ready and the deferred together, so that asking
-- for both at once walked every finished task, for each agent and every second.
CREATE OR REPLACE VIEW lockkeeper.queue_state AS
SELECT a.name AS agent, a.paused, h.running, h.max_concurrent_tasks, h.reserved_tpm, h.used_tpm, h.max_tpm,
       r.waiting, coalesce(d.deferred, 0) AS deferred, r.oldest_created_at,
       extract(epoch FROM lockkeeper.clock() - r.oldest_created_at) AS oldest_waiting_seconds
  FROM lockkeeper.agents a
  JOIN lockkeeper.agent_headroom h ON h.agent = a.name
 CROSS JOIN LATERAL (
       SELECT count(*) AS waiting, min(t.created_at) AS oldest_created_at
         FROM lockkeeper.tasks t WHERE t.agent = a.name AND t.status = 'enqueued' AND NOT t.deferred) r
  LEFT JOIN (
       SELECT t.agent, count(*) AS deferred
         FROM lockkeeper.tasks t WHERE t.status = 'enqueued' AND t.deferred GROUP BY t.agent) d ON d.agent = a.name;
