"""Statements broken on purpose: proofs that find none of them prove nothing.

Each variant names the text that it takes out of a real statement. When a statement changes so that the text
is no longer there, the variant fails loudly: break it again, in its new words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.gates import Rewrite


@dataclass(frozen=True)
class Variant:
    """A fault: what was forgotten, the changes of statements that forget it, and the scenario that shows it."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    scenario: str = ""

    def rewrite(self) -> Rewrite:
        """`service.statement` to the change of its text."""
        changes: dict[str, list[tuple[str, str]]] = {}
        for statement, old, new in self.changes:
            changes.setdefault(statement, []).append((old, new))
        return {statement: _replacing(self.name, statement, pairs) for statement, pairs in changes.items()}


def _replacing(variant: str, statement: str, pairs: list[tuple[str, str]]) -> Callable[[str], str]:
    def change(sql: str) -> str:
        for old, new in pairs:
            if old not in sql:
                raise LookupError(f"{variant}: {statement} does not say {old!r} any more")
            sql = sql.replace(old, new)
        return sql

    return change


_NO_LOCK = ("   FOR NO KEY UPDATE", "")
_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
_LOCK_AGENT = "FOR NO KEY UPDATE OF a SKIP LOCKED"
_NOW = """FROM lockkeeper.headroom_now(
               ARRAY(SELECT name FROM served WHERE locked), ARRAY(SELECT name FROM served WHERE NOT locked)) h"""
_THEN = """FROM (SELECT *, running = 0 AND used_tpm = 0 AS is_idle FROM lockkeeper.agent_headroom
                WHERE agent = ANY (ARRAY(SELECT name FROM served))) h"""
_UNSEEN = """FROM (SELECT * FROM lockkeeper.headroom_now(ARRAY(SELECT name FROM served WHERE locked), '{}')
                UNION ALL SELECT name, NULL, NULL, false, NULL, 10, 60, false, NULL, NULL, NULL FROM served
                           WHERE NOT locked) h"""

