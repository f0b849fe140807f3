-- The cost attributor's statements: the ledger, what it adds up to on each attempt, and requests for the bill.
-- Attempts are locked alone, without their tasks: nothing that is written here decides about a task's life. And
-- only with SKIP LOCKED: whoever never waits cannot be part of a deadlock with those who lock tasks first.

-- name: take_unattributed
-- Ended attempts whose cost is to be looked at now, this replica's share of them.
-- owner: cost_attributor
-- fence: cost_checked_at; the time of the last look is also the lease against other replicas
-- locks: task_attempts, skipping those that somebody else holds
WITH due AS MATERIALIZED (
    SELECT x.id
      FROM lockkeeper.task_attempts x
     WHERE x.cost_status = 'pending' AND x.finished_at IS NOT NULL
           -- Looked at again after 5, 8, 16 … seconds, at most a minute: traces come late, or never.
       AND (x.cost_checked_at IS NULL OR x.cost_checked_at <= lockkeeper.clock() - least(
               interval '1 minute', greatest(interval '5 seconds', lockkeeper.backoff(x.cost_checks, 1))))
     ORDER BY x.finished_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.task_attempts x
   SET cost_checked_at = lockkeeper.clock(), cost_checks = x.cost_checks + 1
  FROM due
 WHERE x.id = due.id
RETURNING x.id AS attempt_id, x.task_id, x.agent, x.trace_id, x.trace_state, x.usage,
          extract(epoch FROM lockkeeper.clock() - x.finished_at)::float8 AS ended_seconds,
          coalesce(x.started_at, x.leased_at) AS used_at,
          -- Refused by the runner, or cancelled before anybody learned of a run.
          x.run_id IS NULL AND x.trace_state IS NULL AND (
              x.status = 'failed' AND x.submitted_at IS NULL OR x.cancel_confirmed_at IS NOT NULL) AS never_ran

-- name: reopen_attempts
-- Look once more at attempts that were given up: they were heard of again.
-- owner: cost_attributor
-- locks: task_attempts, skipping those that somebody else holds
WITH given_up AS MATERIALIZED (
    SELECT id FROM lockkeeper.task_attempts
     WHERE id = ANY ($1::uuid[]) AND cost_status = 'unknown'
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.task_attempts x
   SET cost_status = 'pending', cost_checked_at = NULL, cost_checks = 0
  FROM given_up
 WHERE x.id = given_up.id

-- name: lock_attempts
-- Take the row locks under which lines are written and added up; what somebody else holds is left for later.
-- locks: task_attempts
SELECT id FROM lockkeeper.task_attempts
 WHERE id = ANY ($1::uuid[])
 ORDER BY id
   FOR NO KEY UPDATE SKIP LOCKED

-- name: record_lines
-- Write lines of usage into the ledger; a line that is there already is brought up to date, not doubled.
-- owner: cost_attributor
-- fence: (source, record_id, attempt_id)
WITH given AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS g (
           source text, record_id text, attempt_id uuid, task_id uuid, model text, input_tokens bigint,
           output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, amount numeric,
           used_at timestamptz, parts jsonb)
), priced AS (
    SELECT g.*, p.amount AS table_amount, p.currency, p.price_id
      FROM given g
      LEFT JOIN LATERAL (
           -- All parts or none: a sum that leaves out an unpriced model would pass for the whole.
           SELECT CASE WHEN count(m.id) = count(*) AND count(DISTINCT m.currency) = 1 THEN sum(
                      u.input_tokens * m.input_price + u.output_tokens * m.output_price
                      + u.cache_read_tokens * m.cache_read_price + u.cache_write_tokens * m.cache_write_price)
                      * 0.000001 END AS amount,
                  min(m.currency) AS currency, CASE WHEN count(*) = 1 THEN min(m.id) END AS price_id
             FROM jsonb_to_recordset(g.parts) AS u (
                  model text, input_tokens bigint, output_tokens bigint, cache_read_tokens bigint,
                  cache_write_tokens bigint)
             LEFT JOIN LATERAL (
                  SELECT * FROM lockkeeper.model_prices m
                   WHERE m.model = u.model AND m.valid_from <= g.used_at
                     AND (m.valid_to IS NULL OR g.used_at < m.valid_to)
                   ORDER BY m.currency <> 'USD', m.valid_from DESC
                   LIMIT 1) m ON true
           ) p ON g.amount IS NULL
)
INSERT INTO lockkeeper.cost_entries AS c
       (source, record_id, attempt_id, task_id, kind, model, input_tokens, output_tokens, cache_read_tokens,
        cache_write_tokens, amount, currency, priced_by, price_id, usage_start_at)
SELECT source, record_id, attempt_id, task_id, 'llm', model, input_tokens, output_tokens, cache_read_tokens,
       cache_write_tokens, coalesce(amount, table_amount), coalesce(currency, 'USD'),
       CASE WHEN amount IS NOT NULL AND source = 'trace' THEN 'trace'
            WHEN table_amount IS NOT NULL THEN 'price_table' END,
       CASE WHEN table_amount IS NOT NULL THEN price_id END, used_at
  FROM priced
    ON CONFLICT (source, record_id, attempt_id) DO UPDATE
   SET model = excluded.model, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
       cache_read_tokens = excluded.cache_read_tokens, cache_write_tokens = excluded.cache_write_tokens,
       amount = excluded.amount, currency = excluded.currency, priced_by = excluded.priced_by,
       price_id = excluded.price_id, recorded_at = lockkeeper.clock()
 WHERE (c.model, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.amount, c.currency)
       IS DISTINCT FROM (excluded.model, excluded.input_tokens, excluded.output_tokens, excluded.cache_read_tokens,
                         excluded.cache_write_tokens, excluded.amount, excluded.currency)

-- name: record_bills
-- Write lines of the bill into the ledger; a record that was read before is brought up to date, not doubled.
-- owner: cost_attributor
-- fence: (source, record_id, attempt_id)
INSERT INTO lockkeeper.cost_entries AS c
       (source, record_id, attempt_id, task_id, kind, quantity, unit, sku, amount, currency, priced_by, record_type,
        usage_start_at, usage_end_at)
SELECT 'billing', record_id, attempt_id, task_id, 'compute', quantity, unit, sku, amount, currency,
       CASE WHEN amount IS NOT NULL THEN 'bill' END, record_type, usage_start_at, usage_end_at
  FROM jsonb_to_recordset($1::jsonb) AS g (
       record_id text, attempt_id uuid, task_id uuid, quantity numeric, unit text, sku text, amount numeric,
       currency text, record_type text, usage_start_at timestamptz, usage_end_at timestamptz)
    ON CONFLICT (source, record_id, attempt_id) DO UPDATE
   SET quantity = excluded.quantity, amount = excluded.amount, currency = excluded.currency,
       priced_by = excluded.priced_by, record_type = excluded.record_type, recorded_at = lockkeeper.clock()
 WHERE (c.quantity, c.amount, c.currency, c.record_type)
       IS DISTINCT FROM (excluded.quantity, excluded.amount, excluded.currency, excluded.record_type)

-- name: roll_up_attempts
-- Put on each attempt what its lines add up to, and the difference on the spending of its agent and customer.
-- The lines are the truth; these sums only save adding up.
-- owner: cost_attributor
-- locks: attempts by lock_attempts, in an earlier statement, so that this snapshot holds every committed line;
--        then spending, in the order of its key, so that replicas wait for each other and never in a circle
-- returns: the tasks whose figures changed
WITH given AS MATERIALIZED (
    -- No finding: only the compute side was looked at.
    SELECT * FROM unnest($1::uuid[], $2::text[]) AS g (attempt_id, finding)
), line AS MATERIALIZED (
    SELECT c.*
      FROM given g
      JOIN lockkeeper.cost_entries c ON c.attempt_id = g.attempt_id
           -- What the agent said counts only as long as no trace says it.
     WHERE c.source <> 'callback' OR NOT EXISTS (
           SELECT FROM lockkeeper.cost_entries t WHERE t.attempt_id = c.attempt_id AND t.source = 'trace')
), total AS MATERIALIZED (
    SELECT g.attempt_id, g.finding, count(l.attempt_id) FILTER (WHERE l.kind = 'llm') AS llm_lines,
           sum(l.input_tokens) AS input_tokens, sum(l.output_tokens) AS output_tokens,
           sum(l.cache_read_tokens) AS cache_read_tokens, sum(l.cache_write_tokens) AS cache_write_tokens,
           -- Currencies are never added up; the ledger keeps the others apart.
           sum(l.amount) FILTER (WHERE l.kind = 'llm' AND l.currency = 'USD') AS llm_cost,
           sum(l.amount) FILTER (WHERE l.kind = 'compute' AND l.currency = 'USD') AS compute_cost,
           CASE WHEN count(DISTINCT l.priced_by) FILTER (WHERE l.kind = 'llm') > 1 THEN 'mixed'
                ELSE min(l.priced_by) FILTER (WHERE l.kind = 'llm') END AS llm_cost_source,
           bool_or(l.amount IS NULL OR l.currency <> 'USD') FILTER (WHERE l.kind = 'llm') AS is_unpriced
      FROM given g
      LEFT JOIN line l ON l.attempt_id = g.attempt_id
     GROUP BY g.attempt_id, g.finding
), change AS (
    SELECT s.scope, s.name, (x.leased_at AT TIME ZONE 'UTC')::date AS day,
           sum(coalesce(t.llm_cost, 0) - coalesce(x.llm_cost, 0)) AS llm_cost,
           sum(coalesce(t.compute_cost, 0) - coalesce(x.compute_cost, 0)) AS compute_cost
      FROM total t
      JOIN lockkeeper.task_attempts x ON x.id = t.attempt_id
      JOIN lockkeeper.tasks k ON k.id = x.task_id
     CROSS JOIN LATERAL (VALUES ('agent', x.agent), ('customer', k.customer)) s (scope, name)
     WHERE s.name IS NOT NULL
     GROUP BY 1, 2, 3
), spent AS (
    INSERT INTO lockkeeper.spending AS s (scope, name, day, llm_cost, compute_cost)
    SELECT * FROM change WHERE (llm_cost, compute_cost) IS DISTINCT FROM (0::numeric, 0::numeric)
     ORDER BY scope, name, day
        ON CONFLICT (scope, name, day) DO UPDATE
       SET llm_cost = s.llm_cost + excluded.llm_cost, compute_cost = s.compute_cost + excluded.compute_cost
)
UPDATE lockkeeper.task_attempts x
   SET input_tokens = t.input_tokens, output_tokens = t.output_tokens,
       cache_read_tokens = t.cache_read_tokens, cache_write_tokens = t.cache_write_tokens,
       llm_cost = t.llm_cost, llm_cost_source = t.llm_cost_source, compute_cost = t.compute_cost, currency = 'USD',
       cost_status = CASE WHEN t.finding = 'final' AND t.is_unpriced THEN 'partial'
                          ELSE coalesce(t.finding, x.cost_status) END
  FROM total t
 WHERE x.id = t.attempt_id
RETURNING x.task_id

-- name: take_cost_request
-- One open request; another that asks for the same window waits for the answer to the first.
-- owner: cost_attributor
-- fence: locked_by, lease_expires_at
-- locks: cost_requests, skipping those that somebody else holds
WITH next AS MATERIALIZED (
    SELECT r.id
      FROM lockkeeper.cost_requests r
     WHERE (r.status = 'pending' AND coalesce(r.lease_expires_at <= lockkeeper.clock(), true)
            OR r.status = 'running' AND r.lease_expires_at <= lockkeeper.clock())
       AND NOT EXISTS (
           SELECT FROM lockkeeper.cost_requests o
            WHERE o.status = 'running' AND o.lease_expires_at > lockkeeper.clock() AND o.id <> r.id
              AND o.from_at = r.from_at AND o.to_at = r.to_at)
     ORDER BY r.requested_at
     LIMIT 1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.cost_requests r
   SET status = 'running', locked_by = $1, lease_expires_at = lockkeeper.clock() + make_interval(secs => $2::float8)
  FROM next
 WHERE r.id = next.id
RETURNING r.id, r.from_at, r.to_at, extract(epoch FROM lockkeeper.clock() - r.requested_at)::float8 AS waited_seconds

-- name: list_run_shares
-- The runs that we submitted in a window, with every attempt that they carried and the time it took.
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT x.run_id
      FROM lockkeeper.task_attempts x
     WHERE x.run_id IS NOT NULL
       AND coalesce(x.submitted_at, x.leased_at) >= $1 AND coalesce(x.submitted_at, x.leased_at) < $2
)
SELECT x.run_id, x.id AS attempt_id, x.task_id,
       greatest(0, extract(epoch FROM coalesce(x.finished_at, lockkeeper.clock())
                                      - coalesce(x.started_at, x.submitted_at, x.leased_at)))::float8 AS seconds
  FROM wanted w
  JOIN lockkeeper.task_attempts x ON x.run_id = w.run_id

-- name: list_given_up
-- Attempts of a window whose usage was given up.
SELECT x.id
  FROM lockkeeper.task_attempts x
 WHERE x.cost_status = 'unknown'
   AND coalesce(x.submitted_at, x.leased_at) >= $1 AND coalesce(x.submitted_at, x.leased_at) < $2

-- name: finish_cost_request
-- Answer a request, and with it those that asked for no more while it waited.
-- owner: cost_attributor
-- fence: locked_by
UPDATE lockkeeper.cost_requests r
   SET status = $3, attempts_billed = $4, records = $5, error = $6, finished_at = lockkeeper.clock(),
       lease_expires_at = NULL
  FROM lockkeeper.cost_requests mine
 WHERE mine.id = $1 AND mine.status = 'running' AND mine.locked_by = $2
   AND (r.id = mine.id OR $3 = 'done' AND r.status = 'pending' AND r.from_at >= mine.from_at AND r.to_at <= mine.to_at)

-- name: postpone_cost_request
-- Try a request again after a while.
-- owner: cost_attributor
-- fence: locked_by
UPDATE lockkeeper.cost_requests
   SET status = 'pending', error = $3, lease_expires_at = lockkeeper.clock() + make_interval(secs => $4::float8)
 WHERE id = $1 AND status = 'running' AND locked_by = $2
