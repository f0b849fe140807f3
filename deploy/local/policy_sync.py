"""Stands in for the sync that keeps the policy table equal to its table in Unity Catalog.

It reads `underwriting_policy.yaml` in the stack's folder, which a person may edit while everything runs, and
makes the table equal to it. `lag_seconds` lets a change arrive late, `vanished` names purposes whose rows the
sync has lost. On Databricks the bundle declares a synced table instead, and nothing of this exists.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import click
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deploy.local.folder import LOOPBACK
from shared.runtime.http import HttpServer

DELIVERED = Path(__file__).with_name("underwriting_policy.yaml")
ROUND_SECONDS = 2.0
_COLUMNS = (
    "purpose", "policy_name", "policy_version", "minimum_score", "automatic_approval_dti", "hard_reject_score",
    "hard_reject_dti",
)  # fmt: skip
_UPSERT = """
INSERT INTO agent_policy.underwriting_policy_limits AS l
       (purpose, policy_name, policy_version, minimum_score, automatic_approval_dti, hard_reject_score, hard_reject_dti)
VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (purpose) DO UPDATE
   SET policy_name = excluded.policy_name, policy_version = excluded.policy_version,
       minimum_score = excluded.minimum_score, automatic_approval_dti = excluded.automatic_approval_dti,
       hard_reject_score = excluded.hard_reject_score, hard_reject_dti = excluded.hard_reject_dti, synced_at = now()
 WHERE (l.policy_name, l.policy_version, l.minimum_score, l.automatic_approval_dti, l.hard_reject_score,
        l.hard_reject_dti) IS DISTINCT FROM ($2, $3, $4, $5, $6, $7)
    OR l.synced_at < now() - interval '30 seconds'
"""


async def synchronise(database_url: str, policy: dict[str, Any]) -> None:
    """Make the table equal to this policy, in one transaction."""
    vanished = set(policy.get("vanished") or ())
    rows = [(purpose, *(limits[name] for name in _COLUMNS[1:])) for purpose, limits in policy["limits"].items()]
    kept = [row for row in rows if row[0] not in vanished]
    connection = await asyncpg.connect(database_url, timeout=10)
    try:
        async with connection.transaction():
            await connection.executemany(_UPSERT, kept)
            await connection.execute(
                "DELETE FROM agent_policy.underwriting_policy_limits WHERE purpose <> ALL ($1)",
                [row[0] for row in kept],
            )
    finally:
        await connection.close()


def read_policy(file: Path) -> tuple[dict[str, Any], float] | None:
    """The policy and how long ago it was changed; None while a person is in the middle of writing it."""
    try:
        policy = yaml.safe_load(file.read_text(encoding="utf-8"))
        limits = policy["limits"]
        complete = all(name in each for each in limits.values() for name in _COLUMNS[1:])
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
    return (policy, time.time() - file.stat().st_mtime) if complete else None


async def keep_in_step(database_url: str, file: Path, stop: asyncio.Event) -> None:
    """Round after round until told to stop; a database that is away is waited for."""
    while not stop.is_set():
        found = read_policy(file)
        if found is None:
            click.echo(f"policy_sync: {file} cannot be used; the table stays as it is", err=True)
        elif found[1] >= float(found[0].get("lag_seconds", 0)):
            try:
                await synchronise(database_url, found[0])
            except (asyncpg.PostgresError, OSError, TimeoutError) as error:
                click.echo(f"policy_sync: {error}", err=True)
        try:
            await asyncio.wait_for(stop.wait(), ROUND_SECONDS)
        except TimeoutError:
            continue


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def run(database_url: str, file: Path, port: int) -> None:
    """The whole process."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = HttpServer(Starlette(routes=[Route("/health", _health)]), LOOPBACK, port, grace_seconds=1)
    await server.open()
    await keep_in_step(database_url, file, stop)
    await server.close()


def main() -> int:
    """`python -m deploy.local.policy_sync`, addresses from the environment the supervisor gives."""
    file = Path(os.environ["LOCKKEEPER_LOCAL_POLICY_FILE"])
    if not file.exists():
        file.write_text(DELIVERED.read_text(encoding="utf-8"), encoding="utf-8")
    asyncio.run(run(os.environ["LOCKKEEPER_DATABASE_URL"], file, int(os.environ["LOCKKEEPER_LOCAL_POLICY_PORT"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
