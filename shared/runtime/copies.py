"""What a process does on a copy of the database: it starts, it shows, and it acts on nothing."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.db.deployment import Deployment
from shared.runtime.http import problem

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Unadopted:
    """An app that changes nothing outside while its database is a copy: what would act is answered with 503."""

    def __init__(self, app: ASGIApp, deployment: Deployment) -> None:
        self._app = app
        self._deployment = deployment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be done."""
        if self._deployment.is_known_adopted or scope["type"] != "http" or scope["method"] in _SAFE:
            await self._app(scope, receive, send)
        else:
            said = "This database is a copy that nobody has adopted, or that was not asked yet; nothing acts on it."
            refusal = problem(503, "Not adopted", said, headers={"Retry-After": "5"}, reason="not_adopted")
            await refusal(scope, receive, send)
