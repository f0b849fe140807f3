-- What must hold at every instant, as questions that have no rows for an answer.
-- Run at the end of every race, chaos and acceptance test, and by `lockkeeper doctor` in production.

-- name: processing_tasks_have_one_open_attempt
-- No lost task: what is processing is leased, and its present attempt is open.
SELECT t.id AS task_id, t.attempt, x.status
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.task_attempts x ON x.id = t.attempt_id AND x.task_id = t.id AND x.attempt = t.attempt
 WHERE t.status = 'processing' AND (x.status IS NULL OR x.status NOT IN ('leased', 'submitted', 'running'))

-- name: terminal_tasks_have_no_open_attempt
-- Nothing goes on for a task that has ended, but for runs whose end is still being asked for.
SELECT t.id AS task_id, t.status, x.id AS attempt_id, x.status AS attempt_status
  FROM lockkeeper.tasks t JOIN lockkeeper.task_attempts x ON x.task_id = t.id
 WHERE t.status IN ('completed', 'failed', 'cancelled') AND x.status IN ('leased', 'submitted', 'running', 'released')
   AND x.cancel_requested_at IS NULL

-- name: one_terminal_transition
-- A task ends once, and its last event says how.
SELECT e.task_id, count(*) AS endings
  FROM lockkeeper.task_events e
 WHERE e.status IN ('completed', 'failed', 'cancelled')
 GROUP BY e.task_id
HAVING count(*) FILTER (WHERE e.verb IN ('complete', 'fail', 'refuse', 'give_up', 'cancel', 'gather')) <> 1

-- name: one_completed_attempt
-- A completed task has exactly one attempt that completed it, and no other task has any. Parents have no attempts.
SELECT t.id AS task_id, t.status, count(x.id) AS completed_attempts
  FROM lockkeeper.tasks t
  LEFT JOIN lockkeeper.task_attempts x ON x.task_id = t.id AND x.status = 'completed'
 GROUP BY t.id, t.status
HAVING count(x.id) <> (t.status = 'completed' AND t.gather IS NULL)::int

-- name: parents_end_with_their_children
-- When a parent has ended so have its children, and as its rule says; nothing was ever started for it.
SELECT f.parent_id AS task_id, f.status, f.gather, f.children, f.completed, f.enqueued + f.processing AS open
  FROM lockkeeper.families f
 WHERE f.status IN ('completed', 'failed', 'cancelled') AND f.enqueued + f.processing > 0
    OR f.status IN ('completed', 'failed')
   AND (f.status = 'completed') <> CASE f.gather WHEN 'all_completed' THEN f.completed = f.children
                                                 WHEN 'any_completed' THEN f.completed > 0 OR f.children = 0
                                                 ELSE true END
    OR EXISTS (SELECT FROM lockkeeper.task_attempts x WHERE x.task_id = f.parent_id)

-- name: events_are_gap_free
-- Every version of a task after its first has its event.
SELECT t.id AS task_id, t.version, count(e.version) AS events, max(e.version) AS last
  FROM lockkeeper.tasks t LEFT JOIN lockkeeper.task_events e ON e.task_id = t.id
 GROUP BY t.id, t.version
HAVING count(e.version) <> t.version - 1 OR coalesce(max(e.version), 1) <> t.version

-- name: concurrency_was_never_exceeded
-- At each claim of the event log, the agent ran no more tasks than the limit in force then.
WITH step AS (
    SELECT e.agent, e.at, e.task_id, e.version, e.verb,
           e.running - coalesce(lag(e.running) OVER (PARTITION BY e.task_id ORDER BY e.version), 0) AS change
      FROM lockkeeper.task_events e
), level AS (
    SELECT *, sum(change) OVER (PARTITION BY agent ORDER BY at, change, task_id, version) AS running
      FROM step WHERE change <> 0
)
SELECT l.agent, l.at, max(l.running) AS running, c.most
  FROM level l
 CROSS JOIN LATERAL (
       SELECT (h.settings ->> 'max_concurrent_tasks')::int AS most FROM lockkeeper.agent_changes h
        WHERE h.agent = l.agent AND h.changed_at <= l.at ORDER BY h.changed_at DESC LIMIT 1) c
 WHERE l.verb = 'claim' AND l.running > c.most
 GROUP BY l.agent, l.at, c.most

