-- Nothing that the ledger ever said is lost: what a line or a price was before a change stands beside it.

ALTER TABLE lockkeeper.cost_entries
    -- Who it was spent for; the ledger outlives the tasks.
    ADD COLUMN agent text,
    ADD COLUMN customer text,
    -- Usage by model where a line holds that of several; NULL where the line's own columns say it all.
    ADD COLUMN parts jsonb,
    -- What the price table makes of the same usage, also where the trace names a cost of its own.
    ADD COLUMN list_amount numeric,
    -- False: there may be more, a trace never ended or an agent did not count every model.
    ADD COLUMN is_whole boolean NOT NULL DEFAULT true,
    ADD COLUMN version integer NOT NULL DEFAULT 1,
    -- Why the present version was written.
    ADD COLUMN reason text NOT NULL DEFAULT 'read';
CREATE INDEX cost_entries_in_other_currencies ON lockkeeper.cost_entries (task_id) WHERE currency <> 'USD';

CREATE TABLE lockkeeper.cost_entry_versions (
    LIKE lockkeeper.cost_entries,
    replaced_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (attempt_id, source, record_id, version)
);

-- SECURITY DEFINER, so that who writes the ledger has no right on its history.
CREATE FUNCTION lockkeeper.keep_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO lockkeeper.cost_entry_versions SELECT OLD.*;
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER keep_entry BEFORE UPDATE ON lockkeeper.cost_entries FOR EACH ROW
    WHEN ((OLD.amount, OLD.currency, OLD.quantity, OLD.input_tokens, OLD.output_tokens, OLD.cache_read_tokens,
           OLD.cache_write_tokens, OLD.model, OLD.priced_by, OLD.price_id)
          IS DISTINCT FROM (NEW.amount, NEW.currency, NEW.quantity, NEW.input_tokens, NEW.output_tokens,
           NEW.cache_read_tokens, NEW.cache_write_tokens, NEW.model, NEW.priced_by, NEW.price_id))
    EXECUTE FUNCTION lockkeeper.keep_entry();

ALTER TABLE lockkeeper.model_prices
    ADD COLUMN created_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    ADD COLUMN created_by text NOT NULL DEFAULT current_user;

-- A price that turned out wrong is replaced by a new row with an id of its own; the old one is kept here, since
-- lines that it priced still name it.
CREATE TABLE lockkeeper.retired_prices (
    LIKE lockkeeper.model_prices,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_by text NOT NULL DEFAULT lockkeeper.actor(),
    PRIMARY KEY (id)
);
CREATE FUNCTION lockkeeper.keep_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO lockkeeper.retired_prices SELECT OLD.*;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_price AFTER DELETE ON lockkeeper.model_prices
    FOR EACH ROW EXECUTE FUNCTION lockkeeper.keep_price();

CREATE VIEW lockkeeper.prices_ever AS
SELECT p.*, NULL::timestamptz AS retired_at, NULL::text AS retired_by FROM lockkeeper.model_prices p
UNION ALL
SELECT * FROM lockkeeper.retired_prices;

-- What usage by model costs at a moment: all parts or none, since a sum that leaves out an unpriced model would
-- pass for the whole. `price_id` only where one price made the amount.
CREATE FUNCTION lockkeeper.price_parts(parts jsonb, used_at timestamptz)
RETURNS TABLE (amount numeric, currency text, price_id bigint)
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN count(m.id) = count(*) AND count(DISTINCT m.currency) = 1 THEN sum(
               u.input_tokens * m.input_price + u.output_tokens * m.output_price
               + u.cache_read_tokens * m.cache_read_price + u.cache_write_tokens * m.cache_write_price)
               * 0.000001 END,
           min(m.currency), CASE WHEN count(*) = 1 THEN min(m.id) END
      FROM jsonb_to_recordset(parts) AS u (
           model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint)
      LEFT JOIN LATERAL (
           SELECT * FROM lockkeeper.model_prices m
            WHERE m.model = u.model AND m.valid_from <= used_at AND (m.valid_to IS NULL OR used_at < m.valid_to)
            ORDER BY m.currency <> 'USD', m.valid_from DESC
            LIMIT 1) m ON true
$$;

-- A person asked for history at the prices of now; the attributor answers by this row.
CREATE TABLE lockkeeper.repricings (
    id           uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    -- Usage in [from, to), of these models or of all.
    from_at      timestamptz NOT NULL,
    to_at        timestamptz NOT NULL CHECK (to_at > from_at),
    models       text[],
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    locked_by    text,
    lease_expires_at timestamptz,
    -- Lines looked at and changed so far, and how far that is; a replica that takes over goes on from there.
    lines        bigint NOT NULL DEFAULT 0,
    changed      bigint NOT NULL DEFAULT 0,
    after_attempt uuid,
    -- Change of the sums by currency, an exact decimal each.
    difference   jsonb NOT NULL DEFAULT '{}',
    error        text,
    finished_at  timestamptz
);
CREATE INDEX repricings_open ON lockkeeper.repricings (requested_at) WHERE status IN ('pending', 'running');

-- How far the bill of a run is known. A run is read again, with whatever else is asked for, until it is final.
CREATE TABLE lockkeeper.run_bills (
    run_id   bigint PRIMARY KEY,
    status   text NOT NULL CHECK (status IN ('pending', 'preliminary', 'final', 'unknown')),
    -- NULL while the run goes on.
    ended_at timestamptz,
    submitted_at timestamptz NOT NULL,
    records  integer NOT NULL,
    read_at  timestamptz NOT NULL DEFAULT lockkeeper.clock()
);
CREATE INDEX run_bills_open ON lockkeeper.run_bills (submitted_at) WHERE status IN ('pending', 'preliminary');
