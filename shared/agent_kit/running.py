"""One attempt from its arguments to its callback.

The order is the promise: input, handler, trace stored and read back, result row, callback. A result is
offered until the receiver settles it; a process that dies before leaves its row, and the sweeper finds it.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import orjson
import structlog

from shared.agent_kit.callbacks import CallbackSender
from shared.agent_kit.context import AgentContext, AgentResult
from shared.agent_kit.heartbeats import Heart, Progress
from shared.agent_kit.model import ModelClient
from shared.agent_kit.packs import carry_pack
from shared.agent_kit.settings import AgentSettings, load_settings
from shared.agent_kit.storage import AgentInput, AttemptStorage
from shared.agent_kit.traces import Trace, TraceIdentity
from shared.agent_kit.usage import UsageLedger
from shared.contract.callback import RESULT_INLINE_BYTES, FailureBody, ResultBody, TraceState
from shared.contract.errors import LockkeeperError, MisconfiguredError, RejectedError, TransientError
from shared.contract.stages import AGENT
from shared.contract.text import clean_json, clean_text
from shared.runtime import tracing

log = structlog.get_logger()

Handler = Callable[[AgentContext], Awaitable[AgentResult] | AgentResult]
Found = TypeVar("Found")
_GRACE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 5.0


def run_agent(handler: Handler, argv: Sequence[str] | None = None) -> int:
    """Carry one attempt with this handler, or several one after another, and return 0 when their ends are settled.

    `argv` is `--task_id=… --attempt_id=…`, or `--pack_id=…`, by default the process' own. A failure that was settled
    is also 0: the attempt's row says it. Raises SystemExit with a line when nobody could be told, so that the run
    fails. May be called many times in one process. The handler may be a coroutine function or a plain one.
    """
    attempt_id, pack_id = _ids(sys.argv[1:] if argv is None else list(argv))
    try:
        settings = load_settings()
        if attempt_id is not None:
            return asyncio.run(_Attempt(settings, attempt_id, handler).carry())
        if pack_id is None:
            raise MisconfiguredError("the run was given neither --attempt_id nor --pack_id")

        def carry(attempt: UUID) -> bool:
            carried = _Attempt(settings, attempt, handler, has_turn=True)
            asyncio.run(carried.carry())
            return not carried.terminated

        error = carry_pack(settings, pack_id, carry)
    except LockkeeperError as failure:
        error = failure
    if error is not None:
        raise SystemExit(f"attempt {attempt_id or f'of pack {pack_id}'} was not settled: {error.message}") from error
    return 0


def _ids(argv: list[str]) -> tuple[UUID | None, UUID | None]:
    """The attempt or the pack that this run carries; a parameter that was left empty is none."""

    def given(text: str) -> UUID | None:
        return UUID(text) if text else None

    parser = argparse.ArgumentParser(description="Carry one attempt of a task, or the attempts of a pack.")
    parser.add_argument("--attempt_id", type=given)
    parser.add_argument("--pack_id", type=given)
    known, _ = parser.parse_known_args(argv)
    return known.attempt_id, known.pack_id


@dataclass(slots=True)
class _Ending:
    """How the handler ended: a result or an error, never both."""

    result: AgentResult | None = None
    error: LockkeeperError | None = None


class _Attempt:
    """The state of one attempt while it is carried."""

    def __init__(self, settings: AgentSettings, attempt_id: UUID, handler: Handler, *, has_turn: bool = False) -> None:
        self._settings = settings
        self._attempt_id = attempt_id
        self._handler = handler
        self._sender = CallbackSender(settings, attempt_id)
        self._storage = AttemptStorage(settings)
        self._usage = UsageLedger()
        self._heart: Heart | None = None
        self._unwanted: str | None = None
        self._has_turn = has_turn
        self.terminated = False

    async def carry(self) -> int:
        started = time.monotonic()
        tracing.configure("document_agent", str(self._attempt_id))
        try:
            task = await self._patiently(lambda: self._storage.read_input(self._attempt_id))
        except TransientError as error:
            await self._send_failure(error, None, "unavailable")
            return 0
        if task is None:
            raise RejectedError("there is no such attempt")
        if not task.is_wanted or (self._has_turn and not await self._begin()):
            log.info("attempt_not_wanted", attempt_id=str(self._attempt_id))
            return 0
        with structlog.contextvars.bound_contextvars(task_id=str(task.task_id), attempt_id=str(self._attempt_id)):
            trace = Trace(self._settings, _identity(task))
            trace.start()
            try:
                ending = await self._handle(task, trace)
                answer = await self._settle(ending, trace)
            finally:
                # Beats to the very end: storing a trace may take as long as a lease.
                if self._heart is not None:
                    self._heart.stop()
            seconds = time.monotonic() - started
            failure = None if ending.error is None else ending.error.reason
            tracing.record(
                AGENT, task.task_id, self._attempt_id, seconds=seconds, failure=failure, agent=task.agent,
                outcome=answer, mlflow_trace_id=trace.trace_id or "",
            )  # fmt: skip
            await asyncio.to_thread(tracing.close)
            log.info("attempt_ended", outcome=answer, seconds=round(seconds, 3))
        return 0

    async def _begin(self) -> bool:
        """Whether the attempt is still wanted, now that its turn in the run has come and was told."""
        answer = await asyncio.to_thread(self._sender.begin)
        return answer.get("cancel_requested") is not True

    async def _patiently(self, work: Callable[[], Awaitable[Found]]) -> Found:
        """Ask again while the database is away, as long as a callback would be offered: an outage spends no attempt."""
        give_up_at = time.monotonic() + self._settings.callback_deadline_seconds
        pause = 0.25
        while True:
            try:
                return await work()
            except TransientError as error:
                if time.monotonic() + pause >= give_up_at:
                    raise
                log.warning("database_again", error=error.message, pause=round(pause, 2))
            await asyncio.sleep(pause * (0.75 + random.random() / 2))  # noqa: S311 - jitter
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _handle(self, task: AgentInput, trace: Trace) -> _Ending:
        progress = Progress()
        context = AgentContext(task, ModelClient(self._settings, trace, self._usage), trace, self._usage, progress)
        work = asyncio.ensure_future(self._call(context))
        loop = asyncio.get_running_loop()

        def unwanted(outcome: str) -> None:
            self._unwanted = outcome
            loop.call_soon_threadsafe(work.cancel)

        self._heart = Heart(self._settings, self._sender, progress, unwanted)
        self._heart.start()
        try:
            with self._stoppable(work):
                return _Ending(result=await work)
        except asyncio.CancelledError:
            return _Ending(error=self._why_cancelled())
        except LockkeeperError as error:
            return _Ending(error=error)
        except Exception as error:
            log.exception("agent_error")
            said = f"the agent failed unexpectedly ({type(error).__name__}); its run's log says more"
            return _Ending(error=TransientError(said, reason="agent_error"))
        finally:
            await context.model.close()

    async def _call(self, context: AgentContext) -> AgentResult:
        if inspect.iscoroutinefunction(self._handler):
            result = await self._handler(context)
        else:
            outcome = await asyncio.to_thread(self._handler, context)
            result = await outcome if inspect.isawaitable(outcome) else outcome
        if not isinstance(result, AgentResult):
            raise RejectedError(f"the handler returned {type(result).__name__}, not AgentResult", reason="agent_error")
        return result

    @contextmanager
    def _stoppable(self, work: asyncio.Future[AgentResult]) -> Iterator[None]:
        """SIGTERM ends the work, and what was spent is still reported."""

        def terminate() -> None:
            self.terminated = True
            work.cancel()

        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGTERM, terminate)
        except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no signals here
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def _why_cancelled(self) -> LockkeeperError:
        if self._unwanted is not None:
            return RejectedError("the attempt was not wanted any more", reason=self._unwanted)
        return TransientError("the run was stopped before it was done", reason="interrupted")

    async def _settle(self, ending: _Ending, trace: Trace) -> str:
        if ending.error is not None:
            state = await self._finish_trace(trace, error=ending.error.reason)
            return await self._send_failure(ending.error, trace.trace_id, state)
        if ending.result is None:
            raise AssertionError("an ending has a result or an error")
        try:
            return await self._send_result(ending.result, trace)
        except TransientError as error:
            if error.reason != "database_unavailable":
                raise
            return await self._send_failure(error, trace.trace_id, "unverified")

    async def _finish_trace(self, trace: Trace, **end: str) -> TraceState:
        if not self.terminated:
            return await trace.finish(error=end.get("error"))
        try:
            async with asyncio.timeout(_GRACE_SECONDS / 2):
                return await trace.finish(error=end.get("error"))
        except TimeoutError:
            return "unverified"

    async def _send_result(self, found: AgentResult, trace: Trace) -> str:
        result, dropped = clean_json(found.result)
        encoded = orjson.dumps(result)
        body = ResultBody(
            result=result if len(encoded) <= RESULT_INLINE_BYTES else None,
            result_stored=True,
            confidence=found.confidence,
            pages=found.pages,
            usage=self._usage.report(),
            damage=[clean_text(each)[0] for each in found.damage[:100]],
            cleaned_characters=found.cleaned_characters + dropped,
        )
        outputs = {"confidence": found.confidence, "pages": found.pages, "bytes": len(encoded)}
        state, stored = await asyncio.gather(trace.finish(outputs=outputs), self._store(body, result, trace))
        body = body.model_copy(update={"trace_id": trace.trace_id, "trace_state": state, "result_stored": stored})
        answer = await asyncio.to_thread(self._sender.result, body)
        return str(answer.get("outcome", "completed"))

    async def _store(self, body: ResultBody, result: dict[str, object], trace: Trace) -> bool:
        """Whether the row is there. A small result may travel without it; a large one may not."""
        trace_id = await trace.known_id(5)
        row = body.model_copy(update={"trace_id": trace_id, "trace_state": "unverified" if trace_id else "unavailable"})
        if body.result is None:
            await self._patiently(lambda: self._storage.store_result(self._attempt_id, row, result))
            return True
        try:
            await self._storage.store_result(self._attempt_id, row, result)
        except TransientError:
            log.warning("store_result_failed")
            return False
        return True

    async def _send_failure(self, error: LockkeeperError, trace_id: str | None, state: TraceState) -> str:
        body = FailureBody(
            reason=error.reason,
            message=clean_text(error.message)[0][:4_000],
            retryable=isinstance(error, TransientError),
            retry_after_seconds=error.retry_after_seconds if isinstance(error, TransientError) else None,
            trace_id=trace_id,
            trace_state=state,
            usage=self._usage.report(),
        )
        log.info("attempt_failed", reason=body.reason, retryable=body.retryable)
        deadline = _GRACE_SECONDS if self.terminated else None
        answer = await asyncio.to_thread(self._sender.failure, body, deadline)
        return str(answer.get("outcome", "failed"))


def _identity(task: AgentInput) -> TraceIdentity:
    tags = {"task_id": str(task.task_id), "attempt_id": str(task.attempt_id), "agent": task.agent}
    name = clean_text(task.document_name or "")[0]
    return TraceIdentity(task.agent, str(task.attempt_id), tags, {"document": name} if name else {})
