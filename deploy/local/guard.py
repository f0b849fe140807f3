"""The process that outlives the supervisor, so that nothing survives it.

The supervisor runs as a child of the guard. The guard does nothing but pass signals on and wait.
When the supervisor ends, in whatever way, what it left behind is adopted by the guard and ended:
first asked to stop, then killed. When the guard itself is killed, the kernel tells the supervisor,
which then stops in the usual way. Only if both die at the same instant is it left to the kernel,
which ends the direct children.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from deploy.local.process import adopt_orphans, tie_to_parent

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ORPHANS_GRACE_SECONDS = 8.0


def guarded(body: Callable[[], int]) -> int:
    """Run `body` in a child process and return its exit status once no descendant is left."""
    adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # Ctrl-C reaches the guard alone, so the supervisor hears of it once
        tie_to_parent(guard, signal.SIGTERM)
        status = _status_of(body)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    status = _wait_for(child)
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    _end_orphans()
    return status


def _status_of(body: Callable[[], int]) -> int:
    try:
        return body()
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else 1
    except KeyboardInterrupt:  # before the supervisor listens for signals itself
        return 130
    except BaseException:  # noqa: BLE001 - nobody above us could show it
        traceback.print_exc()
        return 1


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    deadline = time.monotonic() + ORPHANS_GRACE_SECONDS
    asked: set[int] = set()
    while _reap():
        # SIGINT is the one signal that Postgres, too, takes as "end now, but cleanly".
        ending = signal.SIGINT if time.monotonic() < deadline else signal.SIGKILL
        for pid in _descendants():
            if ending is signal.SIGKILL or pid not in asked:
                asked.add(pid)
                _signal(pid, ending)
        time.sleep(0.05)


def _reap() -> bool:
    """Collect the dead; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    import psutil

    return [process.pid for process in psutil.Process().children(recursive=True)]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
