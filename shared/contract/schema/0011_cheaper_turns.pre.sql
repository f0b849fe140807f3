-- A task's row is written three times: enqueued, claimed, ended. With room for all three on its page the later versions
-- stay beside the first: their log records hold the difference only, and no second page is looked for and locked.
ALTER TABLE lockkeeper.tasks SET (fillfactor = 50);

-- As before, but looked at after the update instead of before it, which spares taking each row a second time.
DROP TRIGGER refuse_transition ON lockkeeper.tasks;
CREATE TRIGGER refuse_transition AFTER UPDATE OF status ON lockkeeper.tasks FOR EACH ROW
    WHEN (OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN (
        'enqueued>processing', 'enqueued>completed', 'enqueued>failed', 'enqueued>cancelled',
        'processing>enqueued', 'processing>completed', 'processing>failed', 'processing>cancelled'))
    EXECUTE FUNCTION lockkeeper.refuse_transition();
