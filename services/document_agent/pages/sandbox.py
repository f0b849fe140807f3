"""The parent's handle of the child process: one document at a time, a wall clock, and a clear word when it dies.

The child stays warm between documents and is replaced after a number of them, when it has grown, and after
every death. What kills it is one failed task and never tried again: the same bytes would do it again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from services.document_agent.messages import Header, Page, header_from, page_from
from services.document_agent.pages.child import MEMORY_EXCEEDED
from services.document_agent.settings import DocumentAgentSettings
from shared.contract.errors import RejectedError, TransientError

_GROWN_BYTES = 1_500_000_000
_START_SECONDS = 60.0
_PLAIN_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class ParserChild:
    """One child process. Its calls block; `Reading` makes them from threads."""

    def __init__(self) -> None:
        # A hostile file that takes the child over finds no token in its environment.
        plain = {name: os.environ[name] for name in _PLAIN_VARIABLES if name in os.environ}
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.document_agent.pages.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**plain, "PYTHONPATH": path},
        )  # fmt: skip
        self.is_ready = False
        self.documents = 0
        self.resident_bytes = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def order(self, path: Path, limits: dict[str, Any]) -> None:
        """Begin a document."""
        if not self.is_ready:
            self.next_message()
            self.is_ready = True
        self.documents += 1
        self.resident_bytes = 0
        stdin = self._process.stdin
        if stdin is None:
            raise BrokenPipeError
        stdin.write(orjson.dumps({"path": str(path), "limits": limits}) + b"\n")
        stdin.flush()

    def next_message(self) -> dict[str, Any]:
        """The next message. Raises EOFError when the process is gone."""
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else b""
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = orjson.loads(line)
        return message

    def kill(self) -> int:
        """End it and say with which status it ended."""
        self._process.kill()
        return self.wait()

    def wait(self) -> int:
        """The status of a process that is ending by itself."""
        status = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return status


class ParserPool:
    """The warm children of this process; usually one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[ParserChild] = []

    def warm_up(self) -> None:
        """Have a child ready; it loads while the caller goes on."""
        with self._lock:
            if not self._idle:
                self._idle.append(ParserChild())

    def lend(self) -> ParserChild:
        """A child for one document."""
        with self._lock:
            return self._idle.pop() if self._idle else ParserChild()

    def take_back(self, child: ParserChild, documents: int) -> None:
        """Keep a child that ended its document well, unless it has done or grown enough."""
        if child.documents >= documents or child.resident_bytes > _GROWN_BYTES:
            child.kill()
            return
        with self._lock:
            self._idle.append(child)

    def idle(self) -> list[ParserChild]:
        """The children that wait for a document."""
        with self._lock:
            return list(self._idle)

    def close(self) -> None:
        """End all that are idle."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.kill()


pool = ParserPool()
"""The children outlive single runs, as the process does."""
atexit.register(pool.close)


class Reading:
    """One document being read."""

    def __init__(self, child: ParserChild, settings: DocumentAgentSettings) -> None:
        self._child = child
        self._settings = settings
        self._give_up_at = 0.0
        self.is_done = False

    @property
    def pid(self) -> int:
        """The process that reads it."""
        return self._child.pid

    async def header(self, path: Path) -> Header:
        """Open the file. Raises RejectedError with the reason when that cannot be."""
        loop = asyncio.get_running_loop()
        self._give_up_at = loop.time() + self._settings.document_seconds
        limits = self._settings.reading_limits().as_message()
        seconds = self._settings.open_seconds + (0 if self._child.is_ready else _START_SECONDS)
        message = await self._limited(seconds, self._begin, path, limits)
        return header_from(self._content(message, "header"))

    async def pages(self, count: int) -> AsyncIterator[Page]:
        """The pages, one by one, as they are read."""
        for _ in range(count):
            left = self._give_up_at - asyncio.get_running_loop().time()
            message = await self._limited(min(self._settings.page_seconds, left), self._child.next_message)
            yield page_from(self._content(message, "page"))
        end = self._content(await self._limited(self._settings.page_seconds, self._child.next_message), "end")
        self._child.resident_bytes = int(end["resident_bytes"])
        self.is_done = True

    def _begin(self, path: Path, limits: dict[str, Any]) -> dict[str, Any]:
        self._child.order(path, limits)
        return self._child.next_message()

    async def _limited(self, seconds: float, call: Any, *arguments: Any) -> dict[str, Any]:
        """One answer of the child within the time; it is killed when that passes."""
        answer = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
        answer.add_done_callback(_look_at)  # also when nobody waits for it any more
        done, _ = await asyncio.wait({answer}, timeout=max(0.0, seconds))
        if not done:
            self._child.kill()
            await asyncio.wait({answer})
            raise RejectedError(
                f"reading the document did not get on for {seconds:.0f} s and was stopped", reason="parse_timeout"
            )
        try:
            message: dict[str, Any] = answer.result()
        except (EOFError, BrokenPipeError, ValueError) as error:
            raise _death(self._child.wait()) from error
        return message

    def _content(self, message: dict[str, Any], kind: str) -> dict[str, Any]:
        if "refused" in message:
            self.is_done = True
            refused = message["refused"]
            raise RejectedError(refused["message"], reason=refused["reason"])
        content: dict[str, Any] = message[kind]
        return content


def _look_at(answer: asyncio.Future[dict[str, Any]]) -> None:
    if not answer.cancelled():
        answer.exception()


def _death(status: int) -> RejectedError | TransientError:
    """What a child's end means for the task."""
    if status == MEMORY_EXCEEDED:
        return RejectedError("reading the document took more memory than it may", reason="document_too_heavy")
    if status == -signal.SIGXCPU:
        return RejectedError("a page took more processor time than it may", reason="parse_timeout")
    if status == -signal.SIGTERM:
        return TransientError("the reading process was stopped", reason="interrupted")
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return RejectedError(f"the document crashed its reader ({ended})", reason="document_crashed_parser")


@asynccontextmanager
async def reading(settings: DocumentAgentSettings) -> AsyncIterator[Reading]:
    """A reading of one document; the child is kept when it ended well and killed otherwise."""
    child = pool.lend()
    one = Reading(child, settings)
    try:
        yield one
    finally:
        if one.is_done:
            pool.take_back(child, settings.parser_documents)
        else:
            await asyncio.to_thread(child.kill)
