"""`./dev demo` from start to end: a stack, papers, the work, the table, the verdict."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
import httpx

from deploy.local import stack
from deploy.local.demo import Demo, Paper, summary
from deploy.local.demo_view import View
from deploy.local.expectations import expectation_of, from_description
from deploy.local.folder import StackFolder

READY_SECONDS = 180.0
NOT_NEEDED = frozenset({"temporal", "policy_sync", "underwriting_api", "underwriting_worker"})
"""Parts of the second application."""


class StackEndedError(Exception):
    """The stack ended while the demo waited for it."""


def tell(folder: StackFolder, port: int, documents: Path | None, *, as_json: bool) -> int:
    """Run the demo; 0 when every paper reached the end that it should."""
    started_here = folder.holder() is None
    if started_here:
        folder.make()
        status = stack.start_detached(folder, port, [], to_stderr=as_json)
        if status != 0:
            return status
    try:
        with tempfile.TemporaryDirectory(prefix="lockkeeper-demo-") as made:
            papers = _from_folder(documents) if documents else _generated(Path(made))
            if not papers:
                click.echo(f"dev: no PDF in {documents}", err=True)
                return 1
            return _run(folder, papers, as_json=as_json)
    except StackEndedError:
        click.echo("dev: the stack ended before the demo began; ./dev logs says why", err=True)
        return 1
    except httpx.HTTPError as error:
        click.echo(f"dev: the stack failed the demo: {error or type(error).__name__}", err=True)
        return 1
    finally:
        if started_here:
            stack.stop_running(folder)


def _run(folder: StackFolder, papers: list[Paper], *, as_json: bool) -> int:
    view = View(papers, quiet=as_json)
    url = _wait_until_ready(folder, view)
    began = time.monotonic()
    job = Demo(url, papers)
    with view:
        view.say(f"submitting {len(papers)} documents to {url}")
        for _ in job.submit():
            view.refresh()
        for _ in job.progress():
            view.refresh()
        seconds = time.monotonic() - began
        view.refresh()
        view.say("all have ended; waiting for the bill")
        for _ in job.costs():
            view.refresh()
    view.results()
    click.echo(summary(papers, seconds))
    return 1 if any(paper.trouble for paper in papers) else 0


def _wait_until_ready(folder: StackFolder, view: View) -> str:
    """The stack's address, once no part that we need is starting: traces need their server for costs."""
    deadline = time.monotonic() + READY_SECONDS
    told: set[str] = set()
    while True:
        if folder.holder() is None:
            raise StackEndedError
        running = folder.read_stack()
        if running is not None:
            missing = {part["name"] for part in running["parts"] if part["state"] not in {"ready", "done"}} - NOT_NEEDED
            if not missing or time.monotonic() > deadline:
                return str(running["url"])
            if missing != told:
                told = missing
                view.say(f"waiting for {', '.join(sorted(missing))}")
        time.sleep(0.2)


def _from_folder(documents: Path) -> list[Paper]:
    files = sorted(file for file in documents.iterdir() if file.suffix.lower() == ".pdf")
    return [Paper(file, expectation_of(file)) for file in files]


def _generated(folder: Path) -> list[Paper]:
    from deploy.local.documents import generate

    return [Paper(file, from_description(described)) for file, described in generate(folder)]
