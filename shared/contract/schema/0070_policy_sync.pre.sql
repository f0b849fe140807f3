-- A synced table belongs to a role of the platform, which makes it anew at a full refresh: its grants are gone
-- then, and whatever depends on it would stand in the way. So it lies in a schema of its own, and the limits are
-- read through a function that names it only when it is asked. Where no sync was ever set up, our own table holds
-- the limits. A sync that is there but cannot be read is an error, never a reason to read older limits.
CREATE FUNCTION agent_policy.limits() RETURNS TABLE (
    purpose text, policy_name text, policy_version text, minimum_score integer, automatic_approval_dti numeric,
    hard_reject_score integer, hard_reject_dti numeric, source text, synced_at timestamptz
)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'agent_policy_sync') THEN
        -- By way of JSON: the synced table has the columns of its source, and `source` and `synced_at` are optional.
        RETURN QUERY EXECUTE
            'SELECT l.* FROM agent_policy_sync.underwriting_policy_limits t,
                    jsonb_to_record(to_jsonb(t) || jsonb_build_object(
                        ''source'', coalesce(to_jsonb(t) ->> ''source'', ''unity_catalog''))) AS l (
                        purpose text, policy_name text, policy_version text, minimum_score integer,
                        automatic_approval_dti numeric, hard_reject_score integer, hard_reject_dti numeric,
                        source text, synced_at timestamptz)';
    ELSE
        RETURN QUERY
            SELECT t.purpose, t.policy_name, t.policy_version, t.minimum_score, t.automatic_approval_dti,
                   t.hard_reject_score, t.hard_reject_dti, t.source, t.synced_at
              FROM agent_policy.underwriting_policy_limits t;
    END IF;
END $$;
