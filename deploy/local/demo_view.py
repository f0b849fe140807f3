"""How the demo looks: a live table on a terminal, plain lines elsewhere, and the table of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.local.demo import Paper, amount

COLOURS = {"completed": "green", "failed": "red", "refused": "magenta", "processing": "yellow"}
HEADINGS = (
    "document", "status", "attempts", "pages", "confidence", "tokens", "LLM cost", "compute cost", "seconds",
)  # fmt: skip
WIDE = 160


class View:
    """Shows the papers while they are on their way."""

    def __init__(self, papers: Sequence[Paper], *, quiet: bool) -> None:
        self._papers = papers
        self._quiet = quiet
        self._told: dict[str, str] = {}
        self._live = Live(auto_refresh=False) if sys.stdout.isatty() and not quiet else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()

    def say(self, line: str) -> None:
        """One line."""
        if not self._quiet:
            click.echo(line) if self._live is None else self._live.console.print(line, highlight=False)

    def refresh(self) -> None:
        """Show what has changed."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(self._progress(), refresh=True)
            return
        for paper in self._papers:
            state = _state(paper)
            if self._told.get(paper.file.name) != state and paper.end != "waiting":
                self._told[paper.file.name] = state
                click.echo(f"  {paper.file.name}: {state}")

    def results(self) -> None:
        """The table at the end."""
        if self._quiet:
            return
        table = Table(*HEADINGS, box=None, pad_edge=False)
        for paper in self._papers:
            table.add_row(*_result(paper))
        # Off a terminal nobody folds lines at eighty columns.
        Console(width=None if sys.stdout.isatty() else WIDE).print(table)
        for paper in self._papers:
            if paper.trouble:
                click.echo(f"UNEXPECTED {paper.file.name}: {paper.trouble}")

    def _progress(self) -> Table:
        table = Table("document", "status", "", box=None, pad_edge=False)
        for paper in self._papers:
            table.add_row(_name(paper), Text(paper.end, COLOURS.get(paper.end, "")), _bar(paper))
        return table


def _state(paper: Paper) -> str:
    return f"{paper.end} ({paper.reason})" if paper.reason else paper.end


def _bar(paper: Paper) -> str:
    progress = (paper.task or {}).get("progress") or {}
    done, total = progress.get("pages_done"), progress.get("pages_total")
    if paper.end != "processing" or not total:
        return paper.reason or ""
    filled = round(20 * (done or 0) / total)
    return f"{'█' * filled}{'·' * (20 - filled)} {done or 0}/{total} {progress.get('step') or ''}"


def _name(paper: Paper) -> Text:
    return Text(paper.file.name, no_wrap=True, overflow="ellipsis")


def _result(paper: Paper) -> list[Text | str]:
    task = paper.task or {}
    confidence = task.get("confidence")
    counts = [task.get(f"{kind}_tokens") for kind in ("input", "output", "cache_read", "cache_write")]
    tokens = sum(count for count in counts if count is not None) if any(c is not None for c in counts) else None
    return [
        _name(paper),
        Text(_state(paper), COLOURS.get(paper.end, "")),
        str(task.get("attempt", "")),
        _shown((task.get("document") or {}).get("pages")),
        _shown(None if confidence is None else f"{confidence:.2f}"),
        _shown(tokens),
        _cost(paper, "llm_cost"),
        _cost(paper, "compute_cost"),
        _shown(None if paper.seconds is None else f"{paper.seconds:.1f}"),
    ]


def _cost(paper: Paper, kind: str) -> str:
    if paper.task is None:
        return "-"
    known = amount(paper.task, kind)
    return str(paper.task.get(kind) or "pending") if known is None else f"{known:.6f} {paper.task.get('currency', '')}"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
