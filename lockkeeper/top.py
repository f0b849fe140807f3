"""`lockkeeper top`: the overview for people on a shell, drawn anew every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockkeeper import show
from lockkeeper.api import Api, Json
from lockkeeper.failure import CommandError
from lockkeeper.options import filters as filter_options
from lockkeeper.options import json_option, with_api

_STYLES = {"enqueued": "", "processing": "blue", "completed": "green", "failed": "red", "cancelled": "yellow"}
_WORDS = {"enqueued": "waiting", "processing": "running"}


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.5), default=2, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Draw once and end.")
@filter_options
@json_option
@with_api
def top(api: Api, filters: dict[str, str | None], *, interval: float, once: bool, as_json: bool) -> None:
    """Watch the queue: totals, agents with their limits, replicas, and the newest tasks. Ctrl-C ends it."""
    if as_json:
        show.as_json(dict(zip(("summary", "agents", "state", "tasks"), look(api, filters), strict=True)))
        return
    if once:
        Console().print(frame(*look(api, filters)))
        return
    shown: RenderableType = Text("Looking …")
    seen_at = time.monotonic()
    with Live(shown, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = frame(*look(api, filters))
                seen_at = time.monotonic()
                live.update(shown, refresh=True)
            except CommandError as error:
                age = f"{error}; what stands here is {time.monotonic() - seen_at:.0f} s old"
                live.update(Group(Text(age, style="bold red"), shown), refresh=True)
            except KeyboardInterrupt:
                return
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def look(api: Api, filters: dict[str, str | None]) -> tuple[Json, Json, Json, Json]:
    """Totals, agents, replicas and the newest tasks, as they are now."""
    return (
        api.get("/summary", filters),
        api.get("/agents"),
        api.get("/state"),
        api.get("/tasks", {**filters, "limit": 15}),
    )


def frame(summary: Json, agents: Json, state: Json, tasks: Json) -> Group:
    """One picture."""
    return Group(
        _totals(summary, state), Text(), _agents(agents["agents"]), Text(), _tasks(tasks["tasks"]),
    )  # fmt: skip


def _totals(summary: Json, state: Json) -> Text:
    line = Text("Lockkeeper  ", style="bold")
    for status, number in summary["counts"].items():
        line.append(f"{number:,} {_WORDS.get(status, status)}  ", style=_STYLES[status])
    median, p95 = summary["median_response_seconds"], summary["p95_response_seconds"]
    line.append(f"\nresponse {_seconds(median)} median, {_seconds(p95)} p95   ")
    line.append(f"tokens {summary['input_tokens']:,} in, {summary['output_tokens']:,} out   ")
    line.append(f"cost {summary['llm_cost']} LLM, {summary['compute_cost']} compute {summary['currency']}\n")
    for service in state["services"]:
        hears = f" {service['listener']}" if service["listener"] else ""
        line.append(f"{service['service']} {service['alive']}{hears}  ", style="" if service["alive"] else "bold red")
    return line


def _agents(agents: Sequence[Json]) -> Table:
    table = Table("agent", box=None, pad_edge=False, header_style="dim")
    for name in ("running", "tokens/min", "waiting", "oldest"):
        table.add_column(name, justify="right")
    for agent in agents:
        now = agent["state"]
        used = now["reserved_tpm"] + now["used_tpm"]
        table.add_row(
            f"{agent['name']}{' (paused)' if agent['paused'] else ''}",
            _of(now["running"], agent["max_concurrent_tasks"]),
            _of(used, agent["max_tpm"]), f"{now['waiting']:,}", _seconds(now["oldest_waiting_seconds"]),
            style="yellow" if agent["paused"] else "",
        )  # fmt: skip
    return table


def _tasks(tasks: Sequence[Json]) -> Table:
    table = Table("document", "agent", "status", box=None, pad_edge=False, header_style="dim")
    for name in ("attempt", "tokens", "LLM", "confidence"):
        table.add_column(name, justify="right")
    for task in tasks:
        name = task["document"]["name"] if task["document"] else task["id"]
        known = [task[each] for each in ("input_tokens", "output_tokens") if task[each] is not None]
        table.add_row(
            Text(name[:44]), task["agent"], Text(_status(task), style=_STYLES[task["status"]]),
            f"{task['attempt']}/{task['max_attempts']}", f"{sum(known):,}" if known else "–", task["llm_cost"],
            "–" if task["confidence"] is None else f"{task['confidence']:.0%}",
        )  # fmt: skip
    return table


def _status(task: Json) -> str:
    word = str(_WORDS.get(task["status"], task["status"]))
    done, total = task["progress"]["pages_done"], task["progress"]["pages_total"]
    if task["status"] == "processing" and total:
        return f"{word}, page {done or 0} of {total}"
    why = task["reason"] if task["status"] in {"enqueued", "failed"} else None
    return f"{word}: {why.replace('_', ' ')}" if why else word


def _of(used: int, cap: int | None) -> str:
    return f"{used:,}" if cap is None else f"{used:,} of {cap:,}"


def _seconds(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"
