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
-- Look once more at attempts that were given up, or of which there may be more: they were heard of again.
-- owner: cost_attributor
-- locks: task_attempts, skipping those that somebody else holds
WITH given_up AS MATERIALIZED (
    SELECT id FROM lockkeeper.task_attempts
     WHERE id = ANY ($1::uuid[]) AND cost_status IN ('unknown', 'partial')
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
-- Write lines of usage into the ledger; a line that is there already is brought up to date, not doubled, and what
-- it was before is kept (keep_entry).
-- owner: cost_attributor
-- fence: (source, record_id, attempt_id)
WITH given AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS g (
           source text, record_id text, attempt_id uuid, task_id uuid, kind text, model text, input_tokens bigint,
           output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, amount numeric,
           used_at timestamptz, parts jsonb, is_whole boolean)
)
INSERT INTO lockkeeper.cost_entries AS c
       (source, record_id, attempt_id, task_id, agent, customer, kind, model, input_tokens, output_tokens,
        cache_read_tokens, cache_write_tokens, parts, amount, list_amount, currency, priced_by, price_id,
        usage_start_at, is_whole)
SELECT g.source, g.record_id, g.attempt_id, g.task_id, x.agent, t.customer, g.kind, g.model, g.input_tokens,
       g.output_tokens, g.cache_read_tokens, g.cache_write_tokens,
       CASE WHEN jsonb_array_length(g.parts) > 1 THEN g.parts END, coalesce(g.amount, p.amount), p.amount,
       -- A trace names dollars; the table names its own currency.
       CASE WHEN g.amount IS NULL THEN coalesce(p.currency, 'USD') ELSE 'USD' END,
       CASE WHEN g.amount IS NOT NULL AND g.source = 'trace' THEN 'trace'
            WHEN g.amount IS NULL AND p.amount IS NOT NULL THEN 'price_table' END,
       CASE WHEN g.amount IS NULL AND p.amount IS NOT NULL THEN p.price_id END, g.used_at, g.is_whole
  FROM given g
  JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
  LEFT JOIN lockkeeper.tasks t ON t.id = x.task_id
 CROSS JOIN LATERAL lockkeeper.price_parts(g.parts, g.used_at) p
    ON CONFLICT (source, record_id, attempt_id) DO UPDATE
   SET model = excluded.model, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
       cache_read_tokens = excluded.cache_read_tokens, cache_write_tokens = excluded.cache_write_tokens,
       parts = excluded.parts, amount = excluded.amount, list_amount = excluded.list_amount,
       currency = excluded.currency, priced_by = excluded.priced_by, price_id = excluded.price_id,
       is_whole = excluded.is_whole, reason = 'read', recorded_at = lockkeeper.clock()
 WHERE (c.model, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.is_whole)
       IS DISTINCT FROM (excluded.model, excluded.input_tokens, excluded.output_tokens, excluded.cache_read_tokens,
                         excluded.cache_write_tokens, excluded.is_whole)
    -- A price that changed since does not change what stands: history is priced anew only when a person asks.
    OR excluded.priced_by = 'trace' AND (c.amount, c.priced_by) IS DISTINCT FROM (excluded.amount, excluded.priced_by)
    OR c.amount IS NULL AND excluded.amount IS NOT NULL

-- name: record_bills
-- Write lines of the bill into the ledger; a record that was read before is brought up to date, not doubled, and
-- what it was before is kept.
-- owner: cost_attributor
-- fence: (source, record_id, attempt_id)
INSERT INTO lockkeeper.cost_entries AS c
       (source, record_id, attempt_id, task_id, agent, customer, kind, quantity, unit, sku, amount, currency,
        priced_by, record_type, usage_start_at, usage_end_at)
SELECT 'billing', g.record_id, g.attempt_id, g.task_id, x.agent, t.customer, 'compute', g.quantity, g.unit, g.sku,
       g.amount, g.currency, CASE WHEN g.amount IS NOT NULL THEN 'bill' END, g.record_type, g.usage_start_at,
       g.usage_end_at
  FROM jsonb_to_recordset($1::jsonb) AS g (
       record_id text, attempt_id uuid, task_id uuid, quantity numeric, unit text, sku text, amount numeric,
       currency text, record_type text, usage_start_at timestamptz, usage_end_at timestamptz)
  JOIN lockkeeper.task_attempts x ON x.id = g.attempt_id
  LEFT JOIN lockkeeper.tasks t ON t.id = x.task_id
    ON CONFLICT (source, record_id, attempt_id) DO UPDATE
   SET quantity = excluded.quantity, amount = excluded.amount, currency = excluded.currency,
       priced_by = excluded.priced_by, record_type = excluded.record_type, reason = 'read',
       recorded_at = lockkeeper.clock()
 WHERE (c.quantity, c.amount, c.currency, c.record_type)
       IS DISTINCT FROM (excluded.quantity, excluded.amount, excluded.currency, excluded.record_type)