EXPLORER_VARIANTS = (
    Variant("lock and count with one snapshot", (("dispatcher.claim_tasks", _NOW, _THEN),), "q01 claim, claim that waits: one slot"),
    Variant("lock and count tokens with one snapshot", (("dispatcher.claim_tasks", _NOW, _THEN),),
            "r01 claim, claim that waits: one token budget"),
    Variant("the agent's row is not locked", (("dispatcher.claim_tasks", _LOCK_AGENT, ""),), "q01 claim, claim: one slot"),
    Variant("the token budget is not locked", (("dispatcher.claim_tasks", _LOCK_AGENT, ""),),
            "r01 claim, claim: one token budget"),
    Variant("a claim waits for another's tasks", (("dispatcher.claim_tasks", f"              {_LOCK}) c", "FOR NO KEY UPDATE) c"),),
            "claim, claim: no limit"),
    Variant("no window of free slots", (("dispatcher.claim_tasks", "least($3::int, r.slots, ", "least($3::int, "),),
            "q01 claim, claim: one slot"),
    Variant("no guard between claims and the first limit",
            (("dispatcher.claim_tasks", "SELECT pg_advisory_xact_lock_shared(4951, 1)", "SELECT 1"),), "claim, first limit"),
    Variant("an agent that was seen without a limit is claimed for without a look",
            (("dispatcher.claim_tasks", _NOW, _UNSEEN),),
            "claim, claim, first limit"),
    Variant("by policy: the agent's row is not locked", (("dispatcher.lock_agents", _LOCK_AGENT, ""),),
            "q01 claim, claim: one slot, by policy"),
    Variant("by policy: the token budget is not locked", (("dispatcher.lock_agents", _LOCK_AGENT, ""),),
            "r01 claim, claim: one token budget, by policy"),
    Variant("the spending budget is not locked", (("dispatcher.lock_agents", _LOCK_AGENT, ""),),
            "claim, claim: one spending budget"),
    Variant("nothing is reserved", (("dispatcher.reserve_costs", "ON CONFLICT", "WHERE false ON CONFLICT"),),
            "claim, claim: one spending budget"),
    Variant("an agent that was seen without a budget is claimed for without a look",
            (("dispatcher.claim_tasks", "WHERE NOT h.by_policy", "WHERE true"),), "claim, first spending budget"),
    Variant("no guard between claims and a budget",
            (("dispatcher.claim_tasks", "SELECT pg_advisory_xact_lock_shared(4951, 1)", "SELECT 1"),),
            "claim, first spending budget"),
    Variant("the customer's budget is not locked", (("dispatcher.lock_customers", "   FOR NO KEY UPDATE SKIP LOCKED", ""),),
            "claim, claim: one customer's budget at two agents"),
    Variant("claims wait for each other's customers", (("dispatcher.lock_customers", " SKIP LOCKED", ""),),
            "claim, claim: one customer's budget at two agents"),
    Variant("overtakings are not counted", (("dispatcher.count_overtakings", "t.overtaken + held.times", "t.overtaken"),),
            "claim, claim: a task that may be overtaken once"),
    Variant("a claim waits for the task that it overtakes", (("dispatcher.count_overtakings", " SKIP LOCKED", ""),),
            "claim, reprioritise a task that is overtaken"),
    Variant("a claim waits for the tasks that it picked", (("dispatcher.lease_picked", " OF t SKIP LOCKED", " OF t"),),
            "claim, cancel: by policy"),
    Variant("leased whatever the task became",
            (("dispatcher.lease_picked", "t.status = 'enqueued' AND NOT t.deferred AND t.available_at <= lockkeeper.clock()", "true"),
             ("dispatcher.lease_picked", " AND t.status = 'enqueued'", "")),
            "claim, cancel: by policy"),
    Variant("record_runs without locks", (("dispatcher.lock_tasks", *_NO_LOCK),), "c01 record_runs, cancel"),
    Variant("record_runs moves whatever the task became", (("dispatcher.record_runs", "AND t.status = 'processing' AND x.status = 'submitted'", ""),
                                                           ("dispatcher.record_runs", "       AND g.was = 'leased'", "")),
            "c01 record_runs, cancel"),
    Variant("a run that is known too late is nobody's",
            (("dispatcher.record_runs", "x.status IN ('failed', 'cancelled', 'superseded') AND ", "x.status IN ('lost') AND "),),
            "record_runs, refuse by a stale dispatcher"),
    Variant("a leased attempt is cancelled without its run",
            (("console.cancel_attempts", "status <> 'released' OR run_id IS NOT NULL", "run_id IS NOT NULL"),
             ("dispatcher.record_runs", "x.status IN ('failed', 'cancelled', 'superseded') AND ", "x.status IN ('lost') AND ")),
            "c01 record_runs, cancel"),
    Variant("a run that is known is forgotten", (("dispatcher.release_attempts", " AND x.status = 'leased'", ""),),
            "record_runs, release by a stale dispatcher"),
    Variant("a run that is known is refused", (("dispatcher.refuse_attempts", " AND x.status = 'leased'", ""),),
            "record_runs, refuse by a stale dispatcher"),
    Variant("taken over whatever the lease says",
            (("dispatcher.take_over_unsubmitted", "AND x.status = 'leased'\n       AND (t.lease_expires_at <= lockkeeper.clock()",
              "AND (t.lease_expires_at IS NOT NULL"),),
            "take_over, record_runs"),
    Variant("cancel decides without the lock", (("console.lock_tasks", " FOR NO KEY UPDATE", ""),), "c01 claim, cancel"),
    Variant("settle without locks", (("callback_receiver.lock_reported", "   FOR NO KEY UPDATE OF t SKIP LOCKED", ""),),
            "l01 settle of two attempts: two successes"),
    Variant("settle by the task, whatever the attempt",
            (("callback_receiver.settle_attempts", "t.attempt_id = x.id AS is_current", "true AS is_current"),),
            "l01 settle of two attempts: failure and success"),
    Variant("the overtaken attempt runs on",
            (("callback_receiver.settle_attempts", "WHERE e.verdict = 'complete' AND NOT e.is_current", "WHERE false"),),
            "l01 settle of two attempts: two successes"),
    Variant("lose without still overdue",
            (("sweeper.lose_attempts", " AND t.lease_expires_at <= lockkeeper.clock()", ""),), "heartbeat, sweep"),
    Variant("lose without locks", (("sweeper.lock_tasks", *_NO_LOCK),), "settle failure, sweep"),
    Variant("lose without still processing", (("sweeper.lose_attempts", "t.status = 'processing' AND ", ""),
                                              ("sweeper.lose_attempts", " AND t.lease_expires_at <= lockkeeper.clock()", "")),
            "settle, sweep"),
    Variant("batches that lock in any order", (("sweeper.lock_tasks", "ORDER BY t.id", "ORDER BY t.id DESC"),),
            "two batches over the same tasks behind a third"),
    Variant("enqueue without a unique key's answer",
            (("console.enqueue_tasks", "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING", ""),),
            "enqueue, enqueue: one key"),
    Variant("retry copies without the lock", (("console.lock_tasks", " FOR NO KEY UPDATE", ""),), "retry, retry: one copy"),
)  # fmt: skip

