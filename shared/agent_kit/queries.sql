-- name: read_input
-- What the attempt is to do, and whether it is still wanted.
-- returns: the row of this attempt, or none for an attempt that does not exist
SELECT task_id, attempt_id, attempt, status, task_status, agent, customer, input, labels, options,
       document_id, document_name, volume_path, sha256, bytes
  FROM lockkeeper.agent_inputs
 WHERE attempt_id = $1;

-- name: read_pack
-- The attempts that share this run and are still wanted, in the order to carry them.
SELECT attempt_id
  FROM lockkeeper.agent_inputs
 WHERE pack_id = $1 AND status IN ('leased', 'submitted', 'running')
   AND task_status NOT IN ('completed', 'failed', 'cancelled')
 ORDER BY priority DESC, created_at, attempt_id;

-- name: store_result
-- Keep the result before anybody is told of it: the sweeper finds it when the callback is lost.
-- owner: document_agent
-- fence: attempt_id — the same attempt run twice keeps its first result
INSERT INTO lockkeeper.attempt_results (attempt_id, result, confidence, pages, report)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (attempt_id) DO NOTHING;