-- name: list_changed_bills
-- Those of these lines of the bill that the ledger does not say yet: a month that is read again is locked and written
-- where it changed, and nowhere else.
SELECT g.record_id, g.attempt_id
  FROM jsonb_to_recordset($1::jsonb) AS g (
       record_id text, attempt_id uuid, quantity numeric, amount numeric, currency text, record_type text)
  LEFT JOIN lockkeeper.cost_entries c
    ON c.source = 'billing' AND c.record_id = g.record_id AND c.attempt_id = g.attempt_id
 WHERE (c.quantity, c.amount, c.currency, c.record_type)
       IS DISTINCT FROM (g.quantity, g.amount, g.currency, g.record_type)

-- name: record_run_bills
-- How far the bill of each of these runs is known now. It is final once it was read long enough after the run's
-- end; a run that has no row by then will not get one, and its cost is unknown.
-- owner: cost_attributor
INSERT INTO lockkeeper.run_bills AS b (run_id, records, submitted_at, ended_at, status)
SELECT g.run_id, g.records, g.submitted_at, g.ended_at,
       CASE WHEN coalesce(g.ended_at > lockkeeper.clock() - make_interval(secs => $5::float8), true)
            THEN CASE WHEN g.records > 0 THEN 'preliminary' ELSE 'pending' END
            WHEN g.records > 0 THEN 'final' ELSE 'unknown' END
  FROM unnest($1::bigint[], $2::integer[], $3::timestamptz[], $4::timestamptz[])
       AS g (run_id, records, submitted_at, ended_at)
 ORDER BY g.run_id
    ON CONFLICT (run_id) DO UPDATE
   SET status = excluded.status, ended_at = excluded.ended_at, records = excluded.records, read_at = lockkeeper.clock()

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
           bool_or(l.amount IS NULL OR l.currency <> 'USD' OR NOT l.is_whole) FILTER (WHERE l.kind = 'llm') AS is_partial
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
       cost_status = CASE WHEN t.finding = 'final' AND t.is_partial THEN 'partial'
                          -- A price that was missing is there now: what was partial for want of it is whole.
                          WHEN t.finding = 'repriced' AND x.cost_status = 'partial' AND NOT t.is_partial THEN 'final'
                          WHEN t.finding = 'repriced' THEN x.cost_status
                          -- Nothing new was found, and what was known before still stands.
                          WHEN t.finding = 'unknown' AND t.llm_lines > 0 THEN 'partial'
                          ELSE coalesce(t.finding, x.cost_status) END
  FROM total t
 WHERE x.id = t.attempt_id
RETURNING x.task_id

-- name: lock_requests
-- Let one replica at a time decide about requests for the bill.
-- locks: a transaction-wide advisory lock
SELECT pg_advisory_xact_lock(4951, 2)

-- name: take_cost_request
-- One open request, and never while another is being answered: so no two statements for the same runs are at the
-- warehouse at once. Called after lock_requests, whose holder alone decides.
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
            WHERE o.status = 'running' AND o.lease_expires_at > lockkeeper.clock() AND o.id <> r.id)
     ORDER BY r.requested_at
     LIMIT 1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.cost_requests r
   SET status = 'running', locked_by = $1, lease_expires_at = lockkeeper.clock() + make_interval(secs => $2::float8)
  FROM next
 WHERE r.id = next.id
RETURNING r.id, r.from_at, r.to_at, extract(epoch FROM lockkeeper.clock() - r.requested_at)::float8 AS waited_seconds

-- name: extend_cost_request
-- Go on holding a request; none means that it went to another replica.
-- owner: cost_attributor
-- fence: locked_by
UPDATE lockkeeper.cost_requests
   SET lease_expires_at = lockkeeper.clock() + make_interval(secs => $3::float8)
 WHERE id = $1 AND status = 'running' AND locked_by = $2
RETURNING id

-- name: schedule_cost_request
-- Ask for the bill of the last days where nobody did for so long. Called after lock_requests.
-- owner: cost_attributor
INSERT INTO lockkeeper.cost_requests (requested_by, from_at, to_at)
SELECT 'schedule', lockkeeper.clock() - make_interval(secs => $2::float8), lockkeeper.clock()
 WHERE NOT EXISTS (
       SELECT FROM lockkeeper.cost_requests r
        WHERE r.status IN ('pending', 'running')
           OR r.requested_at > lockkeeper.clock() - make_interval(secs => $1::float8))
