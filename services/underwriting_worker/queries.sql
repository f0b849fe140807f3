-- The underwriting worker's statements: the record of runs, steps, messages, tools, decisions and events.
-- A guarded write that changes no row is explained by its `explain_…` in the same transaction.

-- name: read_run
-- What the steps of a run need to know about it.
SELECT run_id, user_name, applicant, amount, purpose, model, turn, turn_limit, request, state, outcome, seq,
       workflow_id, recommendation, policy
  FROM agent_ops.agent_runs WHERE run_id = $1

-- name: begin_turn
-- A turn starts: the run works, and no review is open.
-- owner: underwriting_worker
-- fence: seq
-- returns: the run; none means an older or second write, ask explain_run
UPDATE agent_ops.agent_runs
   SET state = 'running', seq = $2, turn = $3, temporal_run_id = $4, review_id = NULL, review_opened_at = NULL,
       review_expires_at = NULL, review_reminded_at = NULL, next_start_at = NULL,
       started_at = coalesce(started_at, lockkeeper.clock()), updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND seq < $2 AND state IN ('starting', 'running', 'awaiting_review')
RETURNING run_id

-- name: open_review
-- The recommendation stands, and a person is asked.
-- owner: underwriting_worker
-- fence: seq
-- returns: the run; none means an older or second write, ask explain_run
WITH spent AS (
    SELECT coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(output_tokens), 0) AS output_tokens,
           coalesce(sum(cache_read_tokens), 0) AS cache_read_tokens
      FROM agent_ops.agent_messages WHERE run_id = $1
)
UPDATE agent_ops.agent_runs r
   SET state = 'awaiting_review', seq = $2, review_id = $3, review_opened_at = $4, review_expires_at = $5,
       recommendation = $6, policy = $7, input_tokens = s.input_tokens, output_tokens = s.output_tokens,
       cache_read_tokens = s.cache_read_tokens, updated_at = lockkeeper.clock()
  FROM spent s
 WHERE r.run_id = $1 AND r.seq < $2 AND r.state = 'running'
RETURNING r.run_id

-- name: remind_review
-- The review has waited for long.
-- owner: underwriting_worker
-- fence: seq
-- returns: the run; none means an older or second write, ask explain_run
UPDATE agent_ops.agent_runs
   SET seq = $2, review_reminded_at = lockkeeper.clock(), updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND seq < $2 AND state = 'awaiting_review' AND review_id = $3
RETURNING run_id

-- name: end_run
-- The run has ended, and stays so.
-- owner: underwriting_worker
-- fence: seq
-- returns: the run; none means an older or second write, ask explain_run
UPDATE agent_ops.agent_runs
   SET state = $3, seq = $2, outcome = $4, error = $5, finished_at = lockkeeper.clock(), next_start_at = NULL,
       next_cancel_at = NULL, updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND seq < $2 AND state IN ('starting', 'running', 'awaiting_review')
RETURNING run_id

-- name: explain_run
-- What stood in the way of a write on a run.
SELECT state, seq AS fence, state IN ('completed', 'failed', 'cancelled', 'expired') AS is_terminal
  FROM agent_ops.agent_runs WHERE run_id = $1

-- name: begin_step
-- One attempt of a step starts; attempts before it that never said how they ended are lost.
-- owner: underwriting_worker
-- fence: metric_id is derived from the step and its fence
WITH lost AS (
    UPDATE agent_ops.metrics SET outcome = 'lost', finished_at = clock_timestamp()
     WHERE run_id = $3 AND step_id = $6 AND outcome = 'running' AND fence < $9
)
INSERT INTO agent_ops.metrics
       (metric_id, workflow_id, run_id, turn, activity, step_id, round, attempt, fence, outcome, worker, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'running', $10, clock_timestamp())
    ON CONFLICT (metric_id) DO NOTHING

-- name: end_step
-- One attempt of a step has ended; an attempt that was given up keeps its first word.
-- owner: underwriting_worker
-- fence: metric_id
UPDATE agent_ops.metrics
   SET outcome = $2, error = $3, payload_bytes = $4, input_tokens = $5, output_tokens = $6,
       finished_at = clock_timestamp()
 WHERE metric_id = $1 AND outcome IN ('running', 'lost')

