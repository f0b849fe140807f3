-- Which database this is, so that a copy knows that it is one. A copy of production holds production's queue: it
-- must dispatch, call back, bill and notify nothing until somebody adopts it on purpose (`lockkeeper branch adopt`).

CREATE TABLE lockkeeper.deployment (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- A copy made from a template, a dump or a backup has another id here than it remembers.
    database   oid NOT NULL,
    -- A Lakebase branch copies the id too; there the branch that the session was opened on tells them apart.
    branch     text NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    adopted_by text NOT NULL DEFAULT session_user
);

CREATE FUNCTION lockkeeper.is_adopted() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE SET search_path = pg_catalog
AS $$
    SELECT EXISTS (
        SELECT FROM lockkeeper.deployment d
         WHERE d.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND d.branch = coalesce(current_setting('lockkeeper.branch', true), ''))
$$;

-- Make this database the one that acts, for sessions that name this branch. The owner's alone.
CREATE FUNCTION lockkeeper.adopt(of_branch text, by_whom text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog
AS $$
    INSERT INTO lockkeeper.deployment (database, branch, adopted_by)
    SELECT oid, of_branch, by_whom FROM pg_database WHERE datname = current_database()
        ON CONFLICT (only_row) DO UPDATE
       SET database = excluded.database, branch = excluded.branch, adopted_at = clock_timestamp(),
           adopted_by = excluded.adopted_by
$$;