-- name: tokens_were_never_exceeded
-- At each claim, what ran and what had ended within the minute before fitted the token budget in force;
-- a task larger than the whole budget is admitted alone.
WITH step AS (
    SELECT e.agent, e.at, e.task_id, e.version, e.verb,
           e.reserved_tpm - coalesce(lag(e.reserved_tpm) OVER (PARTITION BY e.task_id ORDER BY e.version), 0) AS change,
           e.running - coalesce(lag(e.running) OVER (PARTITION BY e.task_id ORDER BY e.version), 0) AS start
      FROM lockkeeper.task_events e
), level AS (
    SELECT *, sum(change) OVER (PARTITION BY agent ORDER BY at, change, task_id, version) AS reserved,
           sum(start) OVER (PARTITION BY agent ORDER BY at, change, task_id, version) AS running
      FROM step WHERE change <> 0 OR start <> 0
), claim AS (
    SELECT l.agent, l.at, max(l.reserved) AS reserved, max(l.running) AS running
      FROM level l WHERE l.verb = 'claim' GROUP BY l.agent, l.at
)
SELECT l.agent, l.at, l.reserved, u.used, c.most
  FROM claim l
 CROSS JOIN LATERAL (
       SELECT (h.settings ->> 'max_tpm')::bigint AS most FROM lockkeeper.agent_changes h
        WHERE h.agent = l.agent AND h.changed_at <= l.at ORDER BY h.changed_at DESC LIMIT 1) c
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(ceil(s.used_tokens
                / greatest(extract(epoch FROM s.finished_at - coalesce(s.started_at, s.leased_at)) / 60, 1))), 0) AS used
         FROM lockkeeper.task_attempts s
        WHERE s.agent = l.agent AND s.used_tokens > 0
          AND s.finished_at > l.at - interval '60 seconds' AND s.finished_at <= l.at - interval '1 second') u
 WHERE l.reserved + u.used > c.most AND NOT (l.running = 1 AND u.used = 0)

-- name: no_run_carries_two_attempts
-- A run belongs to one attempt, or to the attempts of one pack.
SELECT x.run_id, count(*) AS attempts
  FROM lockkeeper.task_attempts x
 WHERE x.run_id IS NOT NULL
 GROUP BY x.run_id
HAVING count(*) > 1 AND (count(DISTINCT x.pack_id) > 1 OR count(x.pack_id) < count(*))

-- name: costs_add_up
-- An attempt's figures are the sum of its ledger lines.
SELECT x.id AS attempt_id, x.llm_cost, sum(c.amount) AS ledger
  FROM lockkeeper.task_attempts x JOIN lockkeeper.cost_entries c ON c.attempt_id = x.id AND c.kind = 'llm'
 WHERE x.llm_cost IS NOT NULL
       -- What the agent said counts only as long as no trace says it.
   AND (c.source <> 'callback' OR NOT EXISTS (
        SELECT FROM lockkeeper.cost_entries t WHERE t.attempt_id = x.id AND t.source = 'trace'))
 GROUP BY x.id, x.llm_cost
HAVING x.llm_cost <> sum(c.amount)

-- name: totals_add_up
-- Each cell of the totals is the sum of what its tasks were counted for.
WITH counted AS (
    SELECT status, sum(n) AS tasks, sum(attempts) AS attempts, sum(llm_cost) AS llm_cost
      FROM (SELECT status, count(*) AS n, sum(attempts) AS attempts, sum(coalesce(llm_cost, 0)) AS llm_cost
              FROM lockkeeper.task_counted GROUP BY status) c
     GROUP BY status
), totals AS (
    SELECT grain, status, sum(tasks) AS tasks, sum(attempts) AS attempts, sum(llm_cost) AS llm_cost
      FROM lockkeeper.task_totals WHERE customer = '*' AND agent = '*' AND grain <> 'ended'
     GROUP BY grain, status HAVING sum(tasks) <> 0
)
SELECT status, t.grain, c.tasks, t.tasks AS in_totals
  FROM (SELECT g.grain, c.* FROM counted c CROSS JOIN (VALUES ('hour'), ('day')) g (grain)) c
  FULL JOIN totals t USING (grain, status)
 WHERE (c.tasks, c.attempts, c.llm_cost) IS DISTINCT FROM (t.tasks, t.attempts, t.llm_cost)
