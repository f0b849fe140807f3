-- transaction: off
-- What failed, by agent and time of its end: the dead letters, and nothing of what went well.
DROP INDEX CONCURRENTLY IF EXISTS lockkeeper.tasks_failed;
CREATE INDEX CONCURRENTLY tasks_failed ON lockkeeper.tasks (agent, finished_at) WHERE status = 'failed';
