-- The price table: what a model's tokens cost from a moment on. A price that was wrong is replaced by a new row, and
-- the database keeps the old one (keep_price).

-- name: lock_prices
-- Let one person at a time change prices.
-- locks: a transaction-wide advisory lock
SELECT pg_advisory_xact_lock(4951, 3)

-- name: list_prices
-- The prices of a model, or of all; with $2 also those that were replaced.
SELECT p.* FROM lockkeeper.prices_ever p
 WHERE ($1::text IS NULL OR p.model = $1) AND ($2 OR p.retired_at IS NULL)
 ORDER BY p.model, p.currency, p.valid_from, p.retired_at NULLS LAST

-- name: retire_price
-- Take a price out of force; lines that it made still find it.
-- owner: console
DELETE FROM lockkeeper.model_prices WHERE id = $1

-- name: end_price
-- Let a price end where another begins.
-- owner: console
UPDATE lockkeeper.model_prices SET valid_to = $2 WHERE id = $1

-- name: add_price
-- Put a price into force.
-- owner: console
INSERT INTO lockkeeper.model_prices
       (model, currency, input_price, output_price, cache_read_price, cache_write_price, valid_from, valid_to, note,
        created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
RETURNING id

-- name: request_repricing
-- Ask the cost attributor to price history anew.
-- owner: console
INSERT INTO lockkeeper.repricings (requested_by, from_at, to_at, models) VALUES ($1, $2, $3, $4) RETURNING id

-- name: read_repricing
-- How far that is.
SELECT id AS repricing_id, status, requested_by, requested_at, from_at, to_at, models, lines, changed, difference, error,
       finished_at
  FROM lockkeeper.repricings
 WHERE id = $1
