"""`lockkeeper tasks`: submit, look, act."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from lockkeeper import show
from lockkeeper.api import Api, Json, given
from lockkeeper.failure import CommandError
from lockkeeper.options import filters as filter_options
from lockkeeper.options import json_option, with_api

STATUSES = ("enqueued", "processing", "completed", "failed", "cancelled")
TERMINAL = {"completed", "failed", "cancelled"}
POLL_SECONDS = 0.5
RULES = ["all_completed", "any_completed", "all_ended"]
ACTIONS = ["cancel", "retry", "reprocess", "reprioritise"]


@click.group()
def tasks() -> None:
    """Submit tasks, look at them, act on them."""


@tasks.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--agent", required=True, help="The agent that does the work.")
@click.option("--document", "documents", multiple=True, metavar="ID", help="A document that is already uploaded.")
@click.option("--input", "input_text", metavar="JSON", help="Input of a task without a document.")
@click.option("--customer", help="Who pays for it.")
@click.option("--priority", type=click.IntRange(0, 100), help="Higher goes first; 50 when not given.")
@click.option("--idempotency-key", help="Submitting the same again under this key makes no second task.")
@click.option("--available-at", metavar="WHEN", help="Not before this instant (ISO 8601).")
@click.option("--max-attempts", type=click.IntRange(1), help="Attempts before it fails for good.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label to find it by.")
@click.option("--gather", type=click.Choice(RULES), help="Make them children of one parent, which ends by this rule.")
@click.option("--wait", "wait", is_flag=True, help="Wait for the end; fails unless every task completed.")
@json_option
@with_api
def submit(
    api: Api, files: tuple[Path, ...], documents: tuple[str, ...], input_text: str | None, labels: tuple[str, ...],
    *, gather: str | None, wait: bool, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Submit one task per PDF in FILES, per --document, or one with --input.

    With --gather they are the children of one parent, which is what the command shows and waits for.
    """
    inputs: list[Json] = [{"document_id": document} for document in documents]
    refused: list[Json] = []
    if files:
        answer = api.upload(files, settings["customer"])
        refused = answer.get("refused", [])
        inputs += [{"document_id": document["id"]} for document in answer.get("documents", [])]
    if input_text is not None:
        inputs.append({"input": _parsed(input_text)})
    if not inputs and not refused:
        raise CommandError("nothing to submit: give PDF files, --document or --input", 2)
    common = given(settings) | ({"labels": _labels(labels)} if labels else {})
    if gather is not None:
        inputs = [_family(gather, common, inputs)]
        common = {}
    if settings["idempotency_key"] and len(inputs) > 1:
        raise CommandError("an idempotency key names one task, and these are several", 2)
    made = [api.post("/tasks", {**common, **each}) for each in inputs]
    if wait:
        made = wait_for_end(api, [task["id"] for task in made])
    if as_json:
        show.as_json({"tasks": made, "refused": refused})
    else:
        _table(made)
        for each in refused:
            click.echo(f"refused: {each.get('name')}: {show.error_of({'error': each}) or each}", err=True)
    if refused or (wait and any(task["status"] != "completed" for task in made)):
        sys.exit(1)


def _family(gather: str, common: Json, inputs: list[Json]) -> Json:
    """The body of a parent with these children; the key is the parent's, the time is the children's."""
    of_parent = {name: value for name, value in common.items() if name != "available_at"}
    of_children = {name: value for name, value in common.items() if name != "idempotency_key"}
    return {**of_parent, "gather": gather, "children": [{**of_children, **each} for each in inputs]}


def wait_for_end(api: Api, ids: list[str]) -> list[Json]:
    """The tasks once each of them has ended."""
    ended: dict[str, Json] = {}
    while True:
        for task_id in ids:
            if task_id not in ended:
                task = api.get(f"/tasks/{task_id}")
                if task["status"] in TERMINAL:
                    ended[task_id] = task
        if len(ended) == len(set(ids)):
            return [ended[task_id] for task_id in ids]
        time.sleep(POLL_SECONDS)


@tasks.command("list")
@filter_options
@click.option("--limit", default=50, show_default=True, help="At most so many, newest first.")
@json_option
@with_api
def list_(api: Api, filters: dict[str, str | None], limit: int, *, as_json: bool) -> None:
    """List tasks, newest first."""
    found = list(api.pages("/tasks", filters, "tasks", limit))
    if as_json:
        show.as_json({"tasks": found})
    else:
        _table(found)


@tasks.command()
@filter_options
@json_option
@with_api
def failed(api: Api, filters: dict[str, str | None], *, as_json: bool) -> None:
    """Say what failed and was not tried again, by agent and reason; `bulk retry --reason …` redrives it."""
    letters = api.get("/dead-letters", given(filters))["dead_letters"]
    if as_json:
        show.as_json({"dead_letters": letters})
        return
    columns = ("tasks", "agent", "reason", "first_at", "last_at", "example_task_id", "message")
    show.table(list(columns), [[each[name] for name in columns] for each in letters])


