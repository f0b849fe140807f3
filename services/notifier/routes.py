"""`GET /events`: a stream per browser."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.notifier.gateways.feed import Feed
from services.notifier.gateways.snapshots import Snapshots
from services.notifier.messages import encode, retry_hint
from services.notifier.metrics import CLIENTS_OPENED, CLIENTS_REFUSED
from services.notifier.settings import NotifierSettings
from shared.contract.errors import RejectedError
from shared.contract.task_filter import TaskFilter
from shared.runtime.http import problem

_HEADERS = {
    # Proxies must neither hold the events back nor compress them.
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


def jittered_retry() -> bytes:
    """Browsers that lost the stream together do not come back together."""
    return retry_hint(random.randint(1_000, 4_000))  # noqa: S311 - jitter


def farewell() -> bytes:
    """The last event of a replica that ends; the browser goes to another one."""
    return encode("close", {"reason": "restarting"}) + jittered_retry()


class EventRoutes:
    """The notifier's HTTP."""

    def __init__(
        self, feed: Feed, snapshots: Snapshots, settings: NotifierSettings, state: Callable[[], bytes]
    ) -> None:
        self._feed = feed
        self._snapshots = snapshots
        self._settings = settings
        self._state = state

    def app(self) -> Starlette:
        """The one path."""
        return Starlette(routes=[Route("/events", self.events, methods=["GET"])])

    async def events(self, request: Request) -> Response:
        """A stream of the tasks that the query means; goes on after `Last-Event-ID` where it can."""
        try:
            chosen = TaskFilter.parse(request.query_params.multi_items())
        except RejectedError as error:
            return problem(422, "Not valid", error.message, reason=error.reason)
        if self._feed.browsers.is_full:
            CLIENTS_REFUSED.inc()
            wait = str(random.randint(3, 10))  # noqa: S311 - jitter
            return problem(
                503, "Too many streams", "Go on by polling; try again later.", headers={"Retry-After": wait},
                reason="too_many_streams",
            )  # fmt: skip
        # Scripts that open a stream anew by themselves cannot set the header.
        last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        return EventSourceResponse(
            self._stream(chosen, last), headers=_HEADERS, ping=self._settings.heartbeat_seconds, sep="\n",
            ping_message_factory=lambda: ServerSentEvent(comment="still here", sep="\n"),
            send_timeout=self._settings.send_seconds,
        )  # fmt: skip

    async def _stream(self, chosen: TaskFilter, last_event_id: str | None) -> AsyncIterator[bytes]:
        browser = self._feed.browsers.open(chosen)
        try:
            is_resumed = self._feed.resume(browser, last_event_id)
            CLIENTS_OPENED.labels("resumed" if is_resumed else "snapshot").inc()
            yield jittered_retry() + self._state()
            if not is_resumed:
                await self._snapshots.try_deliver(browser)
            while (data := await browser.take()) is not None:
                yield data
        finally:
            self._feed.browsers.leave(browser)
