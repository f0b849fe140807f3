"""What the doctor looks at. It only reads, and each check stands alone: one that breaks hides no other."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import asyncpg

from shared.contract.errors import LockkeeperError
from shared.contract.ownership import OWNER_ROLE, READER_ROLE, ROLES, role_of
from shared.db.connecting import connect
from shared.db.migrate import applied, migrations
from shared.db.statements import parse

State = Literal["ok", "note", "broken"]
ALIVE_SECONDS = 15
CLOCK_SECONDS = 5
SERVICES = [service for service in ROLES if service != "document_agent"]
OPTIONAL = ("underwriting_worker", "underwriting_api")
"""The second application; a system that never ran it misses nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: fine, worth knowing, or broken."""

    name: str
    state: State
    detail: str

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done about it."""
        return self.state != "broken"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


Check = Callable[[asyncpg.Connection], Awaitable[list[Finding]]]


async def examine(url: str) -> list[Finding]:
    """Every finding about this database, worst and best; the first one says whether it was reached at all."""
    began = time.monotonic()
    try:
        connection = await connect(url, name="lockkeeper-doctor")
    except (OSError, asyncpg.PostgresError, TimeoutError, ValueError) as error:
        return [Finding("database", "broken", f"not reached: {error}".strip())]
    try:
        version = await connection.fetchval("SHOW server_version")
        milliseconds = (time.monotonic() - began) * 1000
        findings = [Finding("database", "ok", f"Postgres {version}, reached in {milliseconds:.0f} ms")]
        for check in (_schema, _roles, _policy, _clock, _replicas, _agents, _invariants):
            findings += await _alone(check, connection)
        return findings
    finally:
        await connection.close()


async def _alone(check: Check, connection: asyncpg.Connection) -> list[Finding]:
    try:
        return await check(connection)
    except (asyncpg.PostgresError, LockkeeperError) as error:
        return [Finding(check.__name__.removeprefix("_"), "broken", str(error))]


async def _schema(connection: asyncpg.Connection) -> list[Finding]:
    done, wanted = await applied(connection), migrations()
    missing = [migration.name for migration in wanted if migration.number not in done]
    changed = [m.name for m in wanted if m.number in done and done[m.number] != m.digest]
    newer = sorted(set(done) - {migration.number for migration in wanted})
    if changed:
        return [Finding("schema", "broken", f"changed after they were applied: {', '.join(changed)}")]
    if missing:
        return [Finding("schema", "broken", f"not applied: {', '.join(missing)}; run `lockkeeper migrate`")]
    if newer:
        return [Finding("schema", "note", f"the database is newer than this program, by {len(newer)} migrations")]
    return [Finding("schema", "ok", f"current: {wanted[-1].name}" if wanted else "current")]


async def _roles(connection: asyncpg.Connection) -> list[Finding]:
    wanted = {OWNER_ROLE, READER_ROLE, *(role_of(service) for service in ROLES)}
    found = {row["rolname"] for row in await connection.fetch("SELECT rolname FROM pg_roles")}
    missing = sorted(wanted - found)
    if missing:
        return [Finding("roles", "broken", f"missing: {', '.join(missing)}; run `lockkeeper migrate`")]
    return [Finding("roles", "ok", f"all {len(wanted)} are there")]


async def _policy(connection: asyncpg.Connection) -> list[Finding]:
    """A full refresh makes the synced table anew, without the grants that the underwriter reads it by."""
    table = await connection.fetchval(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE (n.nspname, c.relname) = ('agent_policy_sync', 'underwriting_policy_limits')"
    )
    if table is None:
        if not await connection.fetchval("SELECT true FROM pg_namespace WHERE nspname = 'agent_policy_sync'"):
            return []
        return [Finding("policy", "broken", "the synced table of the policy is gone; runs fail closed")]
    blind = [
        role for role in map(role_of, OPTIONAL)
        if not await connection.fetchval(
            "SELECT has_schema_privilege($1, 'agent_policy_sync', 'USAGE') "
            "AND has_table_privilege($1, $2::oid, 'SELECT')",
            role, table,
        )
    ]  # fmt: skip
    if blind:
        return [Finding("policy", "broken", f"{', '.join(blind)} may not read the synced table; grant it again")]
    return [Finding("policy", "ok", "synced, and the underwriter may read it")]


async def _clock(connection: asyncpg.Connection) -> list[Finding]:
    before = datetime.now(UTC)
    there = await connection.fetchval("SELECT clock_timestamp()")
    skew = (there - before - (datetime.now(UTC) - before) / 2).total_seconds()
    state: State = "ok" if abs(skew) < CLOCK_SECONDS else "note"
    return [Finding("clock", state, f"the database is {abs(skew):.1f} s {'ahead of' if skew >= 0 else 'behind'} us")]


async def _replicas(connection: asyncpg.Connection) -> list[Finding]:
    rows = await connection.fetch(
        """
        SELECT service, id, info ->> 'listener' AS listener,
               extract(epoch FROM clock_timestamp() - heartbeat_at) AS silent_seconds
          FROM lockkeeper.replicas
         WHERE stopped_at IS NULL OR service = ANY ($1::text[])
         ORDER BY service, id
        """,
        OPTIONAL,
    )
    findings = []
    for service in SERVICES:
        mine = [row for row in rows if row["service"] == service]
        alive = [row for row in mine if row["silent_seconds"] < ALIVE_SECONDS]
        polling = [row["id"] for row in alive if row["listener"] == "polling"]
        if not mine and service in OPTIONAL:
            continue
        if not alive:
            findings.append(Finding(service, "broken", "no replica is alive"))
        elif polling:
            findings.append(Finding(service, "note", f"{len(alive)} alive, only polling: {', '.join(polling)}"))
        else:
            findings.append(Finding(service, "ok", f"{len(alive)} alive"))
    return findings


async def _agents(connection: asyncpg.Connection) -> list[Finding]:
    rows = await connection.fetch("SELECT * FROM lockkeeper.queue_state ORDER BY agent")
    if not rows:
        return [Finding("agents", "note", "there are none; `lockkeeper agents apply FILE` makes them")]
    findings = []
    for row in rows:
        waiting = row["waiting"]
        oldest = f", the oldest for {row['oldest_waiting_seconds']:.0f} s" if waiting else ""
        paused = " (paused)" if row["paused"] else ""
        detail = f"{row['running']} running, {waiting} waiting{oldest}{paused}"
        findings.append(Finding(f"agent {row['agent']}", "note" if row["paused"] else "ok", detail))
    return findings


async def _invariants(connection: asyncpg.Connection) -> list[Finding]:
    """Each named statement of the contract's invariants returns the rows that break it."""
    from importlib.resources import files

    text = files("shared.contract").joinpath("invariants.sql").read_text(encoding="utf-8")
    findings = []
    for name, statement in parse(text).items():
        broken = await connection.fetch(statement.sql)
        title = f"invariant {name.replace('_', ' ')}"
        if broken:
            findings.append(Finding(title, "broken", f"{len(broken)} rows break it, for example {dict(broken[0])}"))
        else:
            findings.append(Finding(title, "ok", "holds"))
    return findings
