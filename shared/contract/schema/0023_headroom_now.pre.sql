-- What an agent's claims go by, but for what runs and what was used.
CREATE VIEW lockkeeper.agent_rules AS
SELECT a.name AS agent, a.max_concurrent_tasks, a.max_tpm, a.paused,
       greatest(a.cooldown_until, c.open_until) AS cooldown_until,
       CASE WHEN a.learn_estimates AND e.samples >= 20 THEN greatest(1, ceil(e.tokens))::bigint
            ELSE a.default_tokens END AS default_tokens,
       CASE WHEN a.learn_estimates AND e.samples >= 20 THEN greatest(1, ceil(e.seconds))::integer
            ELSE a.expected_seconds END AS expected_seconds,
       a.backfill, a.lease_seconds, a.by_policy, a.backfill_limit, a.fair_share, a.customer_weights,
       CASE WHEN a.learn_estimates AND e.cost_samples >= 20 THEN e.cost ELSE a.expected_cost END AS expected_cost,
       a.cooldown_until AS cooled_until, c.open_until AS circuit_until,
       CASE WHEN c.open_until IS NULL THEN 'closed' WHEN c.open_until > lockkeeper.clock() THEN 'open'
            ELSE 'half_open' END AS circuit
  FROM lockkeeper.agents a
  LEFT JOIN lockkeeper.agent_estimates e ON e.agent = a.name
  LEFT JOIN lockkeeper.agent_circuits c ON c.agent = a.name AND a.circuit_failures IS NOT NULL;

CREATE OR REPLACE VIEW lockkeeper.agent_headroom AS
SELECT r.agent, r.max_concurrent_tasks, r.max_tpm, r.paused, r.cooldown_until, r.default_tokens, r.expected_seconds,
       r.backfill, r.lease_seconds, live.running, live.reserved_tpm, spent.used_tpm,
       -- After it has failed, an agent shows with one task at a time that it works again.
       CASE WHEN r.circuit_until IS NOT NULL THEN greatest(least(r.max_concurrent_tasks, 1) - live.running, 0)
            WHEN r.max_concurrent_tasks IS NOT NULL
            THEN greatest(r.max_concurrent_tasks - live.running, 0) END AS slots,
       CASE WHEN r.max_tpm IS NOT NULL
            THEN greatest(r.max_tpm - live.reserved_tpm - spent.used_tpm, 0) END AS tokens_left,
       r.by_policy, r.backfill_limit, r.fair_share, r.customer_weights, r.expected_cost, r.cooled_until, r.circuit_until,
       r.circuit
  FROM lockkeeper.agent_rules r
 CROSS JOIN LATERAL (
       SELECT count(*) AS running, coalesce(sum(t.reserved_tpm), 0)::bigint AS reserved_tpm
         FROM lockkeeper.tasks t WHERE t.agent = r.agent AND t.status = 'processing') live
 CROSS JOIN LATERAL (
       -- What ended within the last minute still weighs with the rate that it really had.
       SELECT coalesce(sum(s.tpm), 0)::bigint AS used_tpm
         FROM lockkeeper.token_spending s
        WHERE r.max_tpm IS NOT NULL AND s.agent = r.agent
          AND s.at > lockkeeper.clock() - interval '60 seconds') spent;

-- For a claim in one statement: what it has locked is counted with a younger snapshot than its own, which a volatile
-- function takes for each of its statements. As a stable function it would count what the claim saw before it had the
-- locks. Of agents without a limit nothing is counted, whatever runs; it is only seen whether they still have none.
CREATE FUNCTION lockkeeper.headroom_now(limited text[], unlimited text[])
RETURNS TABLE (
    agent text, max_concurrent_tasks integer, max_tpm bigint, paused boolean, cooldown_until timestamptz,
    default_tokens bigint, expected_seconds integer, by_policy boolean,
    slots bigint, tokens_left bigint, is_idle boolean)
LANGUAGE plpgsql VOLATILE ROWS 8
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.agent, h.max_concurrent_tasks, h.max_tpm, h.paused, h.cooldown_until, h.default_tokens, h.expected_seconds,
           h.by_policy, h.slots, h.tokens_left, h.running = 0 AND h.used_tpm = 0
      FROM lockkeeper.agent_headroom h WHERE h.agent = ANY (limited);
    RETURN QUERY
    SELECT r.agent, r.max_concurrent_tasks, r.max_tpm, r.paused, r.cooldown_until, r.default_tokens, r.expected_seconds,
           r.by_policy, NULL::bigint, NULL::bigint, NULL::boolean
      FROM lockkeeper.agent_rules r
     WHERE r.agent = ANY (unlimited) AND r.max_concurrent_tasks IS NULL AND r.max_tpm IS NULL;
END $$;
