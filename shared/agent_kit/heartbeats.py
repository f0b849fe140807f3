"""Keeping the lease: a thread that posts progress, so that a handler which blocks still counts as alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from shared.agent_kit.callbacks import CallbackSender
from shared.agent_kit.settings import AgentSettings
from shared.contract.callback import HeartbeatBody
from shared.contract.errors import LockkeeperError, RejectedError

log = structlog.get_logger()

_OVER = frozenset({"completed", "failed", "cancelled", "superseded"})


class Progress:
    """The latest word about an attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._body = HeartbeatBody()
        self._moved = threading.Event()

    def move(self, pages_done: int | None, pages_total: int | None, step: str | None) -> None:
        """Replace what was said before; what is left out stays."""
        with self._lock:
            known = self._body
            self._body = HeartbeatBody(
                pages_done=known.pages_done if pages_done is None else pages_done,
                pages_total=known.pages_total if pages_total is None else pages_total,
                step=known.step if step is None else step[:200],
            )
        self._moved.set()

    def take(self) -> HeartbeatBody:
        """What to send now."""
        self._moved.clear()
        with self._lock:
            return self._body

    def wait(self, seconds: float) -> None:
        """Return when there is news, or after the time."""
        self._moved.wait(seconds)

    def wake(self) -> None:
        """End a wait."""
        self._moved.set()


class Heart:
    """Beats until stopped. `on_unwanted` is called, once, in the heart's thread when the attempt should end."""

    def __init__(
        self, settings: AgentSettings, sender: CallbackSender, progress: Progress, on_unwanted: Callable[[str], None]
    ) -> None:
        self._longest = settings.agent_heartbeat_seconds
        self._shortest = settings.agent_progress_seconds
        self._sender = sender
        self._progress = progress
        self._on_unwanted = on_unwanted
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The first beat comes after the shortest time, so that a quick attempt needs none."""
        self._thread.start()

    def stop(self) -> None:
        """No beat starts after this; one that is on its way may still arrive, which the receiver allows for."""
        self._stopping.set()
        self._progress.wake()

    def _run(self) -> None:
        while not self._stopping.wait(self._shortest):
            if not self._beat():
                return
            until = time.monotonic() + self._longest
            self._progress.wait(max(0.0, until - time.monotonic() - self._shortest))

    def _beat(self) -> bool:
        """One heartbeat; False when the attempt is not wanted any more."""
        try:
            answer = self._sender.heartbeat(self._progress.take())
        except RejectedError as error:
            if error.reason != "callback_refused_404":
                log.warning("heartbeat_refused", error=error.message)
                return True
            self._on_unwanted("unknown")
            return False
        except LockkeeperError as error:
            log.warning("heartbeat_lost", error=error.message)
            return True
        outcome = str(answer.get("outcome", "running"))
        if answer.get("cancel_requested") is True or outcome in _OVER:
            self._on_unwanted("cancelled" if answer.get("cancel_requested") is True else outcome)
            return False
        return True
