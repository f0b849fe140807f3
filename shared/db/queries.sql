-- What every service that writes by attempt does first.

-- name: lock_tasks
-- Take the row locks under which the next statement decides.
-- locks: tasks by id
SELECT t.id
  FROM lockkeeper.tasks t
 WHERE t.id IN (SELECT x.task_id FROM lockkeeper.task_attempts x WHERE x.id = ANY ($1::uuid[]))
 ORDER BY t.id
   FOR NO KEY UPDATE

-- name: read_adopted
-- Whether this database is the one that acts, and no copy of it.
SELECT lockkeeper.is_adopted()
