-- The ledger: what each attempt used and what that cost, line by line.
-- A line is keyed by (source, record_id, attempt_id), so that reading a source twice changes nothing.
-- Token counters are disjoint: input, output, cache_read, cache_write. Amounts are exact decimals with
-- their currency beside them; what is not known yet is pending, never zero.

CREATE TABLE lockkeeper.cost_entries (
    source             text NOT NULL CHECK (source IN ('trace', 'callback', 'billing')),
    record_id          text NOT NULL,
    attempt_id         uuid NOT NULL,
    task_id            uuid NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('llm', 'compute')),
    model              text,
    input_tokens       bigint,
    output_tokens      bigint,
    cache_read_tokens  bigint,
    cache_write_tokens bigint,
    quantity           numeric,
    unit               text,
    sku                text,
    -- NULL: the usage is known and no price is.
    amount             numeric,
    currency           text NOT NULL DEFAULT 'USD',
    -- Who priced it: the model's own word in the trace, our dated price table, or the bill.
    priced_by          text CHECK (priced_by IN ('trace', 'price_table', 'bill')),
    price_id           bigint,
    record_type        text,
    usage_start_at     timestamptz,
    usage_end_at       timestamptz,
    recorded_at        timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    PRIMARY KEY (source, record_id, attempt_id)
);
CREATE INDEX cost_entries_by_attempt ON lockkeeper.cost_entries (attempt_id);

-- Prices per million tokens, valid in [valid_from, valid_to).
CREATE TABLE lockkeeper.model_prices (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model            text NOT NULL,
    currency         text NOT NULL DEFAULT 'USD',
    input_price      numeric NOT NULL CHECK (input_price >= 0),
    output_price     numeric NOT NULL CHECK (output_price >= 0),
    cache_read_price numeric NOT NULL DEFAULT 0 CHECK (cache_read_price >= 0),
    cache_write_price numeric NOT NULL DEFAULT 0 CHECK (cache_write_price >= 0),
    valid_from       timestamptz NOT NULL,
    valid_to         timestamptz,
    note             text NOT NULL DEFAULT '',
    CHECK (valid_to > valid_from),
    UNIQUE (model, currency, valid_from)
);

-- A person asked for the warehouse's figures; the attributor answers by this row.
CREATE TABLE lockkeeper.cost_requests (
    id           uuid PRIMARY KEY DEFAULT lockkeeper.uuid7(),
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    from_at      timestamptz NOT NULL,
    to_at        timestamptz NOT NULL CHECK (to_at > from_at),
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    locked_by    text,
    lease_expires_at timestamptz,
    attempts_billed integer,
    records      integer,
    error        text,
    finished_at  timestamptz
);
CREATE INDEX cost_requests_open ON lockkeeper.cost_requests (requested_at) WHERE status IN ('pending', 'running');

-- For people and BI: what a task cost, all its attempts together. A sum with a pending part is a lower
-- bound, and `cost_status` says so.
CREATE VIEW lockkeeper.task_costs AS
SELECT t.id AS task_id, t.agent, t.customer, t.status, t.created_at, t.finished_at, t.document_id,
       c.attempts, c.pages, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens,
       c.llm_cost, c.compute_cost, c.retry_cost, coalesce(c.currency, 'USD') AS currency,
       coalesce(c.cost_status, 'pending') AS cost_status
  FROM lockkeeper.tasks t
  LEFT JOIN LATERAL (
       SELECT count(*) AS attempts, max(x.pages) AS pages, sum(x.input_tokens)::bigint AS input_tokens,
              sum(x.output_tokens)::bigint AS output_tokens, sum(x.cache_read_tokens)::bigint AS cache_read_tokens,
              sum(x.cache_write_tokens)::bigint AS cache_write_tokens,
              sum(x.llm_cost) AS llm_cost, sum(x.compute_cost) AS compute_cost,
              sum(coalesce(x.llm_cost, 0) + coalesce(x.compute_cost, 0))
                  FILTER (WHERE x.status <> 'completed' AND (x.llm_cost IS NOT NULL OR x.compute_cost IS NOT NULL)) AS retry_cost,
              min(x.currency) AS currency,
              CASE WHEN bool_or(x.cost_status = 'pending') THEN 'pending'
                   WHEN bool_or(x.cost_status = 'unknown') THEN 'unknown'
                   WHEN bool_or(x.cost_status = 'partial') THEN 'partial' ELSE 'final' END AS cost_status
         FROM lockkeeper.task_attempts x WHERE x.task_id = t.id AND x.status <> 'released') c ON true;
