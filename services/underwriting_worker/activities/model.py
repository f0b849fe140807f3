"""The model call: paid once, read strictly, kept as it came."""

from __future__ import annotations

from typing import Any

import orjson
from temporalio import activity

from services.underwriting_worker import metrics
from services.underwriting_worker.activities.attempts import attempt_of, recorded, refuse_conflict
from services.underwriting_worker.activities.traces import Traces
from services.underwriting_worker.gateways import Answer, ModelGateway
from services.underwriting_worker.messages import CallModel, ModelDone, ToolAsk
from services.underwriting_worker.policy import reading, transcript
from services.underwriting_worker.settings import WorkerSettings
from services.underwriting_worker.storage import Attempt, Spent, UnderwritingStorage
from shared.contract.errors import ConflictError, RejectedError, WriteOutcome
from shared.contract.underwriting import message_id

Json = dict[str, Any]


class ModelActivities:
    """Asks the model for the next step of a turn."""

    def __init__(
        self, storage: UnderwritingStorage, model: ModelGateway, traces: Traces, settings: WorkerSettings
    ) -> None:
        self._storage = storage
        self._model = model
        self._traces = traces
        self._settings = settings

    @activity.defn
    async def call_model(self, step: CallModel) -> ModelDone:
        """One answer; an attempt that finds it complete gives it again and asks nobody."""
        message = message_id(step.run_id, step.turn, step.position)
        attempt = attempt_of(step, message)
        async with recorded(self._storage, attempt):
            run = await self._storage.read_run(step.run_id)
            found = await self._storage.begin_answer(attempt, step.position, run["model"])
            if found is not None and found["state"] == "complete":
                await self._storage.end_step(attempt, "reused")
                return _done(step, found["reading"], reused=True)
            if found is not None:
                raise ConflictError("this question was left behind", reason="attempt_superseded")
            messages = await self._storage.list_messages(step.run_id)
            calls = await self._storage.list_tool_calls(step.run_id)
            prompt = transcript.prompt(messages, calls, upto=(step.turn, step.position), trouble=step.trouble)
            known = transcript.evidence(await self._storage.read_evidence(step.run_id))
            with self._traces.call(attempt, run, prompt) as trace:
                answer = await self._model.ask(run["model"], prompt, transcript.tools())
                trace.answered(answer)
            read = _read(answer, known, final=step.final)
            return await self._keep(step, attempt, answer, read)

    async def _keep(self, step: CallModel, attempt: Attempt, answer: Answer, read: Json) -> ModelDone:
        raw = answer.message | {"finish_reason": answer.finish_reason}
        size = len(orjson.dumps(raw))
        metrics.PAYLOAD_BYTES.labels("call_model").observe(size)
        if size > self._settings.largest_answer_bytes:
            raise RejectedError(
                f"the model's answer has {size} bytes; {self._settings.largest_answer_bytes} are allowed",
                reason="answer_too_large",
            )
        content = answer.message.get("content")
        outcome = await self._storage.end_answer(
            attempt, content=content if isinstance(content, str) else "", calls=read["calls"], reading=read, raw=raw,
            model=answer.model, spent=_spent(answer, size),
        )  # fmt: skip
        if outcome is WriteOutcome.APPLIED:
            _count(answer)
        refuse_conflict(outcome, f"message {attempt.step_id}")
        return _done(step, read, reused=False)


def _read(answer: Answer, known: dict[str, Json | None], *, final: bool) -> Json:
    """What was understood, as it is kept: calls, a recommendation, or a trouble to tell the model."""
    found = reading.check(reading.read_answer(answer.message), known)
    trouble = found.trouble
    if answer.finish_reason == "length" and found.recommendation is None:
        trouble = "the answer was cut off"
    if final and found.calls:
        trouble = "no more tools may be called; a recommendation is due"
    settled = None if found.recommendation is None else reading.settle(found.recommendation, known)
    calls = [] if trouble else list(found.calls)
    return {"calls": calls, "recommendation": None if trouble else settled, "trouble": trouble}


def _done(step: CallModel, read: Json, *, reused: bool) -> ModelDone:
    found = read["recommendation"]
    return ModelDone(
        message_id=message_id(step.run_id, step.turn, step.position),
        asks=tuple(ToolAsk(**call) for call in read["calls"]),
        verdict=None if found is None else found["recommendation"],
        trouble=read["trouble"],
        reused=reused,
    )


def _spent(answer: Answer, size: int) -> Spent:
    usage = answer.usage
    if usage is None:
        return Spent(payload_bytes=size)
    return Spent(size, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)


def _count(answer: Answer) -> None:
    if answer.usage is not None:
        metrics.TOKENS.labels(answer.model, "input").inc(answer.usage.input_tokens)
        metrics.TOKENS.labels(answer.model, "output").inc(answer.usage.output_tokens)
        metrics.TOKENS.labels(answer.model, "cache_read").inc(answer.usage.cache_read_tokens)