RETURNING id

-- name: list_run_shares
-- The runs that we submitted in a window, and earlier ones whose bill was read and is not final, with every attempt
-- that they carried and the time that it took of the run. A run with an attempt that was removed is left as it is.
WITH wanted AS MATERIALIZED (
    SELECT x.run_id
      FROM lockkeeper.task_attempts x
     WHERE x.run_id IS NOT NULL
       AND coalesce(x.submitted_at, x.leased_at) >= $1 AND coalesce(x.submitted_at, x.leased_at) < $2
     UNION
    SELECT b.run_id
      FROM lockkeeper.run_bills b
     WHERE b.status IN ('pending', 'preliminary') AND b.submitted_at < $1
       AND b.submitted_at >= $1 - interval '62 days'
)
SELECT x.run_id, x.id AS attempt_id, x.task_id, coalesce(x.submitted_at, x.leased_at) AS submitted_at, x.finished_at,
       -- In a run that is shared, an attempt's time is from its own turn on; one whose turn never came took none.
       CASE WHEN x.pack_id IS NOT NULL AND x.started_at IS NULL THEN 0
            ELSE greatest(0, extract(epoch FROM coalesce(x.finished_at, lockkeeper.clock())
                                      - coalesce(x.started_at, x.submitted_at, x.leased_at))) END AS seconds
  FROM wanted w
  JOIN lockkeeper.task_attempts x ON x.run_id = w.run_id
 WHERE NOT EXISTS (SELECT FROM lockkeeper.closed_bills b WHERE b.run_id = w.run_id)

-- name: list_given_up
-- Attempts of a window whose usage was given up, or is known in part only.
SELECT x.id
  FROM lockkeeper.task_attempts x
 WHERE (x.cost_status = 'unknown' OR x.cost_status = 'partial' AND EXISTS (
        SELECT FROM lockkeeper.cost_entries c WHERE c.attempt_id = x.id AND NOT c.is_whole))
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

-- name: take_repricing
-- One open request to price history anew.
-- owner: cost_attributor
-- fence: locked_by, lease_expires_at
-- locks: repricings, skipping those that somebody else holds
WITH next AS MATERIALIZED (
    SELECT r.id
      FROM lockkeeper.repricings r
     WHERE r.status IN ('pending', 'running') AND coalesce(r.lease_expires_at <= lockkeeper.clock(), true)
     ORDER BY r.requested_at
     LIMIT 1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lockkeeper.repricings r
   SET status = 'running', locked_by = $1, lease_expires_at = lockkeeper.clock() + make_interval(secs => $2::float8)
  FROM next
 WHERE r.id = next.id
RETURNING r.id, r.from_at, r.to_at, r.models, r.after_attempt

-- name: list_to_reprice
-- The next attempts with usage of a time, in the order of their ids. A model call of the underwriter is an attempt
-- of no task: nobody else writes its line, and there is no row to lock. What a removed task spent keeps its price,
-- as the spending of its day does.
SELECT DISTINCT c.attempt_id, x.id IS NOT NULL AS is_of_task
  FROM lockkeeper.cost_entries c
  LEFT JOIN lockkeeper.task_attempts x ON x.id = c.attempt_id
 WHERE c.attempt_id > coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid)
   AND c.kind = 'llm' AND c.model IS NOT NULL AND (x.id IS NOT NULL OR c.source = 'underwriting')
   AND coalesce(c.usage_start_at, c.recorded_at) >= $2 AND coalesce(c.usage_start_at, c.recorded_at) < $3
 ORDER BY c.attempt_id
 LIMIT $4

