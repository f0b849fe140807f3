"""The folder of one local stack: its lock, its ports, its secrets and what is running now.

Everything that must survive a restart of the stack lives here, so that the second start finds the
same ports, passwords and data. `stack.json` is for other programs and is replaced as a whole; it
carries passwords of this machine's own database, hence the private file mode.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import socket
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
PRIVATE = 0o600
_CHANCE = random.SystemRandom()


class StackRunningError(Exception):
    """Another stack uses the folder; `pid` is the process that holds it."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"a stack already runs here (pid {pid})")
        self.pid = pid


class PortTakenError(Exception):
    """The port that a person asked for is in use by another program."""


class StackFolder:
    """Paths and small files of one stack. Everyone may read; only the lock's holder writes."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.stack_file = self.path / "stack.json"
        self._lock_file = self.path / "lock"
        self._lock: int | None = None

    def make(self) -> None:
        """Make the folder and what belongs in it."""
        self.logs.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Hold the folder until this process and its forks have ended, or raise StackRunningError."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StackRunningError(self.holder() or 0) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._lock = descriptor
        self.remove_stack()  # a stack that was killed could not do it

    def holder(self) -> int | None:
        """The process that runs a stack here now; None when there is none."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(descriptor, 20) or b"0")
        else:
            return None
        finally:
            os.close(descriptor)

    def read_stack(self) -> dict[str, Any] | None:
        """What runs here, as the running stack last wrote it; None when nothing runs."""
        if self.holder() is None:
            return None
        try:
            stack: dict[str, Any] = json.loads(self.stack_file.read_text())
        except FileNotFoundError:
            return None
        return stack

    def write_stack(self, stack: dict[str, Any]) -> None:
        """Replace stack.json; a reader sees the old one or the new one."""
        _replace(self.stack_file, stack)

    def remove_stack(self) -> None:
        """Say that nothing runs here."""
        self.stack_file.unlink(missing_ok=True)

    def ports(self, names: Iterable[str], fixed: dict[str, int]) -> dict[str, int]:
        """A free port for each name: the fixed one, else last time's, else any.

        Raises PortTakenError when a fixed one is not free.
        """
        file = self.path / "ports.json"
        known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        for name, port in fixed.items():
            if not _is_free(port):
                message = f"port {port} for {name} is in use by another program; choose one with --port"
                raise PortTakenError(message)
        chosen = dict(fixed)
        for name in names:
            if name not in chosen:
                port = known.get(name, 0)
                usable = port and port not in chosen.values() and _is_free(port)
                chosen[name] = port if usable else free_port(set(chosen.values()) | set(known.values()))
        _replace(file, known | chosen)
        return chosen

    def secret(self, name: str) -> str:
        """The secret of this name: made on first use, the same ever after."""
        file = self.path / "secrets.json"
        known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        if name not in known:
            known[name] = secrets.token_urlsafe(24)
            _replace(file, known)
        return known[name]


def _replace(file: Path, content: dict[str, Any]) -> None:
    fresh = file.with_name(f".{file.name}.new")
    fresh.touch(PRIVATE)
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(file)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
    return False


def free_port(taken: Container[int] = ()) -> int:
    """A port of this machine that nobody listens on, and none of these.

    It lies below those that outgoing connections are given, so that it stays free while its program is started anew.
    """
    while True:
        port = _CHANCE.randrange(10_000, 30_000)
        if port not in taken and _is_free(port):
            return port
