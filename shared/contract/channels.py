"""The channels on which services wake each other, and who may send and hear them.

A note is a hint: rows are the truth, pollers stay on, and a lost note costs one poll. Payloads hold
ids only and stay far below Postgres' limit of 7,999 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Channel(StrEnum):
    """The names that LISTEN and NOTIFY use."""

    TASK_READY = "lockkeeper_task_ready"
    TASK_CHANGED = "lockkeeper_task_changed"
    CONFIG_CHANGED = "lockkeeper_config_changed"
    CANCEL_REQUESTED = "lockkeeper_cancel_requested"
    ATTEMPT_SETTLED = "lockkeeper_attempt_settled"
    COST_REQUESTED = "lockkeeper_cost_requested"
    COST_CHANGED = "lockkeeper_cost_changed"
    RESULT_RECOVERED = "lockkeeper_result_recovered"


@dataclass(frozen=True, slots=True)
class Route:
    """Who sends on a channel, who listens, and what the payload names."""

    senders: frozenset[str]
    listeners: frozenset[str]
    payload: str


ROUTES: dict[Channel, Route] = {
    Channel.TASK_READY: Route(
        frozenset({"console", "client", "callback_receiver", "sweeper", "dispatcher"}),
        frozenset({"dispatcher"}),
        "agent names",
    ),
    Channel.TASK_CHANGED: Route(
        frozenset({"console", "client", "dispatcher", "sweeper", "callback_receiver"}),
        frozenset({"notifier"}),
        "task ids",
    ),
    Channel.CONFIG_CHANGED: Route(frozenset({"console"}), frozenset({"dispatcher", "notifier"}), "agent names"),
    Channel.CANCEL_REQUESTED: Route(
        frozenset({"console", "callback_receiver"}), frozenset({"dispatcher"}), "attempt ids"
    ),
    Channel.ATTEMPT_SETTLED: Route(
        frozenset({"callback_receiver", "sweeper"}), frozenset({"cost_attributor"}), "attempt ids"
    ),
    Channel.COST_REQUESTED: Route(frozenset({"console"}), frozenset({"cost_attributor"}), "request ids"),
    Channel.COST_CHANGED: Route(frozenset({"cost_attributor"}), frozenset({"notifier"}), "task ids"),
    Channel.RESULT_RECOVERED: Route(frozenset({"sweeper"}), frozenset({"callback_receiver"}), "attempt ids"),
}

PAYLOAD_BYTES = 7_000
"""A note never carries more; what does not fit is sent as an empty payload, which means: look at everything."""
