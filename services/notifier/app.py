"""Composition root of the notifier."""

from __future__ import annotations

from services.notifier.gateways.browsers import Browsers
from services.notifier.gateways.feed import Feed
from services.notifier.gateways.snapshots import Snapshots
from services.notifier.loops.fan_out import FanOut, Inbox
from services.notifier.loops.polling import Poll
from services.notifier.loops.pulse import Beat, Totals
from services.notifier.policy.order import Seen
from services.notifier.routes import EventRoutes, farewell
from services.notifier.settings import NotifierSettings
from services.notifier.storage import NotifierStorage, Views
from shared.contract.channels import Channel
from shared.identity.guard import Guard, Identity
from shared.identity.people import Right
from shared.identity.settings import IdentitySettings
from shared.runtime.process import Process, Service, run


async def compose(process: Process, settings: NotifierSettings) -> Service:
    """Wire the one listener to the many browsers."""
    storage = NotifierStorage(process.database)
    views = Views(storage, snapshot_tasks=settings.snapshot_tasks, life_seconds=settings.summary_seconds)
    browsers = Browsers(
        most=settings.max_clients, most_pending=settings.pending_events, send_seconds=settings.send_seconds
    )
    feed = Feed(browsers, replay_events=settings.replay_events)
    snapshots = Snapshots(feed, views.snapshot, life_seconds=settings.summary_seconds)
    inbox, seen = Inbox(), Seen()

    def is_live() -> bool:
        return process.is_live

    fan_out = FanOut(storage, inbox, feed, snapshots, seen, gather_seconds=settings.gather_seconds)
    poll = Poll(
        storage, inbox, browsers, seen, is_live,
        poll_seconds=settings.poll_seconds, live_poll_seconds=settings.live_poll_seconds,
    )  # fmt: skip
    totals = Totals(inbox, feed, snapshots, views, every_seconds=settings.summary_seconds)
    beat = Beat(feed, is_live, process.replica, every_seconds=settings.heartbeat_seconds)

    identity = Identity(IdentitySettings.load(process.settings.host), process.database)

    async def drain() -> None:
        browsers.close(farewell())

    return Service(
        loops=(fan_out, poll, totals, beat),
        app=Guard(EventRoutes(feed, snapshots, beat.state).app(), identity, lambda *_: Right.READ),
        hears={
            Channel.TASK_CHANGED: inbox.hear_tasks,
            Channel.COST_CHANGED: inbox.hear_costs,
            Channel.CONFIG_CHANGED: inbox.hear_config,
        },
        wakes={Channel.TASK_CHANGED: (fan_out,), Channel.COST_CHANGED: (fan_out,), Channel.CONFIG_CHANGED: (totals,)},
        drain=drain,
        # Streams end at once; only those whose browser takes nothing are still open then.
        http_grace_seconds=2,
    )


def main() -> None:
    """Run the notifier until it is told to stop."""
    run("notifier", NotifierSettings, compose)
