"""The code of runs, as far as the receiver sees it: a result for every attempt that was submitted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import httpx

from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

_BODY = b'{"result": {"kind": "invoice"}, "confidence": 0.9, "pages": 3}'


@dataclass
class Agents:
    """Each reports its result after a while, offers it again until it is taken, and keeps how it was answered."""

    http: httpx.AsyncClient
    address: Callable[[], str]
    """Where a receiver is now."""
    key_id: str
    key: str
    run_seconds: float
    answers: Counter[int] = field(default_factory=Counter)
    took: list[tuple[float, float]] = field(default_factory=list)

    async def report(self, attempt: str) -> None:
        """Until it was taken; 0 among the answers is a receiver that did not answer."""
        await asyncio.sleep(self.run_seconds)
        for _ in range(20):
            timestamp = str(int(time.time()))
            signature = sign(self.key.encode(), timestamp, _BODY)
            headers = {TIMESTAMP_HEADER: timestamp, KEY_ID_HEADER: self.key_id, SIGNATURE_HEADER: signature}
            url = f"{self.address()}/callbacks/v1/attempts/{attempt}/result"
            began = time.monotonic()
            try:
                status = (await self.http.post(url, content=_BODY, headers=headers)).status_code
            except httpx.HTTPError:
                status = 0
            self.answers[status] += 1
            self.took.append((began, time.monotonic() - began))
            if status == 200:
                return
            await asyncio.sleep(0.5)

    def within(self, first: float, last: float) -> dict[str, float]:
        """How long reports took that began in this time, in milliseconds."""
        found = sorted(seconds * 1000 for began, seconds in self.took if first <= began < last)
        if not found:
            return {}
        return {"p50": round(found[len(found) // 2], 1), "p99": round(found[int(len(found) * 0.99)], 1)}


@asynccontextmanager
async def working(
    owner: asyncpg.Connection, address: Callable[[], str], key_id: str, key: str, run_seconds: float = 0.0
) -> AsyncIterator[Agents]:
    """Agents carry whatever is submitted. `owner` is a connection of theirs alone."""
    # A connection for each report, as runs have them.
    limits = httpx.Limits(max_keepalive_connections=0)
    http = httpx.AsyncClient(trust_env=False, timeout=15, limits=limits)
    agents, asked = Agents(http, address, key_id, key, run_seconds), set[str]()
    reports: set[asyncio.Task[None]] = set()

    async def work() -> None:
        while True:
            rows = await owner.fetch("SELECT id::text FROM lockkeeper.task_attempts WHERE status = 'submitted'")
            for attempt in {row["id"] for row in rows} - asked:
                asked.add(attempt)
                reports.add(asyncio.create_task(agents.report(attempt)))
            await asyncio.sleep(0.1)

    loop = asyncio.create_task(work())
    try:
        yield agents
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await asyncio.gather(*reports)
        await http.aclose()
