"""The child process: opens one file after the other and tells its parent what stands in them.

Orders come as JSON lines on standard input, messages go out as JSON lines on what was standard output
(which is closed to everybody else: native code that prints must not garble them). It ends itself when its
parent is gone, when it holds more memory than it may, and the kernel ends it when a page burns more
processor time than it may; the parent keeps the wall clock.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import orjson

MEMORY_EXCEEDED = 86
"""Exit status of a child that held more memory than it may."""


def main() -> None:
    """Serve orders until the input closes."""
    out = os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    watch = _Watch(os.getppid())
    threading.Thread(target=watch.run, daemon=True).start()
    from services.document_agent.ocr import Recogniser

    recognisers: dict[int, Any] = {}
    _tell(out, {"ready": True})
    for line in sys.stdin.buffer:
        order = orjson.loads(line)
        threads = order["limits"]["ocr_threads"]
        watch.memory_bytes = order["limits"]["memory_bytes"]
        recogniser = recognisers.setdefault(threads, Recogniser(threads))
        _serve(order, recogniser, lambda message: _tell(out, message))


def _serve(order: dict[str, Any], recogniser: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    from services.document_agent.pages.opening import open_document
    from services.document_agent.pages.reading import PageReader
    from services.document_agent.settings import ReadingLimits
    from shared.contract.errors import RejectedError

    limits = ReadingLimits(**order["limits"])
    _allow_cpu(limits.cpu_seconds_a_page)
    try:
        document = open_document(Path(order["path"]), limits.pages)
    except RejectedError as error:
        tell({"refused": {"reason": error.reason, "message": error.message}})
        return
    try:
        tell({"header": document.header.as_message()})
        reader = PageReader(limits, recogniser)
        for index in range(document.header.pages):
            _allow_cpu(limits.cpu_seconds_a_page)
            tell({"page": reader.read(document.pdf, index).as_message()})
    finally:
        document.close()
    tell({"end": {"resident_bytes": resident_bytes()}})


def _tell(out: BinaryIO, message: dict[str, Any]) -> None:
    out.write(orjson.dumps(message) + b"\n")
    out.flush()


def _allow_cpu(seconds: float) -> None:
    """Let this process use so many more seconds of processor time; the kernel ends it beyond."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))


def resident_bytes() -> int:
    """How much memory this process holds now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


class _Watch:
    """Looks after memory and the parent, beside whatever the process is doing."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self.memory_bytes = 0

    def run(self) -> None:
        while True:
            if os.getppid() != self._parent:
                os._exit(0)
            if self.memory_bytes and resident_bytes() > self.memory_bytes:
                os._exit(MEMORY_EXCEEDED)
            time.sleep(0.25)


if __name__ == "__main__":
    main()
