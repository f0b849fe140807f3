"""The command tree. Modules that import much are loaded when one of their commands runs."""

from __future__ import annotations

import importlib

import click
from typing_extensions import override

# Name → module and attribute, with the help line, so that `--help` imports none of them.
COMMANDS = {
    "tasks": ("lockkeeper.tasks:tasks", "Submit tasks, look at them, act on them."),
    "agents": ("lockkeeper.agents:agents", "See and change agents and their limits."),
    "customers": ("lockkeeper.customers:customers", "See and set what customers may spend."),
    "costs": ("lockkeeper.costs:costs", "What was spent, why, and what is to come."),
    "prices": ("lockkeeper.prices:prices", "See and change prices; have history priced anew."),
    "tokens": ("lockkeeper.tokens:tokens", "Make, list and revoke the tokens of programs."),
    "branch": ("lockkeeper.branch:branch", "Copy the database for debugging, where nothing acts until adopted."),
    "top": ("lockkeeper.top:top", "Watch the queue live."),
    "migrate": ("lockkeeper.database:migrate", "Bring the database to this version's schema."),
    "doctor": ("lockkeeper.database:doctor", "Check database, schema, replicas and the invariants of the queue."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option("0.1.0", prog_name="lockkeeper")
def lockkeeper() -> None:
    """Run AI agents over queued tasks within their limits, and know what it cost.

    The API is found at LOCKKEEPER_URL, at a local stack that runs here, or at 127.0.0.1:8700.
    """
