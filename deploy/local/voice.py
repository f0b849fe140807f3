"""What the stack says to the person in front of it: plain lines, or a live table on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from deploy.local.supervisor import Running


class Voice:
    """Says what happens while it happens, with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._live: Live | None = None
        self._terminal = sys.stdout.isatty()

    @property
    def seconds(self) -> float:
        """Since the stack began to start."""
        return time.monotonic() - self.started

    def say(self, line: str) -> None:
        """One line."""
        text = f"{self.seconds:6.1f} s  {line}"
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            click.echo(text)

    def console_serves(self, address: str, parts: Iterable[Running]) -> None:
        """The moment a person has waited for."""
        self.say(f"the console serves: {address}")
        if self._terminal:
            from rich.live import Live

            self._live = Live(_table(parts), auto_refresh=False)
            self._live.start(refresh=True)
        else:
            for part in parts:
                self.say(f"  {part.part.name:<18} {part.state:<9} {part.url or ''}")

    def moved(self, parts: Iterable[Running]) -> None:
        """Some part changed its state."""
        if self._live is not None:
            self._live.update(_table(parts), refresh=True)

    def all_ready(self) -> None:
        """Nothing is starting any more; the table stays as it is."""
        self.say("everything is ready; Ctrl-C stops the stack")
        self.quiet()

    def quiet(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _table(parts: Iterable[Running]) -> Table:
    from rich.table import Table

    colours = {"ready": "green", "done": "green", "starting": "yellow", "waiting": "dim", "failed": "red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "state", "address", "pid"):
        table.add_column(heading)
    for running in parts:
        state = f"[{colours.get(running.state, 'white')}]{running.state}[/]"
        pid = str(running.process.pid) if running.process else ""
        table.add_row(running.part.name, state, running.url or "", pid)
    return table
