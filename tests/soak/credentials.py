"""Passwords of a minute's life, a credential endpoint that fails a third of the time, restarts and fail-overs.

A whole stack works through a database that Postgres guards by passwords with an end of validity. All the
while people read pages, programs enqueue tasks and a browser holds its stream open. By turns the server is
restarted, and the address leads to a hot standby, which takes no writes, and back. What must hold: every
task completes, no answer is an error or late, no session is older than its life.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from deploy.local.folder import free_port
from deploy.local.postgres import as_server_user
from shared.db.connecting import connect
from shared.db.invariants import violations
from shared.testing.proxy import TcpProxy
from shared.testing.wait import until
from tests.support.batch import ENDS, StackUser, page
from tests.support.postgres import PASSWORD, PostgresServer, binaries
from tests.support.stack import StackProcess

SERVICES = ("dispatcher", "sweeper", "callback_receiver", "notifier", "console", "front_door")
NEEDED = ("schema", "workspace", "setup", *SERVICES)
LATEST_SECONDS = 12.0
"""A request that takes longer has waited past its deadline of 10 s for a connection."""
READ_ONLY_SECONDS = 3.0
AGENT = "document-agent"
_RULES = """
host  all          postgres 127.0.0.1/32 trust
host  replication  all      127.0.0.1/32 trust
host  all          all      127.0.0.1/32 scram-sha-256
"""
_AGES = """
SELECT application_name, extract(epoch FROM clock_timestamp() - backend_start)::float8 AS age
  FROM pg_stat_activity WHERE application_name LIKE 'lockkeeper-%' AND usename LIKE 'lockkeeper\\_%'
