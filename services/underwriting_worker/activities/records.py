"""The record's activities: each is one transaction that may be sent again."""

from __future__ import annotations

from typing import Any

import structlog
from temporalio import activity

from services.underwriting_worker.activities.attempts import attempt_of, recorded, refuse_conflict
from services.underwriting_worker.messages import (
    BeginTurn,
    EndRun,
    NoteEvent,
    OpenReview,
    RecordDecision,
    RemindReview,
    ToolFailed,
)
from services.underwriting_worker.policy import reading, transcript
from services.underwriting_worker.storage import Event, UnderwritingStorage
from shared.contract.errors import MissingError, WriteOutcome
from shared.contract.underwriting import Tool, message_id, tool_call_id

log = structlog.get_logger()

Json = dict[str, Any]
Settled = tuple[str, str, str | None, str | None, str | None]


class RecordActivities:
    """Writes what people see of a run."""

    def __init__(self, storage: UnderwritingStorage) -> None:
        self._storage = storage

    @activity.defn
    async def begin_turn(self, step: BeginTurn) -> None:
        """The run works on this turn; its transcript opens with the request or the reviewer's question."""
        attempt = attempt_of(step, step.seq)
        async with recorded(self._storage, attempt):
            opening = await self._opening(step)
            name = "agent.run_started" if step.turn == 1 else "agent.turn_started"
            outcome = await self._storage.begin_turn(
                attempt, step.seq, activity.info().workflow_run_id or "", opening,
                [Event(name, step.turn, {"workflow_id": activity.info().workflow_id})],
            )  # fmt: skip
            refuse_conflict(outcome, f"run {step.run_id}")

    async def _opening(self, step: BeginTurn) -> list[tuple[Any, int, str, str]]:
        if step.decision_id is None:
            run = await self._storage.read_run(step.run_id)
            said = [(0, "system", transcript.SYSTEM), (1, "user", transcript.opening(run["request"]))]
        else:
            asked = await self._storage.read_decision(step.decision_id)
            if asked is None:
                raise MissingError(f"decision {step.decision_id} has no record")
            said = [(1, "user", transcript.question(asked["reviewer"], asked["note"]))]
        return [(message_id(step.run_id, step.turn, at), at, role, text) for at, role, text in said]

    @activity.defn
    async def record_tool_failure(self, step: ToolFailed) -> None:
        """The call has failed for good, with the last real error."""
        attempt = attempt_of(step, f"{step.turn}:{step.position}")
        async with recorded(self._storage, attempt):
            await self._storage.fail_tool_call(
                attempt, call=tool_call_id(step.run_id, step.turn, step.position), position=step.position,
                tool=step.tool.value, message=step.message_id,
                error={"reason": step.reason, "message": step.message},
            )  # fmt: skip

    @activity.defn
    async def open_review(self, step: OpenReview) -> None:
        """The recommendation, the policy it rests on, and the question to a person."""
        attempt = attempt_of(step, step.seq)
        async with recorded(self._storage, attempt):
            recommendation = await self._recommendation(step)
            policy = await self._policy(step)
            events = [
                Event(
                    "agent.review_pending", step.turn,
                    {"review_id": str(step.review_id), "expires_at": step.expires_at.isoformat(),
                     "recommendation": recommendation["recommendation"], "source": recommendation["source"]},
                )
            ]  # fmt: skip
            events += await self._policy_change(step, policy)
            outcome = await self._storage.open_review(
                attempt, step.seq, (step.review_id, step.opened_at, step.expires_at), recommendation=recommendation,
                policy=policy, events=events,
                answer_error=_words(step.fallback),
            )  # fmt: skip
            refuse_conflict(outcome, f"run {step.run_id}")

    async def _recommendation(self, step: OpenReview) -> Json:
        if step.message_id is None:
            reason, message = step.fallback or ("no_recommendation", "there is no recommendation")
            return reading.referral(reason, message)
        answer = await self._storage.read_message(step.message_id)
        if answer is None or not (answer["reading"] or {}).get("recommendation"):
            raise MissingError(f"message {step.message_id} holds no recommendation")
        found: Json = answer["reading"]["recommendation"]
        return found | {"message_id": str(step.message_id)}

    async def _policy(self, step: OpenReview) -> Json | None:
        """The limits that this turn used; None when its lookup failed, so that no older one stands in silently."""
        calls = await self._storage.list_tool_calls(step.run_id)
        results = [
            call["result"]
            for call in calls
            if call["turn"] == step.turn and call["tool"] == Tool.POLICY_LOOKUP and call["state"] == "succeeded"
        ]
        return results[-1] if results else None

    async def _policy_change(self, step: OpenReview, policy: Json | None) -> list[Event]:
        before = (await self._storage.read_run(step.run_id))["policy"]
        if step.turn == 1 or before is None or policy is None:
            return []
        named = ("policy_name", "policy_version", "source")
        was, now = ({name: each[name] for name in named} for each in (before, policy))
        return [] if was == now else [Event("agent.policy_changed", step.turn, {"before": was, "after": now})]

    @activity.defn
    async def remind_review(self, step: RemindReview) -> None:
        """The review still waits."""
        attempt = attempt_of(step, step.seq)
        async with recorded(self._storage, attempt):
            details = {"review_id": str(step.review_id), "expires_at": step.expires_at.isoformat()}
            events = [Event("agent.review_reminded", step.turn, details)]
            outcome = await self._storage.remind_review(attempt, step.seq, step.review_id, events)
            refuse_conflict(outcome, f"run {step.run_id}")

    @activity.defn
    async def record_decision(self, step: RecordDecision) -> None:
        """What was decided or refused, by whom, and why."""
        decision = step.decision
        attempt = attempt_of(step, decision.decision_id)
        async with recorded(self._storage, attempt):
            details: Json = {
                "decision_id": str(decision.decision_id), "decision": decision.decision,
                "reviewer": decision.reviewer, "path": step.path,
            }  # fmt: skip
            if step.receipt is not None:
                settled: Settled = (step.path, "accepted", step.receipt.effect, None, None)
                name, details = "agent.decision_accepted", details | {"effect": step.receipt.effect}
            else:
                refusal, message = step.refusal or ("refused", "")
                settled = (step.path, "refused", None, refusal, message)
                name, details = "agent.decision_refused", details | {"refusal": refusal}
            outcome = await self._storage.record_decision(
                attempt, decision, settled, [Event(name, decision.decision_id, details)]
            )
            if outcome is WriteOutcome.CONFLICT:
                # A sender used one id for two things. The first stays on record; the run must not die of it.
                log.error("record_conflict", what=f"decision {decision.decision_id}")
                conflict = Event("agent.decision_conflict", f"{decision.decision_id}:{name}", details)
                await self._storage.write_event(attempt, [conflict])

    @activity.defn
    async def note_event(self, step: NoteEvent) -> None:
        """One event of the timeline."""
        attempt = attempt_of(step, step.key)
        async with recorded(self._storage, attempt):
            await self._storage.write_event(attempt, [Event(step.name, step.key, step.details)])

    @activity.defn
    async def end_run(self, step: EndRun) -> None:
        """The end, which stays."""
        attempt = attempt_of(step, step.seq)
        async with recorded(self._storage, attempt):
            outcome = await self._storage.end_run(
                attempt, step.seq, (step.state.value, step.outcome, step.error),
                [Event(f"agent.run_{step.state.value}", step.state.value, {"outcome": step.outcome})],
            )  # fmt: skip
            refuse_conflict(outcome, f"run {step.run_id}")


def _words(fallback: tuple[str, str] | None) -> Json | None:
    return None if fallback is None else {"reason": fallback[0], "message": fallback[1]}
