"""`lockkeeper agents`: limits and targets, live."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import yaml

from lockkeeper import show
from lockkeeper.api import Api, Json
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option, with_api

COLUMNS = ("name", "target", "max_concurrent_tasks", "max_tpm", "lease_seconds", "max_attempts", "paused", "version")
FOUND_ONLY = frozenset({
    "name", "created_at", "updated_at", "updated_by", "cooldown_until", "paused", "state", "circuit", "budget",
    "estimates",
})  # fmt: skip
"""What the API tells about an agent and does not take back."""


@click.group()
def agents() -> None:
    """See and change agents and their limits. Changes hold from the next claim on."""


@agents.command("list")
@json_option
@with_api
def list_(api: Api, *, as_json: bool) -> None:
    """List the agents with their limits."""
    found = api.get("/agents")["agents"]
    if as_json:
        show.as_json({"agents": found})
    else:
        show.table(COLUMNS, [[agent.get(name) for name in COLUMNS] for agent in found])


@agents.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@with_api
def apply_(api: Api, file: Path, *, as_json: bool) -> None:
    """Make the agents of a YAML FILE (`agents: {NAME: {target: …}}`) what the file says; others stay."""
    wanted = read_agents(file)
    known = {agent["name"]: agent for agent in api.get("/agents")["agents"]}
    changed = []
    for name, settings in wanted.items():
        now = known.get(name, {})
        if any(_differs(now.get(key), value) for key, value in settings.items()):
            changed.append(_put(api, name, now, settings))
    if as_json:
        show.as_json({"agents": changed})
    else:
        click.echo(f"{len(changed)} of {len(wanted)} agents changed")


def _differs(now: object, wanted: object) -> bool:
    """Whether a setting is another one; the API says amounts of money as text."""
    if isinstance(now, str) and isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return Decimal(now) != Decimal(str(wanted))
    return now != wanted


def read_agents(file: Path) -> dict[str, Json]:
    """The agents of a YAML file by name. Raises CommandError for a file that is none."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is not YAML: {error}", 2) from None
    found = content.get("agents") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(settings, dict) for settings in found.values()):
        raise CommandError(f"{file} has no `agents:` with one mapping per name", 2)
    return found


@agents.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE…")
@json_option
@with_api
def set_(api: Api, name: str, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Change settings of one agent, for example `max_concurrent_tasks=5 max_tpm=null`."""
    changes: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise CommandError(f"a setting is NAME=VALUE, and {setting!r} is not", 2)
        changes[key] = yaml.safe_load(value)
    now = next((agent for agent in api.get("/agents")["agents"] if agent["name"] == name), None)
    if now is None:
        raise CommandError(f"no agent is named {name}")
    _tell(_put(api, name, now, changes), as_json=as_json)


def _put(api: Api, name: str, now: Json, changes: Json) -> Json:
    """Write an agent under the version that was read, so that nobody else's change is lost."""
    kept = {key: value for key, value in now.items() if key not in FOUND_ONLY}
    answer: Json = api.call("PUT", f"/agents/{name}", json={**kept, **changes}).json()
    return answer


def _switch(verb: str, sentence: str) -> None:
    @agents.command(verb, help=sentence)
    @click.argument("name")
    @json_option
    @with_api
    def act(api: Api, name: str, *, as_json: bool) -> None:
        _tell(api.post(f"/agents/{name}/{verb}"), as_json=as_json)


_switch("pause", "Stop claiming an agent's tasks; what runs goes on.")
_switch("resume", "Claim an agent's tasks again.")


def _tell(agent: Json, *, as_json: bool) -> None:
    if as_json:
        show.as_json(agent)
    else:
        show.table(COLUMNS, [[agent.get(column) for column in COLUMNS]])
