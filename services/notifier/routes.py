"""`GET /events`: a stream per browser."""

from __future__ import annotations

import random
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from services.notifier.gateways.browsers import Browser
from services.notifier.gateways.feed import Feed
from services.notifier.gateways.snapshots import Snapshots
from services.notifier.messages import View, encode, retry_hint
from services.notifier.metrics import CLIENTS_OPENED, CLIENTS_REFUSED
from shared.contract.errors import RejectedError
from shared.runtime.http import problem
from shared.runtime.http.wire import wire_of

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Proxies must neither hold the events back nor compress them.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


def jittered_retry() -> bytes:
    """Browsers that lost the stream together do not come back together."""
    return retry_hint(random.randint(1_000, 4_000))  # noqa: S311 - jitter


def farewell() -> bytes:
    """The last event of a replica that ends; the browser goes to another one."""
    return encode("close", {"reason": "restarting"}) + jittered_retry()


class EventRoutes:
    """The notifier's HTTP."""

    def __init__(self, feed: Feed, snapshots: Snapshots, state: Callable[[], bytes]) -> None:
        self._feed = feed
        self._snapshots = snapshots
        self._state = state

    def app(self) -> Starlette:
        """The one path."""
        return Starlette(routes=[Route("/events", self.events, methods=["GET"])])

    async def events(self, request: Request) -> ASGIApp:
        """A stream of the tasks that the query means, `only=tasks` for one without totals and agents.

        It goes on after `Last-Event-ID` where it can.
        """
        try:
            view = View.parse(request.query_params.multi_items())
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

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if request.method == "HEAD":
                await send({"type": "http.response.body"})
                return
            wire = wire_of(scope)
            wire.hold_little()
            browser = self._feed.browsers.open(view, wire)
            try:
                await self._begin(browser, last)
                # Whoever has news writes them; this task is woken once more, at the end.
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                self._feed.browsers.leave(browser)

        return stream

    async def _begin(self, browser: Browser, last_event_id: str | None) -> None:
        hello = jittered_retry() + self._state()
        browser.notice({"state": hello}, hello)
        is_resumed = self._feed.resume(browser, last_event_id)
        CLIENTS_OPENED.labels("resumed" if is_resumed else "snapshot").inc()
        if not is_resumed:
            await self._snapshots.try_deliver(browser)