FAMILY_VARIANTS = (
    Variant("a child is added whatever its parent does", (("console.lock_parents", " FOR SHARE", ""),), "gather, add a child"),
    Variant("a child is done anew without a look at its parent",
            (("console.lock_tasks", "UNION SELECT parent_task_id FROM lockkeeper.tasks WHERE id = ANY ($1::uuid[])", ""),),
            "gather, retry a failed child"),
    Variant("gather without locks", (("callback_receiver.lock_families", " FOR NO KEY UPDATE SKIP LOCKED", ""),),
            "gather, cancel the parent"),
    Variant("gather by what was seen before the lock",
            (("callback_receiver.gather_families", " AND f.enqueued + f.processing = 0", ""),), "gather, add a child"),
    Variant("a cancelled parent leaves its children",
            (("console.list_open_children", "AND status IN ('enqueued', 'processing')", "AND false"),),
            "cancel the parent, add a child"),
)  # fmt: skip

MACHINE_VARIANTS = (
    Variant("release forgets the attempt's id",
            (("dispatcher.release_attempts", "attempt_unspent = true", "attempt_unspent = false"),)),
    Variant("the token budget is not counted", (("dispatcher.claim_tasks", "WHERE weight <= tokens_left OR alone", "WHERE true"),)),
)  # fmt: skip

MATRIX_VARIANTS = (
    Variant("a stored result is lost",
            (("sweeper.lose_attempts",
              "AND NOT EXISTS (SELECT FROM lockkeeper.attempt_results r WHERE r.attempt_id = x.id)", ""),),
            "lose, lost"),
    Variant("an older attempt is lost", (("sweeper.lose_attempts", " AND t.attempt_id = x.id", ""),), "lose, lost/older"),
    Variant("attempts are not counted", (("sweeper.lose_attempts", ">= t.max_attempts AS spent", "> 99 AS spent"),),
            "lose, lost"),
    Variant("a run that never started counts",
            (("sweeper.lose_attempts", "spared_attempts = j.spared", "spared_attempts = t.spared_attempts"),),
            "lose, never_started"),
    Variant("an older attempt's run extends the lease",
            (("dispatcher.record_runs", " AND t.attempt_id = x.id AND t.status = 'processing' AND x.status = 'submitted'",
              " AND t.status = 'processing'"), ("dispatcher.record_runs", "       AND g.was = 'leased'\n", "")), "record_runs/older"),
    Variant("an older attempt is refused", (("dispatcher.refuse_attempts", " AND t.attempt_id = x.id", ""),
                                            ("dispatcher.refuse_attempts", " AND x.status = 'leased'", "")), "refuse/older"),
    Variant("anybody puts back", (("dispatcher.release_attempts", "       AND t.locked_by = $4", "AND $4 <> ''"),), "release by another"),
    Variant("anybody refuses", (("dispatcher.refuse_attempts", "       AND t.locked_by = $3", "AND $3 <> ''"),), "refuse by another"),
    Variant("each answer of one run is news", (("dispatcher.record_runs", "       AND g.was = 'leased'", ""),), "record_runs"),
    Variant("anybody's lease expires", (("dispatcher.expire_leases", " AND t.locked_by = $3", " AND $3 <> ''"),),
            "expire_leases of another"),
    Variant("an attempt speaks twice",
            (("callback_receiver.settle_attempts", "x.trace_state IS NOT NULL AS has_spoken", "false AS has_spoken"),),
            "final failure"),
    Variant("attempts without end",
            (("callback_receiver.settle_attempts", "t.attempt - t.spared_attempts < t.max_attempts", "true"),),
            "retryable failure"),
    Variant("a success without its result",
            (("callback_receiver.settle_attempts", "NOT coalesce(g.result_stored, false) OR g.result IS NOT NULL OR", "true OR"),),
            "success with a stored result"),
    Variant("an older failure ends the task",
            (("callback_receiver.settle_attempts", "t.attempt_id = x.id AS is_current", "true AS is_current"),),
            "final failure/older"),
    Variant("an ended task's attempt beats on",
            (("callback_receiver.beat_attempts", "t.attempt_id = x.id AND t.status = 'processing'", "t.status = 'processing'"),
             ("callback_receiver.beat_attempts", "AND x.status IN ('leased', 'submitted', 'running') AS is_live", "AS is_live")),
            "heartbeat/older"),
    Variant("what nobody submitted is taken from a living dispatcher",
            (("dispatcher.take_over_unsubmitted", "t.lease_expires_at <= lockkeeper.clock()", "true"),),
            "take_over and list_overdue"),
)  # fmt: skip
