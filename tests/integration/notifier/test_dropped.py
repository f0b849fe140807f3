"""Browsers that go away without a word."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time

from shared.testing.wait import until
from tests.integration.notifier.conftest import StartNotifier, Tasks


async def test_s03_browsers_that_drop_off_are_noticed_within_two_heartbeats(
    start_notifier: StartNotifier, tasks: Tasks
) -> None:
    """Closed, or cut by a reset, while nothing happens."""
    notifier = await start_notifier(heartbeat_seconds=0.5)
    browsers = notifier.browsers
    gc.collect()
    before = len(asyncio.all_tasks())
    port = int(notifier.url.rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writers.append(writer)
    await until(lambda: len(browsers) == 100, seconds=30)
    for number, writer in enumerate(writers):
        if number % 2:
            # Linger zero: the close sends a reset instead of a farewell.
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
    await until(lambda: len(browsers) == 0, seconds=10)
    await until(lambda: len(asyncio.all_tasks()) <= before + 5, seconds=10)


async def test_a_browser_that_takes_nothing_is_let_go(start_notifier: StartNotifier, tasks: Tasks) -> None:
    """It neither reads nor closes; its buffers fill, and after `send_seconds` its place is free again."""
    notifier = await start_notifier(heartbeat_seconds=0.5, send_seconds=0.5, gather_seconds=0.01)
    async with notifier.stuck() as stuck:
        # The kernel must not hold megabytes for it: what it takes later would be of long ago.
        assert stuck.held < 600_000
        await until(lambda: not len(notifier.browsers), seconds=10)


async def test_s05_a_browser_that_takes_nothing_does_not_hold_up_the_end(
    start_notifier: StartNotifier, tasks: Tasks
) -> None:
    notifier = await start_notifier(gather_seconds=0.01, send_seconds=60, pending_events=100_000)
    async with notifier.stuck():
        started = time.monotonic()
        await notifier.end()
        assert time.monotonic() - started < 5
