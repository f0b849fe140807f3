-- transaction: off
-- The lines of a task, for whoever asks why a figure is what it is.
CREATE INDEX CONCURRENTLY IF NOT EXISTS cost_entries_by_task ON lockkeeper.cost_entries (task_id);
