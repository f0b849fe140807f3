"""A service that logs in with passwords of a few seconds' life goes on working."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from deploy.local import postgres
from deploy.local.folder import StackFolder, free_port
from shared.testing.wait import until
from tests.support.stack import NO_RUNS, StackProcess

LIFE_SECONDS = 6


@pytest.mark.timeout(180)
async def test_the_dispatcher_renews_its_password_and_stays_ready(tmp_path: Path) -> None:
    stack = StackProcess(
        tmp_path / "data",
        free_port(),
        "dispatcher",
        LOCKKEEPER_LOCAL_CREDENTIALS="rotating",
        LOCKKEEPER_WORKSPACE_DATABASE_TOKEN_SECONDS=str(LIFE_SECONDS),
        **NO_RUNS,
    ).start(120)
    try:
        port = int(stack.part("postgres")["url"].rpartition(":")[2])
        password = StackFolder(stack.folder).secret("postgres")
        connection = await asyncpg.connect(postgres.url(postgres.SUPERUSER, password, port))
        try:
            valid_until = "SELECT rolvaliduntil FROM pg_roles WHERE rolname = 'lockkeeper_dispatcher'"
            first = await connection.fetchval(valid_until)
            now = await connection.fetchval("SELECT now()")
            assert first < now + timedelta(seconds=LIFE_SECONDS + 2)

            async def is_renewed() -> bool:
                later = await connection.fetchval(valid_until)
                # The pool opens a connection when it needs one; ending those it has makes it log in anew.
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lockkeeper_dispatcher'"
                )
                return bool(later > first)

            await until(is_renewed, seconds=60, every=1)
            heartbeat = "SELECT max(heartbeat_at) FROM lockkeeper.replicas WHERE service = 'dispatcher'"
            beat = await connection.fetchval(heartbeat)

            async def beats_again() -> bool:
                return bool(await connection.fetchval(heartbeat) > beat)

            await until(beats_again, seconds=60, every=0.5)
        finally:
            await connection.close()
        assert stack.part("dispatcher")["restarts"] == 0
    finally:
        stack.destroy()
