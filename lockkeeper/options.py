"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from typing import Any

import click

from lockkeeper.address import api_url
from lockkeeper.api import Api

Command = Callable[..., Any]

STATUSES = ["enqueued", "processing", "completed", "failed", "cancelled"]

json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def filters(command: Command) -> Command:
    """The filters of lists, sums and bulk actions, collected into one argument `filters`."""

    @click.option("--status", type=click.Choice(STATUSES), help="Only tasks in this status.")
    @click.option("--agent", help="Only this agent's tasks.")
    @click.option("--customer", help="Only this customer's tasks.")
    @click.option("--from", "from_", metavar="WHEN", help="Enqueued at or after this instant (ISO 8601).")
    @click.option("--to", "to", metavar="WHEN", help="Enqueued before this instant (ISO 8601).")
    @click.option("--tz", metavar="ZONE", help="The zone of instants that name none, for example Europe/Berlin.")
    @functools.wraps(command)
    def wrapped(
        *args: Any, status: str | None, agent: str | None, customer: str | None, from_: str | None, to: str | None,
        tz: str | None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        chosen = {"status": status, "agent": agent, "customer": customer, "from": from_, "to": to, "tz": tz}
        return command(*args, filters=chosen, **kwargs)

    return wrapped


def with_api(command: Command) -> Command:
    """Give the command a connected `api`; `--url` overrides where it is."""

    @click.option("--url", metavar="URL", help="Address of the API (default: LOCKKEEPER_URL, or the local stack).")
    @functools.wraps(command)
    def wrapped(*args: Any, url: str | None, **kwargs: Any) -> Any:
        with closing(Api(url or api_url())) as api:
            return command(*args, api=api, **kwargs)

    return wrapped
