-- What was spent before this version, and by attributors of the version before while both ran. The lock lets
-- sums in flight end first, and those that come add to what stands here.
LOCK TABLE lockkeeper.spending IN EXCLUSIVE MODE;
DELETE FROM lockkeeper.spending;
INSERT INTO lockkeeper.spending (scope, name, day, llm_cost, compute_cost)
SELECT s.scope, s.name, (x.leased_at AT TIME ZONE 'UTC')::date, sum(coalesce(x.llm_cost, 0)), sum(coalesce(x.compute_cost, 0))
  FROM lockkeeper.task_attempts x
  JOIN lockkeeper.tasks t ON t.id = x.task_id
 CROSS JOIN LATERAL (VALUES ('agent', x.agent), ('customer', t.customer)) s (scope, name)
 WHERE s.name IS NOT NULL AND (x.llm_cost IS NOT NULL OR x.compute_cost IS NOT NULL)
 GROUP BY 1, 2, 3;
