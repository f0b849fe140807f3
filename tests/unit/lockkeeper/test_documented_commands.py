"""The command lines that the documents show are ones that the command knows."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from lockkeeper.cli import lockkeeper
from tests.support.statements import ROOT

_SHOWN = re.compile(r"(?:^(?:\.venv/bin/)?|`)lockkeeper ([a-z][^`#\n]*)", re.MULTILINE)
_NO_ARGUMENT = "…|[]"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINES = [
    pytest.param(line.strip(), id=f"{path.stem}: {line.strip()}")
    for path in DOCUMENTS
    for line in dict.fromkeys(_SHOWN.findall(path.read_text(encoding="utf-8")))
]


def _leaf(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that these words lead to, and the words that are left for it."""
    command: click.Command = lockkeeper
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no such command: {words[0]}"
        command, context, words = found, click.Context(found, context, words[0]), words[1:]
    return command, context, words


@pytest.mark.parametrize("line", LINES)
def test_a_shown_command_line_is_one_that_the_command_takes(line: str) -> None:
    words = [word.strip(_NO_ARGUMENT) for word in shlex.split(line)]
    command, context, rest = _leaf([word for word in words if word])
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    given = {word for word in rest if word.startswith("--")}
    assert given <= {name for option in options for name in (*option.opts, *option.secondary_opts)}
    # Where a document only mentions a command, it gives no option at all.
    assert not given or all(given.intersection(option.opts) for option in options if option.required)


def test_documents_show_commands() -> None:
    assert len(LINES) > 20
