-- transaction: off
-- The next tasks of each customer of an agent, for those that share fairly or have budgets; a task without a
-- customer has no entry. And the attempts that share a run.
CREATE INDEX CONCURRENTLY IF NOT EXISTS tasks_ready_by_customer
    ON lockkeeper.tasks (agent, customer, priority DESC, created_at, id)
    WHERE status = 'enqueued' AND NOT deferred AND customer IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS attempts_by_pack ON lockkeeper.task_attempts (pack_id) WHERE pack_id IS NOT NULL;
