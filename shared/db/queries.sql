-- What every process asks about its database.

-- name: read_adopted
-- Whether this database is the one that acts, and no copy of it.
SELECT lockkeeper.is_adopted()
