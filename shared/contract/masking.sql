-- What a copy of production need not know of customers: who they are, what was asked, what was read and answered.
DO $$
DECLARE each record;
BEGIN
    -- One name stays one name everywhere, so that sums by customer still add up.
    FOR each IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                 WHERE c.relnamespace = 'lockkeeper'::regnamespace AND c.relkind = 'r'
                   AND a.attname = 'customer' AND NOT a.attisdropped LOOP
        EXECUTE format('UPDATE %s SET customer = ''customer-'' || left(md5(customer), 12)', each.name);
    END LOOP;
END $$;
UPDATE lockkeeper.tasks
   SET input = '{}', labels = '{}', result = CASE WHEN result IS NOT NULL THEN '{"masked": true}'::jsonb END,
       error = CASE WHEN error IS NOT NULL THEN jsonb_build_object('reason', error -> 'reason', 'message', 'masked') END;
UPDATE lockkeeper.task_attempts
   SET report = NULL,
       error = CASE WHEN error IS NOT NULL THEN jsonb_build_object('reason', error -> 'reason', 'message', 'masked') END;
UPDATE lockkeeper.attempt_results SET result = '{"masked": true}', report = '{}';
UPDATE lockkeeper.documents SET name = 'document-' || left(md5(name), 12) || '.pdf';
UPDATE agent_ops.agent_runs
   SET applicant = 'applicant-' || left(md5(applicant), 12), request = '{"masked": true}',
       recommendation = CASE WHEN recommendation IS NOT NULL THEN '{"masked": true}'::jsonb END;
UPDATE agent_ops.agent_messages SET content = 'masked', tool_calls = '[]', reading = NULL, raw = NULL;
UPDATE agent_ops.agent_tool_calls
   SET arguments = '{"masked": true}', result = CASE WHEN result IS NOT NULL THEN '{"masked": true}'::jsonb END;
UPDATE agent_ops.agent_review_decisions SET note = 'masked';
UPDATE agent_ops.events SET details = '{}';
