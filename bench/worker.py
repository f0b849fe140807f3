"""One worker of the queue benches: claims and settles through the very code that the services use.

`python -m bench.worker URL BATCH SLEEP_MS USED_TOKENS`: READY, then work until SIGTERM; then one JSON line: starts,
spans, CPU seconds. With SLEEP_MS 0 a claim's tasks are settled as one round; USED_TOKENS 0 says nothing of tokens.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from uuid import UUID

import uvloop

from services.callback_receiver.messages import Kind, Report
from services.callback_receiver.storage import CallbackStorage
from services.dispatcher.storage import DispatcherStorage, Work
from shared.contract.callback import ResultBody, Usage
from shared.contract.ownership import role_of
from shared.contract.rows import LeasedAttempt
from shared.db.pool import Database


class Worker:
    """A dispatcher and a receiver with an agent between them that only sleeps."""

    def __init__(self, url: str, batch: int, sleep_seconds: float, used_tokens: int) -> None:
        usage = [Usage(model="bench", input_tokens=used_tokens)] if used_tokens else []
        self._done = ResultBody(result={}, usage=usage)
        self._batch = batch
        self._sleep_seconds = sleep_seconds
        self._pools = [
            Database(url.replace("{role}", role_of(service)), name=f"bench-{service}", size=2, pinned_plans=True)
            for service in ("dispatcher", "callback_receiver")
        ]
        self._claims = DispatcherStorage(self._pools[0], f"bench-{time.time_ns()}")
        self._settles = CallbackStorage(self._pools[1])
        self._ended: list[UUID] = []
        self._has_ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._named: set[str] = set()
        self.starts: list[tuple[str, float]] = []
        self.spans: list[tuple[str, float, float]] = []
        self.stopping = asyncio.Event()

    async def open(self) -> None:
        """Connect and plan."""
        for pool in self._pools:
            await pool.open()
        await self._pools[1].fetchval("SELECT 1")

    async def run(self) -> None:
        """Work until stopped."""
        settling = asyncio.create_task(self._settle_ended())
        is_at_rest = False
        while not self.stopping.is_set():
            self._wake.clear()
            named, self._named = Work(plain=sorted(self._named)), set()
            # As the dispatcher does: at rest, whom a note names takes nobody's turn.
            leased = await self._claims.claim_tasks(self._batch, 600, named if is_at_rest and named.plain else None)
            is_at_rest = not leased
            if leased:
                self._start(leased)
                continue
            try:
                async with asyncio.timeout(0.05):
                    await self._wake.wait()
            except TimeoutError:
                continue
        settling.cancel()

    def _start(self, leased: list[LeasedAttempt]) -> None:
        now = time.time()
        self.starts += [(each.agent, now) for each in leased]
        if self._sleep_seconds == 0:
            self._ended += [each.attempt_id for each in leased]
            self._has_ended.set()
            return
        for each in leased:
            asyncio.get_running_loop().call_later(self._sleep_seconds, self._end, each, now)

    def _end(self, leased: LeasedAttempt, started: float) -> None:
        self.spans.append((leased.agent, started, time.time()))
        self._ended.append(leased.attempt_id)
        self._has_ended.set()

    async def _settle_ended(self) -> None:
        while True:
            await self._has_ended.wait()
            ended, self._ended = self._ended[:1000], self._ended[1000:]
            if not self._ended:
                self._has_ended.clear()
            settled = await self._settles.settle([Report(each, Kind.RESULT, self._done, b"{}") for each in ended])
            busy = [attempt for attempt, found in zip(ended, settled, strict=True) if found is None]
            if busy:
                self._ended += busy
                self._has_ended.set()
            self._named.update(found.agent for found in settled if found is not None and found.agent)
            self._wake.set()


async def main(url: str, batch: str, sleep_ms: str, used_tokens: str) -> None:
    """One worker from READY to its account."""
    worker = Worker(url, int(batch), float(sleep_ms) / 1000, int(used_tokens))
    await worker.open()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stopping.set)
    print("READY", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    cpu = time.process_time()
    await worker.run()
    print(json.dumps({"starts": worker.starts, "spans": worker.spans, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:5]))
