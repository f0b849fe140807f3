-- Tokens of programs. Only a digest is kept: whoever reads this table can use none of them.
CREATE TABLE lockkeeper.api_tokens (
    id         uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    name       text NOT NULL CHECK (name <> ''),
    -- SHA-256 of the secret part, which has 256 random bits of its own.
    digest     bytea NOT NULL CHECK (length(digest) = 32),
    rights     text[] NOT NULL CHECK (rights <@ ARRAY['read', 'operate', 'review', 'administer'] AND rights <> '{}'),
    created_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    created_by text NOT NULL DEFAULT current_user,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
