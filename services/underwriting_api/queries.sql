-- The underwriting API's statements: what comes in, its outboxes, and what people look at.

-- name: insert_run
-- Take a request in; the same key again gives nothing, ask find_run_by_key.
-- owner: underwriting_api
-- returns: the new run's id
INSERT INTO agent_ops.agent_runs
       (run_id, workflow_id, user_name, applicant, amount, purpose, model, turn_limit, request, options,
        idempotency_key, request_digest, next_start_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, lockkeeper.clock() + interval '10 seconds')
    ON CONFLICT DO NOTHING
RETURNING run_id

-- name: find_run_by_key
-- The run that a key has made.
SELECT run_id, request_digest FROM agent_ops.agent_runs WHERE idempotency_key = $1

-- name: record_start
-- Temporal has the run.
-- owner: underwriting_api
UPDATE agent_ops.agent_runs
   SET temporal_run_id = coalesce(temporal_run_id, $2), next_start_at = NULL, updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND next_start_at IS NOT NULL

-- name: postpone_start
-- Temporal did not answer; it is asked again.
-- owner: underwriting_api
UPDATE agent_ops.agent_runs
   SET start_attempts = start_attempts + 1, updated_at = lockkeeper.clock(),
       next_start_at = lockkeeper.clock() + make_interval(secs => least(30, 2 ^ least(start_attempts, 5)))
 WHERE run_id = $1 AND next_start_at IS NOT NULL

-- name: refuse_start
-- Temporal will never take the run.
-- owner: underwriting_api
UPDATE agent_ops.agent_runs
   SET state = 'failed', outcome = 'failed', error = $2, finished_at = lockkeeper.clock(), next_start_at = NULL,
       next_cancel_at = NULL, updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND state = 'starting'