-- name: reprice_lines
-- Price the usage of these attempts anew, each by the time of its use. A price never goes away by this, and what
-- a trace named stays; each line keeps what it was before (keep_entry).
-- owner: cost_attributor
-- locks: attempts, by lock_attempts
-- returns: the lines that changed with both figures
WITH priced AS MATERIALIZED (
    SELECT c.source, c.record_id, c.attempt_id, c.amount AS old_amount, c.currency AS old_currency,
           coalesce(c.usage_start_at, c.recorded_at) AS used_at, p.amount, p.currency, p.price_id,
           c.priced_by IS DISTINCT FROM 'trace' AND (c.amount, c.currency) IS DISTINCT FROM (p.amount, p.currency)
               AS is_changed
      FROM lockkeeper.cost_entries c
     CROSS JOIN LATERAL lockkeeper.price_parts(coalesce(c.parts, jsonb_build_array(jsonb_build_object(
           'model', c.model, 'input_tokens', c.input_tokens, 'output_tokens', c.output_tokens,
           'cache_read_tokens', coalesce(c.cache_read_tokens, 0),
           'cache_write_tokens', coalesce(c.cache_write_tokens, 0)))), coalesce(c.usage_start_at, c.recorded_at)) p
     WHERE c.attempt_id = ANY ($1::uuid[]) AND c.kind = 'llm' AND c.model IS NOT NULL AND p.amount IS NOT NULL
       AND coalesce(c.usage_start_at, c.recorded_at) >= $2 AND coalesce(c.usage_start_at, c.recorded_at) < $3
           -- What an agent said and a trace says better counts for nothing, so it has no price to change.
       AND NOT (c.source = 'callback' AND EXISTS (
            SELECT FROM lockkeeper.cost_entries t WHERE t.attempt_id = c.attempt_id AND t.source = 'trace'))
       AND ($4::text[] IS NULL OR c.model = ANY ($4) OR EXISTS (
            SELECT FROM jsonb_array_elements(c.parts) e WHERE e ->> 'model' = ANY ($4)))
)
UPDATE lockkeeper.cost_entries c
   SET amount = CASE WHEN w.is_changed THEN w.amount ELSE c.amount END,
       currency = CASE WHEN w.is_changed THEN w.currency ELSE c.currency END,
       priced_by = CASE WHEN w.is_changed THEN 'price_table' ELSE c.priced_by END,
       price_id = CASE WHEN w.is_changed THEN w.price_id ELSE c.price_id END,
       reason = CASE WHEN w.is_changed THEN $5 ELSE c.reason END,
       recorded_at = CASE WHEN w.is_changed THEN lockkeeper.clock() ELSE c.recorded_at END,
       usage_start_at = w.used_at, list_amount = w.amount
  FROM priced w
 WHERE (c.source, c.record_id, c.attempt_id) = (w.source, w.record_id, w.attempt_id)
   AND (w.is_changed OR c.list_amount IS DISTINCT FROM w.amount)
RETURNING c.attempt_id, w.is_changed, w.old_amount, w.old_currency, c.amount, c.currency

-- name: advance_repricing
-- Note how far a request is, in the transaction that took it there.
-- owner: cost_attributor
-- fence: locked_by
-- returns: the request; none means that it went to another replica
UPDATE lockkeeper.repricings r
   SET after_attempt = $3, lines = r.lines + $4, changed = r.changed + $5,
       difference = coalesce((
           SELECT jsonb_object_agg(d.key, d.total::text)
             FROM (SELECT e.key, sum(e.value::numeric) AS total
                     FROM (SELECT * FROM jsonb_each_text(r.difference)
                           UNION ALL SELECT * FROM jsonb_each_text($6::jsonb)) e GROUP BY e.key) d), '{}'),
       lease_expires_at = lockkeeper.clock() + make_interval(secs => $7::float8)
 WHERE r.id = $1 AND r.status = 'running' AND r.locked_by = $2
RETURNING r.id

-- name: finish_repricing
-- Answer a request.
-- owner: cost_attributor
-- fence: locked_by
UPDATE lockkeeper.repricings
   SET status = $3, error = $4, finished_at = lockkeeper.clock(), lease_expires_at = NULL
 WHERE id = $1 AND status = 'running' AND locked_by = $2

-- name: list_budgets
-- How far each budget is spent in its present period, what is reserved for running attempts apart.
SELECT b.scope, b.name, p.period, p.begins, p.budget, p.spent, p.reserved
  FROM lockkeeper.budget_state b
 CROSS JOIN LATERAL (VALUES
       ('day', (lockkeeper.clock() AT TIME ZONE 'UTC')::date, b.daily_budget, b.spent_today, b.reserved_today),
       ('month', date_trunc('month', lockkeeper.clock() AT TIME ZONE 'UTC')::date, b.monthly_budget,
        b.spent_this_month, b.reserved_this_month)) p (period, begins, budget, spent, reserved)
 WHERE p.budget > 0

-- name: record_alerts
-- Write down that budgets were spent to a share; what was said for this period is not said again.
-- owner: cost_attributor
-- fence: one row for each budget, period and share
-- returns: the alerts that are new
INSERT INTO lockkeeper.budget_alerts (scope, name, period, begins, share, budget, spent, reserved)
SELECT * FROM jsonb_to_recordset($1::jsonb) AS g (
       scope text, name text, period text, begins date, share numeric, budget numeric, spent numeric, reserved numeric)
 ORDER BY scope, name, period, begins, share
    ON CONFLICT DO NOTHING
RETURNING scope, name, period, share, budget, spent
