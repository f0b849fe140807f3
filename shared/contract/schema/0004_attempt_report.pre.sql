-- What an agent says about the quality of its attempt: damage it met, characters it had to drop.
ALTER TABLE lockkeeper.task_attempts ADD COLUMN report jsonb;