-- name: take_unstarted
-- Runs that Temporal does not have yet, each given to one replica at a time.
-- owner: underwriting_api
WITH due AS MATERIALIZED (
    SELECT run_id FROM agent_ops.agent_runs
     WHERE next_start_at <= lockkeeper.clock() ORDER BY next_start_at LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE agent_ops.agent_runs r SET next_start_at = lockkeeper.clock() + interval '10 seconds'
  FROM due WHERE r.run_id = due.run_id
RETURNING r.run_id, r.request, r.options

-- name: insert_decision
-- Keep a decision before anybody is asked about it; the same id again gives nothing, ask read_decision.
-- owner: underwriting_api
-- returns: its id
INSERT INTO agent_ops.agent_review_decisions
       (decision_id, run_id, review_id, decision, note, reviewer, path, status, next_delivery_at)
VALUES ($1, $2, $3, $4, $5, $6, 'update', 'received', lockkeeper.clock() + interval '15 seconds')
    ON CONFLICT (decision_id) DO NOTHING
RETURNING decision_id

-- name: read_decision
-- One decision as it stands.
SELECT decision_id, run_id, review_id, decision, note, reviewer, path, status, effect, refusal, message, turn,
       received_at, decided_at
  FROM agent_ops.agent_review_decisions WHERE decision_id = $1

-- name: settle_decision
-- What Temporal said about a decision; a settled one stays as it is, so a refusal has one event.
-- owner: underwriting_api
-- returns: the decision; none means that it was settled before
WITH settled AS (
    UPDATE agent_ops.agent_review_decisions
       SET status = $2, effect = $3, refusal = $4, message = $5, turn = coalesce($6, turn),
           next_delivery_at = NULL, decided_at = lockkeeper.clock()
     WHERE decision_id = $1 AND status = 'received'
    RETURNING *
), noted AS (
    INSERT INTO agent_ops.events (event_id, run_id, turn, name, details)
    SELECT $7, s.run_id, coalesce(s.turn, r.turn), 'agent.decision_refused',
           jsonb_build_object('decision_id', s.decision_id, 'decision', s.decision, 'reviewer', s.reviewer,
                              'path', s.path, 'refusal', s.refusal)
      FROM settled s JOIN agent_ops.agent_runs r ON r.run_id = s.run_id WHERE s.status = 'refused'
        ON CONFLICT (event_id) DO NOTHING
)
SELECT decision_id FROM settled

-- name: postpone_decision
-- Nobody knows yet what became of a decision: the same one is sent again.
-- owner: underwriting_api
UPDATE agent_ops.agent_review_decisions
   SET delivery_attempts = delivery_attempts + 1,
       next_delivery_at = lockkeeper.clock() + make_interval(secs => least(30, 2 ^ least(delivery_attempts, 5)))
 WHERE decision_id = $1 AND status = 'received'

-- name: take_undelivered
-- Decisions whose fate is not known, each given to one replica at a time.
-- owner: underwriting_api
WITH due AS MATERIALIZED (
    SELECT decision_id FROM agent_ops.agent_review_decisions
     WHERE status = 'received' AND next_delivery_at <= lockkeeper.clock() ORDER BY next_delivery_at LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE agent_ops.agent_review_decisions d SET next_delivery_at = lockkeeper.clock() + interval '15 seconds'
  FROM due WHERE d.decision_id = due.decision_id
RETURNING d.decision_id, d.run_id, d.review_id, d.decision, d.note, d.reviewer

-- name: request_cancel
-- Somebody wants the run to end.
-- owner: underwriting_api
-- returns: the run; none means that it has ended
UPDATE agent_ops.agent_runs
   SET cancel_requested_at = coalesce(cancel_requested_at, lockkeeper.clock()),
       cancel_requested_by = coalesce(cancel_requested_by, $2),
       next_cancel_at = lockkeeper.clock() + interval '10 seconds', updated_at = lockkeeper.clock()
 WHERE run_id = $1 AND state IN ('starting', 'running', 'awaiting_review')
RETURNING run_id

-- name: record_cancel
-- Temporal knows of the wish, or the run is over.
-- owner: underwriting_api
UPDATE agent_ops.agent_runs SET next_cancel_at = NULL WHERE run_id = $1

-- name: take_uncancelled
-- Runs whose end Temporal was not told of, each given to one replica at a time.
-- owner: underwriting_api
WITH due AS MATERIALIZED (
    SELECT run_id FROM agent_ops.agent_runs
     WHERE next_cancel_at <= lockkeeper.clock() ORDER BY next_cancel_at LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE agent_ops.agent_runs r SET next_cancel_at = lockkeeper.clock() + interval '10 seconds'
  FROM due WHERE r.run_id = due.run_id
RETURNING r.run_id

-- name: list_runs
-- A page of runs, newest first; NULL in a filter means any.
SELECT * FROM agent_ops.run_overview o
 WHERE ($1::text IS NULL OR o.user_name = $1) AND ($2::text[] IS NULL OR o.state = ANY ($2))
   AND ($3::text[] IS NULL OR o.condition = ANY ($3)) AND ($4::text IS NULL OR o.purpose = $4)
   AND ($5::text IS NULL OR o.applicant ILIKE $5 OR o.run_id::text ILIKE $5)
   AND (o.created_at, o.run_id)
     < (coalesce($6::timestamptz, 'infinity'), coalesce($7::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
 ORDER BY o.created_at DESC, o.run_id DESC LIMIT $8

-- name: read_run
-- One run on one line.
SELECT * FROM agent_ops.run_overview WHERE run_id = $1

-- name: list_messages
-- The conversation, with what each answer cost.
SELECT m.message_id, m.turn, m.position, m.role, m.state, m.content, m.tool_calls, m.reading, m.raw, m.model,
       m.input_tokens, m.output_tokens, m.cache_read_tokens, m.trace_id, m.error, m.created_at, m.finished_at
  FROM agent_ops.agent_messages m WHERE m.run_id = $1 ORDER BY m.turn, m.position

-- name: list_tool_calls
-- The evidence.
SELECT tool_call_id, turn, position, tool, message_id, arguments, state, result, error, attempt, worker, started_at,
       finished_at
  FROM agent_ops.agent_tool_calls WHERE run_id = $1 ORDER BY turn, position

-- name: list_decisions
-- Every decision that was sent.
SELECT decision_id, review_id, turn, decision, note, reviewer, path, status, effect, refusal, message, received_at,
       decided_at
  FROM agent_ops.agent_review_decisions WHERE run_id = $1 ORDER BY received_at, decision_id

-- name: list_events
-- The timeline.
SELECT event_id, turn, name, at, details FROM agent_ops.events WHERE run_id = $1 ORDER BY at, event_id

-- name: list_steps
-- Every attempt of every step.
SELECT metric_id, turn, activity, step_id, round, attempt, outcome, error, worker, payload_bytes, input_tokens,
       output_tokens, started_at, finished_at
  FROM agent_ops.metrics WHERE run_id = $1 ORDER BY started_at, fence

-- name: list_limits
-- The policy as it is now.
SELECT purpose, policy_name, policy_version, minimum_score, automatic_approval_dti, hard_reject_score,
       hard_reject_dti, source, synced_at
  FROM agent_policy.limits() ORDER BY purpose

-- name: workflow_metrics
-- Runs by state and what they wait for, and how long they took, of those created since.
WITH chosen AS (
    SELECT o.*, extract(epoch FROM o.review_opened_at - o.created_at)::float8 AS to_review,
           extract(epoch FROM o.finished_at - o.review_opened_at)::float8 AS in_review,
           extract(epoch FROM o.finished_at - o.created_at)::float8 AS whole
      FROM agent_ops.run_overview o WHERE o.created_at >= $1
)
SELECT count(*) AS runs,
       (SELECT coalesce(jsonb_object_agg(state, n), '{}') FROM (SELECT state, count(*) AS n FROM chosen GROUP BY 1) x)
           AS states,
       (SELECT coalesce(jsonb_object_agg(condition, n), '{}')
          FROM (SELECT condition, count(*) AS n FROM chosen GROUP BY 1) x) AS conditions,
       (SELECT coalesce(jsonb_object_agg(outcome, n), '{}')
          FROM (SELECT outcome, count(*) AS n FROM chosen WHERE outcome IS NOT NULL GROUP BY 1) x) AS outcomes,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY to_review) FILTER (WHERE to_review IS NOT NULL)
           AS to_review,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY in_review) FILTER (WHERE in_review IS NOT NULL)
           AS in_review,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY whole) FILTER (WHERE whole IS NOT NULL) AS whole,
       coalesce(sum(input_tokens), 0)::bigint AS input_tokens, coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
       sum(llm_cost) AS llm_cost, coalesce(avg(turn) FILTER (WHERE turn > 0), 0)::float8 AS turns
  FROM chosen

-- name: retry_metrics
-- Attempts by activity and number, of those started since.
SELECT activity, attempt, round, count(*) AS attempts,
       count(*) FILTER (WHERE outcome = 'succeeded') AS succeeded, count(*) FILTER (WHERE outcome = 'reused') AS reused,
       count(*) FILTER (WHERE outcome = 'failed') AS failed, count(*) FILTER (WHERE outcome = 'lost') AS lost,
       count(*) FILTER (WHERE outcome = 'running') AS running,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at)::float8)
           FILTER (WHERE finished_at IS NOT NULL) AS seconds,
       (array_agg(error ORDER BY started_at DESC) FILTER (WHERE error IS NOT NULL))[1] AS last_error
  FROM agent_ops.metrics WHERE started_at >= $1
 GROUP BY activity, attempt, round ORDER BY activity, round, attempt
