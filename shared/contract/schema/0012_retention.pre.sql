-- Finished tasks are removed by the sweeper, whole families at a time (remove_tasks); nothing else ever goes.

CREATE FUNCTION lockkeeper.refuse_removal() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'task % is % and cannot be removed', OLD.id, OLD.status
        USING ERRCODE = 'LK001', HINT = 'Only tasks that have ended are removed.';
END $$;
CREATE TRIGGER refuse_removal AFTER DELETE ON lockkeeper.tasks FOR EACH ROW
    WHEN (OLD.finished_at IS NULL)
    EXECUTE FUNCTION lockkeeper.refuse_removal();

-- Shared runs of which an attempt was removed: their bills stand as they are, for those that are left would be given
-- all of them.
CREATE TABLE lockkeeper.closed_bills (
    run_id    bigint PRIMARY KEY,
    closed_at timestamptz NOT NULL DEFAULT lockkeeper.clock()
);

-- SECURITY DEFINER, so that who removes attempts has no right on the ledger.
CREATE FUNCTION lockkeeper.close_bills() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO lockkeeper.closed_bills (run_id)
    SELECT DISTINCT o.run_id
      FROM removed o
     WHERE o.pack_id IS NOT NULL AND o.run_id IS NOT NULL
       AND EXISTS (SELECT FROM lockkeeper.task_attempts x WHERE x.pack_id = o.pack_id)
        ON CONFLICT (run_id) DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER close_bills AFTER DELETE ON lockkeeper.task_attempts
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT
    EXECUTE FUNCTION lockkeeper.close_bills();
