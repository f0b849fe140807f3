-- The client's statements; they run inside the caller's transaction, under the caller's login.

-- name: enqueue_tasks
-- Put tasks into the queue, and say so when the caller commits.
-- The console owns the verb; the caller enqueues under a login that was granted the same rights.
-- fence: the idempotency key is unique; whoever comes second inserts nothing and finds the first one's task
-- A column that says nothing comes as an empty array, an agent or priority of all as an array of one.
-- returns: one row: agents that do not exist (then nothing was inserted), and the rows whose key was taken
WITH moment AS MATERIALIZED (
    -- Read once, not for every row.
    SELECT lockkeeper.clock() AS now
), unknown AS MATERIALIZED (
    SELECT DISTINCT g.agent FROM unnest($2::text[]) AS g (agent)
     WHERE NOT EXISTS (SELECT FROM lockkeeper.agents a WHERE a.name = g.agent)
), valued AS NOT MATERIALIZED (
    -- Made for each of the two inserts below; what has a key and what has none meet their rows before any is worked out.
    SELECT g.id, a.name AS agent, g.customer, coalesce(g.priority, ($4::smallint[])[1]) AS priority,
           g.input::jsonb AS input, coalesce(g.labels::jsonb, '{}') AS labels,
           -- A parent is never due: its children end it.
           CASE WHEN g.gather IS NOT NULL THEN '9999-01-01Z' ELSE coalesce(g.available_at, m.now) END AS available_at,
           g.gather IS NOT NULL OR coalesce(g.available_at > m.now, false) AS deferred,
           coalesce(g.max_attempts, a.max_attempts) AS max_attempts, g.document_id, g.idempotency_key, g.request_digest,
           -- Uncounted pages are guessed from the size; without a document the agent's default holds.
           coalesce(g.estimated_tokens, CASE WHEN d.id IS NOT NULL THEN
                    greatest(1, coalesce(d.pages, round(d.bytes / 60000.0)))
                    * CASE WHEN a.learn_estimates AND a.learned_tokens_per_page IS NOT NULL
                           THEN a.learned_tokens_per_page ELSE a.tokens_per_page END END) AS estimated_tokens,
           g.parent_task_id, g.gather, m.now AS created_at
      FROM moment m
     CROSS JOIN unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::timestamptz[],
                       $8::smallint[], $9::uuid[], $10::text[], $11::text[], $12::bigint[], $13::uuid[], $14::text[])
           AS g (id, agent, customer, priority, input, labels, available_at, max_attempts, document_id,
                 idempotency_key, request_digest, estimated_tokens, parent_task_id, gather)
      JOIN lockkeeper.agents a ON a.name = coalesce(g.agent, ($2::text[])[1])
      LEFT JOIN lockkeeper.documents d ON d.id = g.document_id
     WHERE NOT EXISTS (SELECT FROM unknown)
), made AS (
    INSERT INTO lockkeeper.tasks
           (id, agent, customer, priority, input, labels, available_at, deferred, max_attempts, document_id,
            idempotency_key, request_digest, estimated_tokens, parent_task_id, gather, created_at)
    SELECT * FROM valued WHERE idempotency_key IS NOT NULL
        ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id
), made_unkeyed AS (
    -- Nothing to be in conflict with, and so without the price of looking for it.
    INSERT INTO lockkeeper.tasks
           (id, agent, customer, priority, input, labels, available_at, deferred, max_attempts, document_id,
            idempotency_key, request_digest, estimated_tokens, parent_task_id, gather, created_at)
    SELECT * FROM valued WHERE idempotency_key IS NULL
)
SELECT ARRAY(SELECT agent FROM unknown ORDER BY agent) AS unknown_agents,
       -- Only a row with a key can have been left out.
       ARRAY(SELECT g.id FROM unnest($1::uuid[], $10::text[]) AS g (id, idempotency_key)
              WHERE g.idempotency_key IS NOT NULL
                AND NOT EXISTS (SELECT FROM made m WHERE m.id = g.id)) AS taken,
       (SELECT count(pg_notify(n.channel, n.payload))
          FROM unnest($15::text[], $16::text[]) AS n (channel, payload)) AS notes

-- name: read_max_attempts
-- These agents, as far as they exist, with what their tasks get unless they say otherwise.
SELECT name, max_attempts FROM lockkeeper.agents WHERE name = ANY ($1::text[])

-- name: note_tasks
-- Say that there are tasks, when the caller commits.
SELECT count(pg_notify(n.channel, n.payload)) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)

-- name: lock_parents
-- Keep these parents from ending before the caller's transaction does.
-- locks: tasks by id, shared: many may add children at once, but nobody while a parent is ended
-- returns: each with its status and rule, as of now
SELECT id, status, gather FROM lockkeeper.tasks WHERE id = ANY ($1::uuid[]) ORDER BY id FOR SHARE

-- name: find_keyed_tasks
-- The tasks that idempotency keys stand for. A later statement, so that it sees what won the race.
SELECT idempotency_key, id, request_digest
  FROM lockkeeper.tasks
 WHERE idempotency_key = ANY ($1::text[])
