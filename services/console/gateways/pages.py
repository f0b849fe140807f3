"""How many pages a spooled PDF has, if that can be had quickly and safely."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

log = structlog.get_logger()

_PROGRAM = Path(__file__).with_name("counting.py")


class PageCounter:
    """One child process that counts; it is started when first needed, and anew after a file that broke it."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def count(self, file: Path) -> int | None:
        """The number of pages; None when the file is locked or damaged, or took too long."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    answer = await self._ask(file)
            except (TimeoutError, OSError) as error:
                log.warning("count_pages_failed", error=str(error) or type(error).__name__)
                await self._end()
                return None
            if not answer.endswith(b"\n"):
                await self._end()
                return None
            return int(answer) if answer.strip() else None

    async def close(self) -> None:
        """End the child process."""
        async with self._turn:
            await self._end()

    async def _ask(self, file: Path) -> bytes:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, str(_PROGRAM), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        child = self._child
        if child.stdin is None or child.stdout is None:
            raise OSError("the child has no pipes")
        child.stdin.write(f"{file}\n".encode())
        await child.stdin.drain()
        return await child.stdout.readline()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()