-- name: begin_tool_call
-- A tool call starts, or a newer attempt of it does.
-- owner: underwriting_worker
-- fence: fence; a call that has ended stays ended
-- returns: the call; none means it has ended or a newer attempt runs, ask read_tool_call
INSERT INTO agent_ops.agent_tool_calls AS c
       (tool_call_id, run_id, turn, position, tool, message_id, arguments, state, fence, attempt, worker)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'running', $8, $9, $10)
    ON CONFLICT (tool_call_id) DO UPDATE
   SET fence = excluded.fence, attempt = excluded.attempt, worker = excluded.worker
 WHERE c.state = 'running' AND c.fence <= excluded.fence
RETURNING tool_call_id

-- name: end_tool_call
-- A tool call has ended; this is its one effect on the record.
-- owner: underwriting_worker
-- fence: fence; an older attempt finds no row
-- returns: the call; none means an older or second write, ask read_tool_call
UPDATE agent_ops.agent_tool_calls
   SET state = $2, result = $3, error = $4, fence = $5, finished_at = clock_timestamp()
 WHERE tool_call_id = $1 AND state = 'running' AND fence <= $5
RETURNING tool_call_id

-- name: fail_tool_call
-- A tool call that may never have begun has failed for good.
-- owner: underwriting_worker
-- fence: fence
-- returns: the call; none means it had already ended, ask read_tool_call
INSERT INTO agent_ops.agent_tool_calls AS c
       (tool_call_id, run_id, turn, position, tool, message_id, state, error, fence, attempt, finished_at)
VALUES ($1, $2, $3, $4, $5, $6, 'failed', $7, $8, 0, clock_timestamp())
    ON CONFLICT (tool_call_id) DO UPDATE
   SET state = 'failed', error = excluded.error, fence = excluded.fence, finished_at = clock_timestamp()
 WHERE c.state = 'running' AND c.fence <= excluded.fence
RETURNING tool_call_id

-- name: read_tool_call
-- One tool call as it stands.
SELECT state, fence, state <> 'running' AS is_terminal, result, error
  FROM agent_ops.agent_tool_calls WHERE tool_call_id = $1

-- name: read_evidence
-- The newest result of each tool; a tool that only failed has none.
SELECT DISTINCT ON (tool) tool, state, result, error, tool_call_id
  FROM agent_ops.agent_tool_calls
 WHERE run_id = $1 AND state IN ('succeeded', 'failed')
 ORDER BY tool, state DESC, turn DESC, position DESC

-- name: list_tool_calls
-- Every tool call of a run in the order of the transcript.
SELECT tool_call_id, turn, position, tool, message_id, arguments, state, result, error
  FROM agent_ops.agent_tool_calls WHERE run_id = $1 ORDER BY turn, position

-- name: list_messages
-- The transcript of a run.
SELECT message_id, turn, position, role, state, content, tool_calls, reading, error
  FROM agent_ops.agent_messages WHERE run_id = $1 ORDER BY turn, position

-- name: write_message
-- What a person or the workflow said; the same words again change nothing.
-- owner: underwriting_worker
-- returns: the message; none means it is there, ask read_message
INSERT INTO agent_ops.agent_messages (message_id, run_id, turn, position, role, state, content, finished_at)
VALUES ($1, $2, $3, $4, $5, 'complete', $6, lockkeeper.clock())
    ON CONFLICT (message_id) DO NOTHING
RETURNING message_id

-- name: begin_answer
-- The model is being asked, or asked again by a newer attempt.
-- owner: underwriting_worker
-- fence: fence; an answer that is complete stays so
-- returns: the message; none means it is complete or a newer attempt runs, ask read_message
INSERT INTO agent_ops.agent_messages AS m (message_id, run_id, turn, position, role, state, model, fence)
VALUES ($1, $2, $3, $4, 'assistant', 'running', $5, $6)
    ON CONFLICT (message_id) DO UPDATE SET fence = excluded.fence
 WHERE m.state = 'running' AND m.fence <= excluded.fence
