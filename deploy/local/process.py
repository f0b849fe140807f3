"""One child process: started in its own group, tied to its parent's life, logging into a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOG_LIMIT_BYTES = 20_000_000

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute, with the whole environment it gets."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    niceness: int = 0
    stop_signal: signal.Signals = signal.SIGTERM


def tie_to_parent(parent: int, ending: signal.Signals) -> None:
    """Let the kernel send us `ending` when `parent` dies; where it cannot, the guard ends us."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(ending), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def spawn(command: Command, log: Path) -> asyncio.subprocess.Process:
    """Start the command; its output is appended to `log`.

    Appending makes it safe to truncate the file under the writer, which is how it is rotated,
    and leaves nothing between the process and its log that could die first.
    """
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command.arguments,
            env=command.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=_preparation(command),
        )


def _preparation(command: Command) -> Callable[[], None]:
    parent = os.getpid()

    def prepare() -> None:
        os.nice(command.niceness)
        tie_to_parent(parent, command.stop_signal)

    return prepare


async def stop(process: asyncio.subprocess.Process, ending: signal.Signals, grace_seconds: float) -> bool:
    """End the process and its whole group; False when the grace time was over and it was killed."""
    with suppress(ProcessLookupError):
        process.send_signal(ending)
    try:
        await asyncio.wait_for(process.wait(), grace_seconds)
    except TimeoutError:
        ended = False
    else:
        ended = True
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    return ended


def rotate(log: Path, limit: int = LOG_LIMIT_BYTES) -> None:
    """Move a log that passed the limit to `NAME.log.1`, keeping the writer's descriptor valid.

    Lines written between the copy and the cut are lost; this is a local log.
    """
    with suppress(FileNotFoundError):
        if log.stat().st_size > limit:
            log.with_name(f"{log.name}.1").write_bytes(log.read_bytes())
            os.truncate(log, 0)


def last_line(log: Path) -> str:
    """The last words of a part, for the person who asks why it died."""
    with suppress(FileNotFoundError), log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""
    return ""
