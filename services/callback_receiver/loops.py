"""When the receiver does what: rounds of settling, the clock, and results that nobody announced."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from services.callback_receiver import metrics
from services.callback_receiver.messages import Kind, Report, Settled, Verdict
from services.callback_receiver.settings import CallbackReceiverSettings
from services.callback_receiver.storage import CallbackStorage
from shared.contract.channels import Channel
from shared.contract.errors import LockkeeperError, TransientError, WriteOutcome
from shared.contract.stages import CALLBACK
from shared.db.notes import Notes
from shared.runtime import tracing
from shared.runtime.metrics import FENCED_WRITES

log = structlog.get_logger()

BUSY_SECONDS = 0.01
_MOVES = frozenset({Verdict.COMPLETE, Verdict.FAIL, Verdict.RETRY})
_VERBS = {Kind.RESULT: "complete", Kind.FAILURE: "fail", Kind.HEARTBEAT: "extend"}
_ENDS = frozenset({*_MOVES, Verdict.RECORD, Verdict.NOTE})
_LOSES = frozenset({Verdict.FAIL, Verdict.RETRY})


def announce(notes: Notes, settled: Sequence[Settled], seconds: float = 0.0) -> None:
    """After the commit: count what was written, log what people look for, and wake those whom it concerns."""
    moved = [each for each in settled if each.verdict in _MOVES]
    seen = [each.task_id for each in settled if each.verdict in _MOVES or each.verdict is Verdict.EXTEND]
    ended = [attempt for each in settled if each.verdict in _ENDS for attempt in (each.attempt_id, *each.superseded)]
    unwanted = [attempt for each in settled for attempt in each.superseded]
    for channel, ids in (
        (Channel.TASK_CHANGED, seen),
        (Channel.TASK_READY, {each.agent for each in moved}),
        (Channel.ATTEMPT_SETTLED, ended),
        (Channel.CANCEL_REQUESTED, unwanted),
    ):
        if ids:
            notes.send(channel, ids)
    for (kind, write), count in Counter((each.kind, each.write) for each in settled).items():
        FENCED_WRITES.labels(_VERBS[kind], write.value).inc(count)
    for each in settled:
        if each.verdict in _ENDS:
            tracing.record(
                CALLBACK, each.task_id, each.attempt_id, seconds=seconds, kind=each.kind.value, outcome=each.outcome,
                failure=each.outcome if each.verdict in _LOSES else None,
            )  # fmt: skip
    _log(settled)


def _log(settled: Sequence[Settled]) -> None:
    """One line for all that went as asked, and one for each report that did not."""
    usual = [str(each.task_id) for each in settled if _is_usual(each)]
    if usual:
        log.info("settle", verdict=Verdict.COMPLETE.value, tasks=usual)
    for each in settled:
        if each.kind is Kind.HEARTBEAT or _is_usual(each):
            continue
        log.info(
            "settle", task_id=str(each.task_id), attempt_id=str(each.attempt_id), verdict=each.verdict.value,
            outcome=each.outcome, write=each.write.value, superseded=[str(other) for other in each.superseded],
        )  # fmt: skip


def _is_usual(settled: Settled) -> bool:
    return settled.verdict is Verdict.COMPLETE and not settled.superseded


@dataclass(slots=True, eq=False)
class _Ticket:
    """A report on its way; the same report sent twice shares one."""

    report: Report
    give_up_at: float
    answer: asyncio.Future[Settled] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Settler:
    """Gathers reports into rounds, and answers each after its round has committed.

    It is no loop of the runtime, because it must outlive the loops: while the process drains, requests that
    are under way still get their answer.
    """

    def __init__(self, storage: CallbackStorage, notes: Notes, settings: CallbackReceiverSettings) -> None:
        self._storage = storage
        self._notes = notes
        self._settings = settings
        self._waiting: list[_Ticket] = []
        self._filled = asyncio.Event()
        self._under_way = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Reports that no round has settled yet and none is settling now."""
        return len(self._waiting)

    def open(self) -> None:
        """Start the rounds."""
        self._tasks = [
            asyncio.create_task(self._run(), name=f"settle-{number}") for number in range(self._settings.rounds_at_once)
        ]

    async def close(self) -> None:
        """Stop the rounds; what still waits is answered with TransientError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _fail(self._waiting, TransientError("the receiver is stopping", reason="stopping"))
        self._waiting = []

    async def settle(self, report: Report) -> Settled:
        """What became of the report, committed. Raises TransientError or RejectedError; then nothing was written."""
        if len(self._waiting) >= self._settings.max_waiting:
            raise TransientError("too many reports wait", reason="overloaded", retry_after_seconds=2)
        ticket = _Ticket(report, time.monotonic() + self._settings.settle_seconds)
        self._waiting.append(ticket)
        self._filled.set()
        return await ticket.answer

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            if self._under_way:
                # While another round travels, company costs nothing: it will be a round trip less.
                await asyncio.sleep(self._settings.gather_seconds)
            tickets = self._take()
            if not tickets:
                continue
            self._under_way += 1
            try:
                busy = await self._round(tickets)
            finally:
                self._under_way -= 1
            if busy:
                await self._offer_again(busy)

    def _take(self) -> list[_Ticket]:
        size = self._settings.batch_size
        tickets, self._waiting = self._waiting[:size], self._waiting[size:]
        if not self._waiting:
            self._filled.clear()
        metrics.WAITING.set(len(self._waiting))
        return tickets

    async def _offer_again(self, busy: list[_Ticket]) -> None:
        now = time.monotonic()
        late = [ticket for ticket in busy if ticket.give_up_at <= now]
        _fail(late, TransientError("the task's row is busy", reason="task_busy"))
        self._waiting[:0] = [ticket for ticket in busy if ticket.give_up_at > now]
        if self._waiting:
            if len(self._waiting) == len(busy):
                # Nobody but the busy ones: give their rows a moment.
                await asyncio.sleep(BUSY_SECONDS)
            self._filled.set()

    async def _round(self, tickets: list[_Ticket]) -> list[_Ticket]:
        """Settle these; the ones whose task is busy come back."""
        started = time.monotonic()
        try:
            found = await self._storage.settle([ticket.report for ticket in tickets])
        except TransientError as error:
            log.warning("round_postponed", reports=len(tickets), error=error.message)
            _fail(tickets, error)
            return []
        except asyncio.CancelledError:
            _fail(tickets, TransientError("the receiver is stopping", reason="stopping"))
            raise
        except Exception as error:
            if len(tickets) > 1:
                # One report must not take the others with it: each for itself, so that only it is refused.
                return [ticket for each in tickets for ticket in await self._round([each])]
            log.exception("settle_failed", attempt_id=str(tickets[0].report.attempt_id))
            _fail(tickets, error if isinstance(error, LockkeeperError) else RuntimeError("the report was not settled"))
            return []
        seconds = time.monotonic() - started
        metrics.ROUND_SECONDS.observe(seconds)
        metrics.ROUND_REPORTS.observe(len(tickets))
        settled = [each for each in found if each is not None]
        announce(self._notes, settled, seconds)
        busy = []
        for ticket, each in zip(tickets, found, strict=True):
            if each is None:
                busy.append(ticket)
            elif not ticket.answer.done():
                ticket.answer.set_result(each)
        return busy


def _fail(tickets: Sequence[_Ticket], error: Exception) -> None:
    for ticket in tickets:
        if not ticket.answer.done():
            ticket.answer.set_exception(error)


class DatabaseClock:
    """The database's clock without a query per request: an offset to this process's monotonic clock."""

    name = "read_clock"

    def __init__(self, storage: CallbackStorage, settings: CallbackReceiverSettings) -> None:
        self.poll_seconds = settings.clock_seconds
        self._storage = storage
        self._offset: float | None = None

    def now(self) -> float | None:
        """Seconds since 1970 by the database; None before it was first reached."""
        return None if self._offset is None else time.monotonic() + self._offset

    def forget(self) -> None:
        """Know nothing until the database is reached again."""
        self._offset = None

    async def run_once(self) -> bool:
        """Read it once; the middle of the round trip is taken for the moment of reading."""
        started = time.monotonic()
        seconds = await self._storage.read_clock()
        self._offset = seconds - (started + time.monotonic()) / 2
        metrics.CLOCK_OFFSET_AGE.set_to_current_time()
        return False


class GatherLoop:
    """Ends parents once their children have ended. By polling: a wake for each child would cost them more."""

    name = "gather_families"

    def __init__(self, storage: CallbackStorage, notes: Notes, settings: CallbackReceiverSettings) -> None:
        self.poll_seconds = settings.gather_poll_seconds
        self._storage = storage
        self._notes = notes
        self._limit = settings.batch_size

    async def run_once(self) -> bool:
        """End one batch; True when it was full."""
        ended = await self._storage.gather_families(self._limit)
        if ended:
            self._notes.send(Channel.TASK_CHANGED, ended)
            log.info("gather_families", tasks=[str(each) for each in ended])
        return len(ended) == self._limit


class RecoveredLoop:
    """Settles the results that the sweeper found without a callback, by the very rules of a callback."""

    name = "settle_recovered"

    def __init__(self, storage: CallbackStorage, notes: Notes, settings: CallbackReceiverSettings) -> None:
        self.poll_seconds = settings.recovered_poll_seconds
        self._storage = storage
        self._notes = notes
        self._limit = settings.batch_size

    async def run_once(self) -> bool:
        """Settle one batch; True when there may be another."""
        settled, taken = await self._storage.settle_recovered(self._limit)
        announce(self._notes, settled)
        lost = [str(each.attempt_id) for each in settled if each.write is WriteOutcome.MISSING]
        if lost:
            log.warning("settle_recovered_missing", attempts=lost)
        return taken == self._limit