RETURNING message_id

-- name: end_answer
-- The model has answered.
-- owner: underwriting_worker
-- fence: fence; an older attempt finds no row
-- returns: the message; none means an older or second write, ask read_message
UPDATE agent_ops.agent_messages
   SET state = 'complete', content = $2, tool_calls = $3, reading = $4, raw = $5, model = $6, input_tokens = $7,
       output_tokens = $8, cache_read_tokens = $9, fence = $10, finished_at = clock_timestamp()
 WHERE message_id = $1 AND state = 'running' AND fence <= $10
RETURNING message_id

-- name: fail_answer
-- The model could not be asked.
-- owner: underwriting_worker
UPDATE agent_ops.agent_messages
   SET state = 'failed', error = $2, finished_at = clock_timestamp()
 WHERE run_id = $1 AND role = 'assistant' AND state = 'running'

-- name: read_message
-- One message as it stands.
SELECT state, fence, state <> 'running' AS is_terminal, content, tool_calls, reading
  FROM agent_ops.agent_messages WHERE message_id = $1

-- name: price_answer
-- Put the tokens of one answer into the ledger, at the price of its day; unknown prices stay unknown.
-- owner: underwriting_worker
INSERT INTO lockkeeper.cost_entries
       (source, record_id, attempt_id, task_id, agent, customer, kind, model, input_tokens, output_tokens,
        cache_read_tokens, amount, list_amount, currency, priced_by, price_id, usage_start_at)
SELECT 'underwriting', $1::uuid::text, $1::uuid, $2, 'underwriting', r.applicant, 'llm', $3, $4::bigint, $5::bigint,
       $6::bigint, p.amount, p.amount, coalesce(p.currency, 'USD'),
       CASE WHEN p.amount IS NOT NULL THEN 'price_table' END, p.price_id, lockkeeper.clock()
  FROM agent_ops.agent_runs r
 CROSS JOIN LATERAL lockkeeper.price_parts(jsonb_build_array(jsonb_build_object(
       'model', $3::text, 'input_tokens', $4::bigint, 'output_tokens', $5::bigint, 'cache_read_tokens', $6::bigint,
       'cache_write_tokens', 0)), lockkeeper.clock()) p
 WHERE r.run_id = $2
    ON CONFLICT DO NOTHING

-- name: record_decision
-- A decision and what became of it; one that came by signal is first seen here.
-- owner: underwriting_worker
-- fence: a decision that is settled stays settled
-- returns: the decision; none means it was settled before, ask read_decision
INSERT INTO agent_ops.agent_review_decisions AS d
       (decision_id, run_id, review_id, decision, note, reviewer, path, status, effect, refusal, message, turn,
        decided_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, lockkeeper.clock())
    ON CONFLICT (decision_id) DO UPDATE
   SET status = excluded.status, effect = excluded.effect, refusal = excluded.refusal, message = excluded.message,
       turn = excluded.turn, decided_at = excluded.decided_at
 WHERE d.status = 'received' AND d.run_id = excluded.run_id AND d.review_id = excluded.review_id
RETURNING decision_id

-- name: read_decision
-- One decision as it stands.
SELECT status AS state, 0 AS fence, status <> 'received' AS is_terminal, note, reviewer, decision
  FROM agent_ops.agent_review_decisions WHERE decision_id = $1

-- name: write_event
-- An event of the timeline; the same one again changes nothing.
-- owner: underwriting_worker
INSERT INTO agent_ops.events (event_id, run_id, turn, name, details) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (event_id) DO NOTHING

-- name: read_limits
-- The policy's limits for one purpose; none when the sync has lost them.
SELECT purpose, policy_name, policy_version, minimum_score, automatic_approval_dti, hard_reject_score,
       hard_reject_dti, source, synced_at
  FROM agent_policy.limits() WHERE purpose = $1

-- name: set_trace
-- The trace of one answer is stored.
-- owner: underwriting_worker
UPDATE agent_ops.agent_messages SET trace_id = $2 WHERE message_id = $1
