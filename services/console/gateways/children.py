"""Readers of foreign files, each in a child process: a line in, a line out, and an end to one that hangs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

log = structlog.get_logger()

_LONGEST_ANSWER = 32 * 2**20


class Child:
    """One process that answers lines; it is started when first needed, and anew after a file that broke it."""

    def __init__(self, program: str, *, timeout_seconds: float) -> None:
        self._program = Path(__file__).with_name(program)
        self._timeout_seconds = timeout_seconds
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, line: str) -> str | None:
        """The answer without its line end; None when the child crashed or took too long."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    answer = await self._exchange(line)
            except (TimeoutError, OSError, ValueError) as error:
                log.warning("read_file_failed", program=self._program.name, error=str(error) or type(error).__name__)
                await self._end()
                return None
            if not answer.endswith(b"\n"):
                await self._end()
                return None
            return answer.decode().rstrip("\n")

    async def close(self) -> None:
        """End the child process."""
        async with self._turn:
            await self._end()

    async def _exchange(self, line: str) -> bytes:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, str(self._program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, limit=_LONGEST_ANSWER,
            )  # fmt: skip
        child = self._child
        if child.stdin is None or child.stdout is None:
            raise OSError("the child has no pipes")
        child.stdin.write(f"{line}\n".encode())
        await child.stdin.drain()
        return await child.stdout.readline()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()
