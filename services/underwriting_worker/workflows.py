"""The life of one underwriting run.

Each turn gathers evidence, asks the model for a recommendation, opens a review and waits for a person. The
run decides nothing: a person's decision ends it, asks for more, or the review expires. What people see is in
Lakebase, written by activities; nothing here is read from anywhere but the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from services.underwriting_worker import messages
    from services.underwriting_worker.messages import (
        BeginTurn,
        CallModel,
        EndRun,
        ModelDone,
        NoteEvent,
        OpenReview,
        RecordDecision,
        RemindReview,
        RunTool,
        ToolAsk,
        ToolFailed,
    )
    from services.underwriting_worker.policy import faults, retries, reviews
    from shared.contract.underwriting import (
        DECIDE_SIGNAL,
        DECIDE_UPDATE,
        STATE_ATTRIBUTE,
        TURN_ATTRIBUTE,
        WORKFLOW,
        Carried,
        Decision,
        Receipt,
        RunStart,
        RunState,
        Tool,
        message_id,
        review_id,
    )

MOST_TOOL_ROUNDS = 3
MOST_TROUBLES = 2
ANSWERS_APART = 10
"""Positions from one answer of a turn to the next; the tools that it asks for stand in between."""
STATE_KEY = SearchAttributeKey.for_keyword(STATE_ATTRIBUTE)
TURN_KEY = SearchAttributeKey.for_int(TURN_ATTRIBUTE)
OUTCOMES = {
    "approve": (RunState.COMPLETED, "approved"),
    "deny": (RunState.COMPLETED, "denied"),
    None: (RunState.EXPIRED, "expired"),
}
# What a tool rests on comes first, whatever order they were asked for in.
STAGES = ((Tool.CREDIT_CHECK, Tool.INCOME_VERIFICATION), (Tool.DEBT_TO_INCOME,), (Tool.POLICY_LOOKUP,))


@workflow.defn(name=WORKFLOW)
class LoanUnderwritingWorkflow:
    """One run from request to decision."""

    @workflow.init
    def __init__(self, start: RunStart) -> None:
        carried = start.carried or Carried(turn=1)
        self._start = start
        self._pace = start.pace
        self._turn = carried.turn
        self._seq = carried.seq
        self._awaiting = carried.awaiting
        self._opened_at: datetime | None = carried.opened_at
        self._reminded = carried.reminded
        self._question_id = carried.question_id
        self._receipts = {receipt.decision_id: receipt for receipt in carried.receipts}
        self._approvals = list(carried.approvals)
        self._winner: Decision | None = None
        self._unrecorded: list[RecordDecision] = []
        self._ended = False
        self._cancelling = False

    @workflow.run
    async def run(self, start: RunStart) -> str:  # noqa: ARG002 - Temporal gives `run` what `__init__` has taken
        """The outcome: approved, denied, expired, cancelled or failed."""
        error: dict[str, str] | None = None
        try:
            state, outcome = OUTCOMES[await self._underwrite()]
        except (asyncio.CancelledError, ActivityError) as fault:
            if is_cancelled_exception(fault):
                state, outcome = RunState.CANCELLED, "cancelled"
            else:
                state, outcome = RunState.FAILED, "failed"
                error = faults.described(fault)
            self._cancelling = state is RunState.CANCELLED
        self._ended = True
        self._show(state)
        end = EndRun(**self._here(), seq=self._next(), state=state, outcome=outcome, error=error)
        closing = asyncio.create_task(self._close(end))
        while not closing.done():
            # A cancellation that arrives now changes nothing: the record is closed all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(closing)
        closing.result()
        if error is not None:
            raise ApplicationError(error["message"], type=error["reason"], non_retryable=True)
        return outcome

    @workflow.update(name=DECIDE_UPDATE)
    def decide(self, decision: Decision) -> Receipt:
        """Accept a decision; sent again, it gets the same receipt."""
        known = self._receipts.get(decision.decision_id)
        return known or self._accept(decision, "update")

    @decide.validator
    def check_decision(self, decision: Decision) -> None:
        """Refuse what changes nothing, before it enters the history."""
        if decision.decision_id in self._receipts:
            return
        refusal = reviews.refuse(self._review(), decision)
        if refusal is not None:
            raise ApplicationError(refusal[1], type=refusal[0].value, non_retryable=True)

    @workflow.signal(name=DECIDE_SIGNAL)
    def decide_by_signal(self, decision: Decision) -> None:
        """The path for callers that want no answer: what is refused here is recorded with its reason."""
        if decision.decision_id in self._receipts:
            return
        refusal = reviews.refuse(self._review(), decision)
        if refusal is None:
            self._accept(decision, "signal")
        else:
            words = (refusal[0].value, refusal[1])
            self._unrecorded.append(
                RecordDecision(**self._here(), decision=decision, path="signal", refusal=words)
            )  # fmt: skip

    def _accept(self, decision: Decision, path: Any) -> Receipt:
        effect = reviews.effect_of(self._review(), decision)
        receipt = Receipt(decision_id=decision.decision_id, effect=effect, turn=self._turn)
        self._receipts[decision.decision_id] = receipt
        if effect == "decided":
            self._winner = decision
        else:
            self._approvals.append(decision)
        self._unrecorded.append(RecordDecision(**self._here(), decision=decision, path=path, receipt=receipt))
        return receipt

    def _review(self) -> reviews.Review:
        return reviews.Review(
            run_id=self._start.run_id, turn=self._turn, turn_limit=self._start.turn_limit,
            four_eyes=self._start.four_eyes, requester=self._start.requester, approvals=self._approvals,
            winner=self._winner, ended=self._ended, cancelling=self._cancelling,
        )  # fmt: skip

    async def _underwrite(self) -> str | None:
        """Turn after turn until a person has decided; None when nobody did in time."""
        while True:
            if not self._awaiting:
                if self._history_is_long():
                    self._continue_as_new()
                await self._gather()
            winner = await self._wait_for_decision()
            if winner is None or winner.decision != "request_more_info":
                return None if winner is None else winner.decision
            self._turn += 1
            self._question_id = winner.decision_id
            self._awaiting, self._reminded = False, False
            self._winner, self._opened_at = None, None
            self._approvals.clear()

    async def _gather(self) -> None:
        """Evidence, recommendation, open review."""
        self._show(RunState.RUNNING)
        await self._record(
            messages.begin_turn, BeginTurn(**self._here(), seq=self._next(), decision_id=self._question_id)
        )
        plan = [tool for stage in STAGES for tool in stage] if self._turn == 1 else [Tool.POLICY_LOOKUP]
        await self._run_tools([RunTool(**self._here(), tool=tool, position=2 + n) for n, tool in enumerate(plan)])
        answer, fallback = await self._ask_model()
        self._opened_at = workflow.now()
        await self._record(
            messages.open_review,
            OpenReview(
                **self._here(), seq=self._next(), review_id=review_id(self._start.run_id, self._turn),
                opened_at=self._opened_at, expires_at=self._opened_at + self._pace.expire_after,
                message_id=None if answer is None else answer.message_id, fallback=fallback,
            ),
        )  # fmt: skip
        self._awaiting = True
        self._show(RunState.AWAITING_REVIEW)

    async def _ask_model(self) -> tuple[ModelDone | None, tuple[str, str] | None]:
        """The model's recommendation, or why there is none: then a person decides on the evidence alone."""
        troubles = rounds = number = 0
        trouble: str | None = None
        while True:
            number += 1
            step = CallModel(
                **self._here(), position=number * ANSWERS_APART, trouble=trouble, final=rounds >= MOST_TOOL_ROUNDS
            )
            try:
                done = await self._try(messages.call_model, step, retries.MODEL, self._pace.model_heartbeat)
            except ActivityError as fault:
                if is_cancelled_exception(fault):
                    raise
                said = faults.described(fault)
                return None, (said["reason"], f"the model gave no recommendation: {said['message']}")
            if done.verdict is not None:
                return done, None
            trouble = done.trouble
            if trouble is None:
                rounds += 1
                await self._run_tools(self._asked(done.asks, step.position))
                continue
            troubles += 1
            if troubles > MOST_TROUBLES:
                return None, ("unusable_answer", f"the model's answers could not be used: {trouble}")

    def _asked(self, asks: tuple[ToolAsk, ...], position: int) -> list[RunTool]:
        answer = message_id(self._start.run_id, self._turn, position)
        return [
            RunTool(
                **self._here(), tool=ask.tool, position=position + n, message_id=answer, arguments=ask.arguments
            )
            for n, ask in enumerate(asks, start=1)
        ]  # fmt: skip

    async def _run_tools(self, calls: list[RunTool]) -> None:
        for stage in STAGES:
            await asyncio.gather(*(self._run_tool(call) for call in calls if call.tool in stage))

    async def _run_tool(self, call: RunTool) -> None:
        """One call; a tool that fails for good is recorded, and the run goes on without its evidence."""
        try:
            await self._try(messages.TOOLS[call.tool], call, retries.TOOL, self._pace.tool_heartbeat)
        except ActivityError as fault:
            if is_cancelled_exception(fault):
                raise
            said = faults.described(fault)
            failed = ToolFailed(
                **self._here(), tool=call.tool, position=call.position, message_id=call.message_id, **said
            )
            await self._record(messages.record_tool_failure, failed)

    async def _wait_for_decision(self) -> Decision | None:
        """The decision that ends this review; None when it expires."""
        opened_at = self._opened_at or workflow.now()
        expires_at = opened_at + self._pace.expire_after
        remind_at = opened_at + self._pace.remind_after
        while True:
            await self._record_decisions()
            if self._winner is not None:
                return self._winner
            now = workflow.now()
            if now >= expires_at:
                return None
            if not self._reminded and now >= remind_at:
                self._reminded = True
                review = review_id(self._start.run_id, self._turn)
                reminder = RemindReview(**self._here(), seq=self._next(), review_id=review, expires_at=expires_at)
                await self._record(messages.remind_review, reminder)
                continue
            if self._history_is_long():
                self._continue_as_new()
            until = expires_at if self._reminded else min(remind_at, expires_at)
            try:
                await workflow.wait_condition(
                    lambda: bool(self._unrecorded) or self._history_is_long(), timeout=until - now
                )
            except TimeoutError:
                continue

    async def _record_decisions(self) -> None:
        """Put every decision and every refusal by signal on record, also those that arrive meanwhile."""
        while self._unrecorded:
            step = self._unrecorded.pop(0)
            await self._record(messages.record_decision, step)

    async def _close(self, end: EndRun) -> None:
        """Close the record; no decision that reached this run is lost, also not one that came while it was ending."""
        await self._record(messages.end_run, end)
        while True:
            await self._record_decisions()
            await workflow.wait_condition(workflow.all_handlers_finished)
            if not self._unrecorded:
                return

    async def _record(self, activity: Any, step: Any) -> None:
        """Write to the record, however long the database is away."""
        await self._try(activity, step, retries.RECORD, None, must=True)

    async def _try(
        self, activity: Any, step: Any, tries: retries.Tries, heartbeat: timedelta | None, *, must: bool = False
    ) -> Any:
        """Run a step with its attempts; schedule it anew after a fault that was not its own."""
        first_round, lost = step.round, 0
        while True:
            try:
                done = await workflow.execute_activity(
                    activity, step, start_to_close_timeout=tries.attempt_limit,
                    schedule_to_close_timeout=tries.whole_limit, heartbeat_timeout=heartbeat,
                    retry_policy=tries.retry_policy(),
                )  # fmt: skip
            except ActivityError as fault:
                kind = faults.sort(fault)
                lost += kind is faults.Fault.LOST
                if is_cancelled_exception(fault) or (
                    kind is faults.Fault.OWN and not (must and faults.may_pass(fault))
                ):
                    raise
                if not must and lost >= retries.MOST_LOST_ROUNDS:
                    raise
                await workflow.sleep(retries.hold(step.round - first_round + 1))
                step = step.model_copy(update={"round": step.round + 1})
                reason = faults.described(fault)["reason"]
            else:
                break
        if step.round > first_round and not must:
            key = f"{activity.__name__}:{self._turn}:{getattr(step, 'position', 0)}"
            note = NoteEvent(
                **self._here(), name="agent.step_recovered", key=key,
                details={"activity": activity.__name__, "rounds": step.round, "after": reason},
            )  # fmt: skip
            await self._record(messages.note_event, note)
        return done

    def _history_is_long(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested() or info.get_current_history_length() >= self._pace.continue_after_events
        )

    def _continue_as_new(self) -> NoReturn:
        """Go on in a new history; every handler here ends at once, so none is cut off."""
        carried = Carried(
            turn=self._turn, seq=self._seq, awaiting=self._awaiting, opened_at=self._opened_at,
            reminded=self._reminded, question_id=self._question_id, receipts=tuple(self._receipts.values()),
            approvals=tuple(self._approvals),
        )  # fmt: skip
        workflow.continue_as_new(self._start.model_copy(update={"carried": carried}))

    def _show(self, state: RunState) -> None:
        if self._start.search_attributes:
            workflow.upsert_search_attributes([STATE_KEY.value_set(state.value), TURN_KEY.value_set(self._turn)])

    def _here(self) -> dict[str, Any]:
        return {"run_id": self._start.run_id, "turn": self._turn}

    def _next(self) -> int:
        self._seq += 1
        return self._seq
