-- Families: a parent is a task without work of its own; it waits, and ends when its children have ended.
-- A parent is `enqueued` and deferred for ever, so no claim ever looks at it: plain tasks pay nothing for families.

ALTER TABLE lockkeeper.tasks ADD COLUMN gather text;
-- How it ends: completed when every child completed, when one did, or whatever became of them. One level deep.
-- Not validated: there is no parent among the rows that stand.
ALTER TABLE lockkeeper.tasks ADD CONSTRAINT parents_only_wait
    CHECK (gather IS NULL OR gather IN ('all_completed', 'any_completed', 'all_ended')
           AND status <> 'processing' AND deferred = (status = 'enqueued') AND parent_task_id IS NULL) NOT VALID;

-- What no programming language can hold is no instant: one such row would break every list that shows it.
ALTER TABLE lockkeeper.tasks ADD CONSTRAINT available_within_reach
    CHECK (available_at > '1900-01-01Z' AND available_at < '9999-12-31Z') NOT VALID;
ALTER TABLE lockkeeper.model_prices ADD CONSTRAINT valid_within_reach
    CHECK (valid_from > '1900-01-01Z' AND valid_from < '9999-12-31Z' AND valid_to < '9999-12-31Z') NOT VALID;

-- The word why tasks wait, parents too.
CREATE FUNCTION lockkeeper.why_waiting(of_tasks uuid[])
RETURNS TABLE (task_id uuid, reason text)
LANGUAGE sql STABLE
AS $$
    SELECT w.task_id, CASE WHEN t.gather IS NULL THEN w.reason ELSE 'children' END
      FROM lockkeeper.waiting_reasons(of_tasks) w
      JOIN lockkeeper.tasks t ON t.id = w.task_id
$$;

-- What became of a parent's children; one that was done anew counts as its newest copy.
CREATE VIEW lockkeeper.families AS
SELECT p.id AS parent_id, p.agent, p.gather, p.status, c.*
  FROM lockkeeper.tasks p
 CROSS JOIN LATERAL (
       SELECT count(*) AS children,
              count(*) FILTER (WHERE k.status = 'enqueued') AS enqueued,
              count(*) FILTER (WHERE k.status = 'processing') AS processing,
              count(*) FILTER (WHERE k.status = 'completed') AS completed,
              count(*) FILTER (WHERE k.status = 'failed') AS failed,
              count(*) FILTER (WHERE k.status = 'cancelled') AS cancelled
         FROM lockkeeper.tasks k
        WHERE k.parent_task_id = p.id
          AND NOT EXISTS (SELECT FROM lockkeeper.tasks n
                           WHERE n.source_task_id = k.id AND n.parent_task_id = p.id)) c
 WHERE p.gather IS NOT NULL;

-- All that a family spent, the children that were done anew included.
CREATE VIEW lockkeeper.family_costs AS
SELECT p.id AS parent_id, c.*
  FROM lockkeeper.tasks p
 CROSS JOIN LATERAL (
       SELECT sum(k.input_tokens)::bigint AS input_tokens, sum(k.output_tokens)::bigint AS output_tokens,
              sum(k.cache_read_tokens)::bigint AS cache_read_tokens,
              sum(k.cache_write_tokens)::bigint AS cache_write_tokens,
              sum(k.llm_cost) AS llm_cost, sum(k.compute_cost) AS compute_cost, sum(k.retry_cost) AS retry_cost,
              coalesce(min(k.currency), 'USD') AS currency,
              CASE WHEN count(*) = 0 THEN 'final'
                   WHEN bool_or(k.cost_status = 'pending') THEN 'pending'
                   WHEN bool_or(k.cost_status = 'unknown') THEN 'unknown'
                   WHEN bool_or(k.cost_status = 'partial') THEN 'partial' ELSE 'final' END AS cost_status
         FROM lockkeeper.tasks t
         JOIN lockkeeper.task_costs k ON k.task_id = t.id
        WHERE t.parent_task_id = p.id AND k.attempts > 0) c
 WHERE p.gather IS NOT NULL;
