"""The tools: each call has one effect on the record, however often it is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
from temporalio import activity

from services.underwriting_worker import metrics
from services.underwriting_worker.activities.attempts import attempt_of, recorded, refuse_conflict
from services.underwriting_worker.gateways import EvidenceSource
from services.underwriting_worker.messages import RunTool, ToolDone
from services.underwriting_worker.policy import limits as policy
from services.underwriting_worker.policy.faults import UNREADY
from services.underwriting_worker.policy.transcript import evidence
from services.underwriting_worker.settings import WorkerSettings
from services.underwriting_worker.storage import Spent, UnderwritingStorage
from shared.contract.errors import ConflictError, RejectedError, TransientError
from shared.contract.underwriting import tool_call_id

Json = dict[str, Any]
Work = Callable[[RunTool], Awaitable[Json]]


class ToolActivities:
    """The four tools."""

    def __init__(self, storage: UnderwritingStorage, source: EvidenceSource, settings: WorkerSettings) -> None:
        self._storage = storage
        self._source = source
        self._settings = settings

    @activity.defn
    async def credit_check(self, step: RunTool) -> ToolDone:
        """The applicant's credit file."""
        return await self._once(step, self._credit)

    @activity.defn
    async def income_verification(self, step: RunTool) -> ToolDone:
        """The applicant's verified income, held against what was stated."""
        return await self._once(step, self._income)

    @activity.defn
    async def debt_to_income_calc(self, step: RunTool) -> ToolDone:
        """Monthly debt over monthly income."""
        return await self._once(step, self._ratio)

    @activity.defn
    async def policy_lookup(self, step: RunTool) -> ToolDone:
        """The limits of the loan's purpose, held against the evidence."""
        return await self._once(step, self._policy)

    async def _once(self, step: RunTool, work: Work) -> ToolDone:
        """Do the work unless an attempt before has done it."""
        call = tool_call_id(step.run_id, step.turn, step.position)
        attempt = attempt_of(step, call)
        async with recorded(self._storage, attempt):
            found = await self._storage.begin_tool_call(
                attempt, position=step.position, tool=step.tool.value, message=step.message_id,
                arguments=step.arguments,
            )  # fmt: skip
            if found is not None and found["state"] == "succeeded":
                await self._storage.end_step(attempt, "reused")
                return ToolDone(tool_call_id=call, reused=True)
            if found is not None:
                raise ConflictError(f"this call of {step.tool} was left behind", reason="attempt_superseded")
            result = await work(step)
            size = len(orjson.dumps(result))
            metrics.PAYLOAD_BYTES.labels(step.tool.value).observe(size)
            if size > self._settings.largest_result_bytes:
                raise RejectedError(
                    f"{step.tool} gave {size} bytes; {self._settings.largest_result_bytes} are allowed",
                    reason="result_too_large",
                )
            outcome = await self._storage.end_tool_call(attempt, result, Spent(payload_bytes=size))
            refuse_conflict(outcome, f"tool call {call}")
            return ToolDone(tool_call_id=call, reused=False)

    async def _credit(self, step: RunTool) -> Json:
        run = await self._storage.read_run(step.run_id)
        inquiry = tool_call_id(step.run_id, step.turn, step.position)
        found = await self._source.credit_file(run["applicant"], inquiry)
        try:
            figures = {
                "score": int(found["score"]),
                "monthly_debt": float(found["monthly_debt"]),
                "delinquencies": [dict(each) | {"material": bool(each["material"])} for each in found["delinquencies"]],
            }
        except (KeyError, TypeError, ValueError) as error:
            raise RejectedError(f"the credit file is not readable: {error!r}", reason="source_unreadable") from error
        return {**found, **figures, "source": self._source.name, "looked_up_at": _now()}

    async def _income(self, step: RunTool) -> Json:
        run = await self._storage.read_run(step.run_id)
        inquiry = tool_call_id(step.run_id, step.turn, step.position)
        found = await self._source.income_file(run["applicant"], inquiry)
        try:
            income = Decimal(str(found["annual_income"]))
        except (KeyError, ArithmeticError) as error:
            raise RejectedError(f"the income file is not readable: {error!r}", reason="source_unreadable") from error
        stated = _decimal(run["request"].get("stated_annual_income"))
        contradictions = []
        if policy.contradicts(stated, income):
            contradictions.append(f"stated annual income {stated:f}, verified {income:f}")
        return {
            **found, "annual_income": float(income), "stated_annual_income": None if stated is None else float(stated),
            "contradictions": contradictions, "source": self._source.name, "looked_up_at": _now(),
        }  # fmt: skip

    async def _ratio(self, step: RunTool) -> Json:
        run = await self._storage.read_run(step.run_id)
        found = evidence(await self._storage.read_evidence(step.run_id))
        credit, income = found.get("credit_check"), found.get("income_verification")
        if credit is None or income is None:
            missing = [name for name in ("credit_check", "income_verification") if found.get(name) is None]
            raise RejectedError(f"no result of {' and '.join(missing)}", reason="missing_evidence")
        debt, earned = Decimal(str(credit["monthly_debt"])), Decimal(str(income["annual_income"]))
        percent = policy.debt_to_income(debt, earned)
        if percent is None:
            raise RejectedError("the verified income is zero", reason="missing_evidence")
        stated = _decimal(run["request"].get("stated_monthly_debt"))
        contradictions = []
        if policy.contradicts(stated, debt):
            contradictions.append(f"stated monthly debt {stated:f}, credit file {debt:f}")
        return {
            "dti_percent": float(percent), "monthly_debt": float(debt), "annual_income": float(earned),
            "contradictions": contradictions, "source": "calculated from credit_check and income_verification",
        }  # fmt: skip

    async def _policy(self, step: RunTool) -> Json:
        run = await self._storage.read_run(step.run_id)
        found = await self._limits(run["purpose"])
        judged = policy.judge(found, evidence(await self._storage.read_evidence(step.run_id)))
        age = None if found.synced_at is None else (datetime.now(UTC) - found.synced_at).total_seconds()
        return {
            **judged, "turn": step.turn, "looked_up_at": _now(),
            "stale": age is not None and age > self._settings.policy_stale_seconds,
        }  # fmt: skip

    async def _limits(self, purpose: str) -> policy.Limits:
        """The limits as they are now, or what stands in for them when the settings allow that."""
        closed = self._settings.policy_fallback == "fail_closed"
        try:
            found = await self._storage.read_limits(purpose)
        except TransientError as error:
            if error.reason != UNREADY:
                raise
            if closed:
                # A full refresh takes the table away for seconds, and its grants for as long as nobody looks.
                raise TransientError(
                    f"the policy cannot be read: {error.message}", reason="policy_unreadable"
                ) from error
            found = None
        if found is None and closed:
            raise RejectedError(f"there is no policy for {purpose}", reason="policy_missing")
        return found or policy.fixture(purpose)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))
