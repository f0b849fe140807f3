-- API tokens: judged by the services that people reach, made and ended by the owner's command line.

-- name: read_token
-- A token that still counts.
-- returns: its name, digest and rights; none when it ended, was revoked or never was
SELECT name, digest, rights
  FROM lockkeeper.api_tokens
 WHERE id = $1 AND revoked_at IS NULL AND expires_at > lockkeeper.clock()

-- name: add_token
-- Keep the digest of a new token, and who made it.
-- returns: the row without its digest
WITH made AS (
    INSERT INTO lockkeeper.api_tokens (id, name, digest, rights, expires_at, created_by)
    VALUES ($1, $2, $3, $4, lockkeeper.clock() + make_interval(days => $5), $6)
    RETURNING id, name, rights, created_at, created_by, expires_at, revoked_at
), audited AS (
    INSERT INTO lockkeeper.operator_audit (actor, action, target, after)
    SELECT $6, 'create_token', 'token/' || id,
           jsonb_build_object('name', name, 'rights', rights, 'expires_at', expires_at)
      FROM made
)
SELECT * FROM made

-- name: list_tokens
-- Every token that was made, the newest first.
SELECT id, name, rights, created_at, created_by, expires_at, revoked_at
  FROM lockkeeper.api_tokens ORDER BY created_at DESC, id DESC

-- name: revoke_token
-- End a token now; one that has been revoked stays as it is.
-- returns: the row; none when there is no such token that still stands
WITH ended AS (
    UPDATE lockkeeper.api_tokens SET revoked_at = lockkeeper.clock()
     WHERE id = $1 AND revoked_at IS NULL
    RETURNING id, name, rights, created_at, created_by, expires_at, revoked_at
), audited AS (
    INSERT INTO lockkeeper.operator_audit (actor, action, target, before, after)
    SELECT $2, 'revoke_token', 'token/' || id, jsonb_build_object('name', name, 'revoked_at', NULL),
           jsonb_build_object('name', name, 'revoked_at', revoked_at)
      FROM ended
)
SELECT * FROM ended