"""
_GAUGE = re.compile(r"^lockkeeper_credential_(failures|refusals) ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Terms:
    """How long it all lasts, in seconds."""

    seconds: float
    token_seconds: int = 60
    life_seconds: int = 60
    event_seconds: float = 150
    submit_seconds: float = 10


@dataclass
class Witness:
    """What people and programs saw."""

    faults: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    tasks: list[str] = field(default_factory=list)
    slowest: float = 0.0
    oldest: float = 0.0

    def fault(self, text: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")
        print(self.faults[-1], flush=True)


class Servers:
    """A primary and its hot standby behind one address."""

    def __init__(self) -> None:
        self.primary = PostgresServer.create(max_wal_senders="5", hot_standby="on")
        rules = self.primary.data / "pg_hba.conf"
        rules.write_text(_RULES)
        self.standby = self._copy()
        self.proxy = TcpProxy("127.0.0.1", self.primary.port)

    def _copy(self) -> PostgresServer:
        self.primary.stop()
        self.primary.start()
        home = Path(tempfile.mkdtemp(prefix="lockkeeper-standby-"))
        data = home / "data"
        data.mkdir(mode=0o700)
        shutil.chown(data, *(("nobody", "nogroup") if self.primary.data.owner() == "nobody" else (None, -1)))
        home.chmod(0o755)
        program = binaries(18) / "pg_basebackup"
        arguments = [
            "-h",
            "127.0.0.1",
            "-p",
            str(self.primary.port),
            "-U",
            "postgres",
            "-D",
            str(data),
            "-R",
            "-c",
            "fast",
        ]
        subprocess.run([*as_server_user(data, program), str(program), *arguments], check=True, capture_output=True)
        standby = PostgresServer(18, data, free_port(), self.primary.settings)
        standby.start()
        return standby

    async def restart(self) -> None:
        """The primary ends every session and starts again."""
        await asyncio.to_thread(self.primary.stop)
        await asyncio.to_thread(self.primary.start)

    async def fail_over(self) -> None:
        """The address leads to the standby for a while, then back; sessions are cut both times."""
        for port in (self.standby.port, self.primary.port):
            self.proxy.lead_to(port)
            self.proxy.cut()
            if port == self.standby.port:
                await asyncio.sleep(READ_ONLY_SECONDS)

    def destroy(self) -> None:
        self.standby.destroy()
        self.primary.destroy()


class Story:
    """One run of the proof."""

    def __init__(self, terms: Terms, user: StackUser, servers: Servers, http: httpx.AsyncClient) -> None:
        self._terms = terms
        self._user = user
        self._servers = servers
        self._http = http
        self._until = time.monotonic() + terms.seconds
        self._document = user.upload([page(1)])[0]
        self.witness = Witness()

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until

    async def tell(self) -> Witness:
        """Everything at once, until the time is over and every task has ended."""
        await asyncio.gather(self._enqueue(), self._read(), self._stream(), self._measure(), self._disturb())
        await self._all_ended()
        return self.witness

    async def _ask(self, kind: str, method: str, path: str, **given: Any) -> httpx.Response | None:
        """The answer; None, and a fault on record, when it was an error or late."""
        began = time.monotonic()
        try:
            answer = await self._http.request(method, path, **given)
        except httpx.HTTPError as error:
            self.witness.fault(f"{method} {path}: {type(error).__name__} {error}")
            return None
        took = time.monotonic() - began
        self.witness.seen[kind] += 1
        self.witness.slowest = max(self.witness.slowest, took)
        if answer.is_error or took > LATEST_SECONDS:
            self.witness.fault(f"{method} {path}: {answer.status_code} after {took:.1f} s {answer.text[:200]}")
            return None
        return answer

    async def _enqueue(self) -> None:
        for number in count():
            if not self._goes_on:
                return
            body = {"agent": AGENT, "document_id": self._document, "idempotency_key": f"soak-{number}"}
            answer = await self._ask("enqueued", "POST", "/api/v1/tasks", json=body)
            if answer is not None:
                self.witness.tasks.append(answer.json()["id"])
            await asyncio.sleep(self._terms.submit_seconds)

    async def _read(self) -> None:
        paths = ["/", "/api/v1/tasks?limit=20", "/api/v1/summary", "/api/v1/agents", "/api/v1/state"]
        for path in cycle(paths):
            if not self._goes_on:
                return
            await self._ask("read", "GET", path)
            if self.witness.tasks:
                await self._ask("read", "GET", f"/api/v1/tasks/{self.witness.tasks[-1]}")
            await asyncio.sleep(1)

    async def _stream(self) -> None:
        while self._goes_on:
            try:
                async with self._http.stream("GET", "/events") as answer:
                    if answer.status_code != 200:
                        self.witness.fault(f"/events: {answer.status_code}")
                    self.witness.seen["streams"] += 1
                    async for line in answer.aiter_lines():
                        self.witness.seen["events"] += line.startswith("event:")
                        if not self._goes_on:
                            return
            except httpx.HTTPError as error:
                self.witness.fault(f"/events: {type(error).__name__} {error}")
            await asyncio.sleep(1)

    async def _measure(self) -> None:
        """The ages of all sessions of the services, on both servers."""
        while self._goes_on:
            for server in (self._servers.primary, self._servers.standby):
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection = await asyncpg.connect(server.url(database="lockkeeper"), timeout=3)
                    for row in await connection.fetch(_AGES):
                        self.witness.oldest = max(self.witness.oldest, row["age"])
                        if row["age"] > self._terms.life_seconds:
                            self.witness.fault(f"{row['application_name']} is {row['age']:.0f} s old")
                    await connection.close()
            await asyncio.sleep(2)

    async def _disturb(self) -> None:
        disturbances: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("restarts", self._servers.restart), ("fail-overs", self._servers.fail_over),
        ]  # fmt: skip
        for name, disturb in cycle(disturbances):
            for _ in range(int(self._terms.event_seconds)):
                if not self._goes_on:
                    return
                await asyncio.sleep(1)
            await disturb()
            self.witness.seen[name] += 1

    async def _all_ended(self) -> None:
        async def ended() -> bool:
            counts = (await self._http.get("/api/v1/summary")).json()["counts"]
            return sum(counts[each] for each in ENDS) >= len(self.witness.tasks)

        await until(ended, seconds=180, every=1)
        for each in self.witness.tasks:
            task = (await self._http.get(f"/api/v1/tasks/{each}")).json()
            self.witness.seen[task["status"]] += 1
            self.witness.seen["attempts"] += task["attempt"]
            if task["status"] != "completed":
                self.witness.fault(f"task {each} is {task['status']}: {task['error']}")
        connection = await connect(self._servers.primary.url(database="lockkeeper"), name="judge")
        for broken in await violations(connection):
            self.witness.fault(f"invariant broken: {broken}")
        await connection.close()


@asynccontextmanager
async def _stack(terms: Terms, servers: Servers, home: Path) -> AsyncIterator[StackUser]:
    await servers.proxy.open()
    owner = await asyncpg.connect(servers.primary.url(database="postgres"))
    await owner.execute(f"CREATE ROLE lockkeeper LOGIN CREATEROLE PASSWORD '{PASSWORD}'")
    await owner.execute("CREATE DATABASE lockkeeper OWNER lockkeeper")
    await owner.close()
    stack = StackProcess(
        home / "data", free_port(), *NEEDED,
        LOCKKEEPER_DATABASE_URL=f"postgresql://lockkeeper:{PASSWORD}@127.0.0.1:{servers.proxy.port}/lockkeeper",
        LOCKKEEPER_LOCAL_CREDENTIALS="rotating",
        LOCKKEEPER_WORKSPACE_DATABASE_TOKEN_SECONDS=str(terms.token_seconds),
        LOCKKEEPER_WORKSPACE_PROCESSES="1",
        LOCKKEEPER_DATABASE_CONNECTION_SECONDS=str(terms.life_seconds),
        LOCKKEEPER_AGENT_TRACE_WAIT_SECONDS="0.5",
    )  # fmt: skip
    try:
        await asyncio.to_thread(stack.start, 300, *NEEDED)
        yield StackUser(stack)
    finally:
        await asyncio.to_thread(stack.destroy)
        await servers.proxy.close()


async def _credentials(user: StackUser) -> Counter[str]:
    found: Counter[str] = Counter()
    async with httpx.AsyncClient(trust_env=False) as http:
        for name in SERVICES:
            if url := user.stack.part(name).get("metrics_url"):
                for kind, value in _GAUGE.findall((await http.get(url)).text):
                    found[kind] += int(float(value))
            found["restarts"] += user.stack.part(name)["restarts"]
    return found


async def _proof(terms: Terms) -> dict[str, Any]:
    servers = await asyncio.to_thread(Servers)
    home = Path(tempfile.mkdtemp(prefix="lockkeeper-soak-"))
    try:
        async with _stack(terms, servers, home) as user:
            rules = [
                await asyncio.to_thread(user.break_it, api=api, kind="status", status=503, probability=1 / 3)
                for api in ("database.credentials", "postgres.credentials")
            ]
            base = user.stack.description()["url"]
            async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
                story = await asyncio.to_thread(Story, terms, user, servers, http)
                witness = await story.tell()
            found = await _credentials(user)
            refused = sum([await asyncio.to_thread(user.used, rule) for rule in rules])
            if found["restarts"]:
                witness.fault(f"{found['restarts']} services ended and were started again")
            return {
                "name": "soak_credentials", "minutes": round(terms.seconds / 60, 1), "faults": witness.faults,
                "seen": dict(witness.seen), "slowest_seconds": round(witness.slowest, 2),
                "oldest_session_seconds": round(witness.oldest, 1), "session_life_seconds": terms.life_seconds,
                "token_seconds": terms.token_seconds, "credential_calls_failed": refused,
                "renewals_failed": found["failures"], "logins_refused": found["refusals"],
            }  # fmt: skip
    finally:
        await asyncio.to_thread(servers.destroy)
        shutil.rmtree(home, ignore_errors=True)


def run(minutes: float) -> dict[str, Any]:
    """The proof over so many minutes; a short one has shorter lives, so that as much happens in it."""
    if minutes >= 10:
        return asyncio.run(_proof(Terms(minutes * 60)))
    return asyncio.run(_proof(Terms(minutes * 60, 12, 16, event_seconds=minutes * 60 / 4.5, submit_seconds=3)))
