"""The Databricks App: console, notifier and callback receiver in one process, behind the platform's login.

The services stay what they are; here they share one pool, one listener and one port. The app's
principal is a member of the three services' roles, so its rights are theirs together. Each of the
services keeps its own row among the replicas, so that alerts and people find them as everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from services.callback_receiver.app import compose as compose_receiver
from services.callback_receiver.settings import CallbackReceiverSettings
from services.console.app import compose as compose_console
from services.console.settings import ConsoleSettings
from services.notifier.app import compose as compose_notifier
from services.notifier.settings import NotifierSettings
from shared.contract.channels import Channel
from shared.contract.errors import MisconfiguredError
from shared.db.listener import Handler
from shared.runtime.loops import Loop
from shared.runtime.process import Process, Service, run
from shared.runtime.replica import ReplicaHeartbeat
from shared.runtime.settings import RuntimeSettings, read_settings

NEEDED = ("PGHOST", "PGUSER", "PGDATABASE", "LAKEBASE_ENDPOINT", "DATABRICKS_APP_PORT")
CONNECTIONS = 12


class ByPath:
    """One ASGI app in front of three; the longest prefix wins."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = sorted(apps.items(), key=lambda item: -len(item[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the app whose paths it belongs to."""
        path = scope["path"]
        app = next(app for prefix, app in self._apps if path == prefix or path.startswith(prefix.rstrip("/") + "/"))
        await app(scope, receive, send)


def adopt_platform(environment: MutableMapping[str, str]) -> None:
    """Say in our words what the platform tells an app. Raises MisconfiguredError when it does not tell enough."""
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise MisconfiguredError(f"the app needs its Lakebase resource: {', '.join(missing)} not set")
    user, host, database = (quote(environment[name], safe="") for name in ("PGUSER", "PGHOST", "PGDATABASE"))
    tls = environment.get("PGSSLMODE", "require").replace("require", "verify-full")  # whom we talk to is checked too
    ours = {
        "LOCKKEEPER_DATABASE_URL": f"postgresql://{user}@{host}:{environment.get('PGPORT', '5432')}/{database}"
        f"?sslmode={tls}",
        "LOCKKEEPER_DATABASE_INSTANCE": environment["LAKEBASE_ENDPOINT"],
        "LOCKKEEPER_DATABASE_CONNECTIONS": str(CONNECTIONS),
        "LOCKKEEPER_HOST": "0.0.0.0",  # noqa: S104 - the platform's proxy asks from outside of the container
        "LOCKKEEPER_PORT": environment["DATABRICKS_APP_PORT"],
        # Only the platform's proxy reaches the port, and it sets these headers itself.
        "LOCKKEEPER_IDENTITY_MODE": "forwarded",
        "LOCKKEEPER_IDENTITY_TRUSTED_PROXIES": '["0.0.0.0/0", "::/0"]',
        "LOCKKEEPER_GRACE_SECONDS": "8",
    }
    for name, value in ours.items():
        environment.setdefault(name, value)
    volume = environment.pop("DOCUMENTS_VOLUME", "")
    if volume:
        path = volume if volume.startswith("/") else f"/Volumes/{volume.replace('.', '/')}"
        environment.setdefault("LOCKKEEPER_CONSOLE_VOLUME", path)


def merge(parts: Mapping[str, Service], prefixes: Mapping[str, str], heartbeats: Sequence[ReplicaHeartbeat]) -> Service:
    """One service that does what all of these do."""
    hears: dict[Channel, Handler] = {}
    wakes: dict[Channel, list[Loop]] = {}
    for part in parts.values():
        for channel, handler in part.hears.items():
            hears[channel] = _both(hears[channel], handler) if channel in hears else handler
        for channel, loops in part.wakes.items():
            wakes.setdefault(channel, []).extend(loops)

    async def drain() -> None:
        for part in parts.values():
            await part.drain()
        for heartbeat in heartbeats:
            await heartbeat.farewell()

    return Service(
        loops=[*(loop for part in parts.values() for loop in part.loops), *heartbeats],
        app=ByPath({prefixes[name]: part.app for name, part in parts.items() if part.app is not None}),
        hears=hears,
        wakes=wakes,
        drain=drain,
    )


def _both(first: Handler, second: Handler) -> Handler:
    def handle(ids: list[str] | None) -> None:
        first(ids)
        second(ids)

    return handle


async def compose(process: Process, settings: ConsoleSettings) -> Service:
    """Wire the three services to one process."""
    _, notifier = read_settings("notifier", RuntimeSettings, NotifierSettings)
    _, receiver = read_settings("callback_receiver", RuntimeSettings, CallbackReceiverSettings)
    parts = {
        "console": await compose_console(process, settings),
        "notifier": await compose_notifier(process, notifier),
        "callback_receiver": await compose_receiver(process, receiver),
    }
    prefixes = {"console": "/", "notifier": "/events", "callback_receiver": "/callbacks/v1"}
    heartbeats = [_heartbeat(process, name) for name in parts if name != process.service]
    return merge(parts, prefixes, heartbeats)


def _heartbeat(process: Process, service: str) -> ReplicaHeartbeat:
    def info() -> dict[str, object]:
        return {"listener": "live" if process.is_live else "polling", "process": process.replica}

    heartbeat = ReplicaHeartbeat(process.database, service, f"{process.replica}-{service}", info)
    heartbeat.name = f"heartbeat_{service}"
    heartbeat.poll_seconds = process.settings.heartbeat_seconds
    return heartbeat


def main() -> None:
    """Run the app until the platform stops it."""
    try:
        adopt_platform(os.environ)
    except MisconfiguredError as error:
        raise SystemExit(f"app: {error.message}") from None
    run("console", ConsoleSettings, compose)


if __name__ == "__main__":
    main()
