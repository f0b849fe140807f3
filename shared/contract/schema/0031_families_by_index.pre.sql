-- transaction: off
-- As many entries as parents wait, and as children that have not ended.
DROP INDEX CONCURRENTLY IF EXISTS lockkeeper.tasks_gathering;
CREATE INDEX CONCURRENTLY tasks_gathering ON lockkeeper.tasks (id)
    WHERE gather IS NOT NULL AND status = 'enqueued';
DROP INDEX CONCURRENTLY IF EXISTS lockkeeper.tasks_open_children;
CREATE INDEX CONCURRENTLY tasks_open_children ON lockkeeper.tasks (parent_task_id)
    WHERE parent_task_id IS NOT NULL AND status IN ('enqueued', 'processing');