@tasks.command("show")
@click.argument("task_id")
@json_option
@with_api
def show_(api: Api, task_id: str, *, as_json: bool) -> None:
    """Show one task: where it stands, why, its attempts, cost and result."""
    task = api.get(f"/tasks/{task_id}")
    if as_json:
        show.as_json(task)
        return
    waiting = task.get("waiting") or {}
    cost = task.get("cost") or {}
    show.fields(
        [
            ("task", task["id"]),
            ("status", task["status"]),
            ("reason", show.error_of(task)),
            ("waits for", waiting.get("reason")),
            ("place", waiting.get("place")),
            ("estimated start", waiting.get("estimated_start")),
            ("agent", task.get("agent")),
            ("document", (task.get("document") or {}).get("name") or task.get("document_name")),
            ("customer", task.get("customer")),
            ("priority", task.get("priority")),
            ("attempt", f"{task.get('attempt')} of {task.get('max_attempts')}"),
            ("children", _children(task.get("family"))),
            ("created", task.get("created_at")),
            ("started", task.get("started_at")),
            ("finished", task.get("finished_at")),
            ("confidence", task.get("confidence")),
            ("LLM cost", show.money(cost.get("llm_cost"), cost.get("currency"))),
            ("compute cost", show.money(cost.get("compute_cost"), cost.get("currency"))),
        ]
    )
    if task.get("attempts"):
        click.echo()
        columns = ("attempt", "status", "run_id", "submitted_at", "finished_at")
        rows = [[*(row.get(name) for name in columns), show.error_of(row)] for row in task["attempts"]]
        show.table([*columns, "reason"], rows)
    if task.get("result") is not None:
        click.echo()
        show.as_json(task["result"])


def _verb(name: str, sentence: str) -> None:
    @tasks.command(name, help=sentence)
    @click.argument("task_ids", nargs=-1, required=True)
    @json_option
    @with_api
    def act(api: Api, task_ids: tuple[str, ...], *, as_json: bool) -> None:
        changed = [api.post(f"/tasks/{task_id}/{name}") for task_id in task_ids]
        if as_json:
            show.as_json({"tasks": changed})
        else:
            _table(changed)


_verb("cancel", "Cancel tasks; their runs are cancelled too.")
_verb("retry", "Try failed or cancelled tasks again.")
_verb("reprocess", "Do ended tasks anew, as new tasks.")


@tasks.command()
@click.argument("action", type=click.Choice(ACTIONS))
@filter_options
@click.option("--all", "every", is_flag=True, help="Mean every task; without any filter this is needed.")
@click.option("--reason", "reasons", multiple=True, help="Only tasks that failed for this reason.")
@click.option("--priority", type=click.IntRange(0, 100), help="The new priority, for reprioritise.")
@click.option("--yes", is_flag=True, help="Do it. Without this the command only says how many tasks match.")
@json_option
@with_api
def bulk(
    api: Api, action: str, filters: dict[str, str | None], reasons: tuple[str, ...], priority: int | None,
    *, every: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Act on every task that the filter matches; a dry run unless --yes is given."""
    chosen = given(filters) | ({"reason": list(reasons)} if reasons else {})
    if bool(chosen) == every:
        raise CommandError("say which tasks: by filters, or --all", 2)
    body: Json = {"action": action, "filter": chosen or {"all": "true"}, "dry_run": not yes}
    if priority is not None:
        body["priority"] = priority
    answer = api.post("/tasks/bulk", body)
    if as_json:
        show.as_json(answer)
    elif yes:
        click.echo(f"{action}: {answer['changed']} of {answer['matched']} matching tasks changed")
    else:
        click.echo(f"{action} would change {answer['matched']} tasks; --yes does it")


def _table(found: list[Json]) -> None:
    show.table(
        ["id", "status", "agent", "customer", "priority", "attempt", "created", "confidence", "reason"],
        [
            [
                *(task.get(name) for name in ("id", "status", "agent", "customer", "priority", "attempt")),
                task.get("created_at"), task.get("confidence"), show.error_of(task),
            ]
            for task in found
        ],
    )  # fmt: skip


def _children(family: Json | None) -> str | None:
    if family is None:
        return None
    ends = ", ".join(f"{family[name]} {name}" for name in STATUSES if family[name])
    return f"{family['children']} ({ends or 'none'}), rule {family['gather']}"


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f"--input is not JSON: {error}", 2) from None


def _labels(labels: tuple[str, ...]) -> dict[str, str]:
    pairs = [label.partition("=") for label in labels]
    if bad := [name for name, equals, _ in pairs if not (name and equals)]:
        raise CommandError(f"a label is NAME=VALUE, and {bad[0]!r} is not", 2)
    return {name: value for name, _, value in pairs}
