from __future__ import annotations

import re
import subprocess
import sys

import pytest

from shared.contract.channels import Channel
from shared.contract.ownership import ROLES
from tests.support.statements import ROOT

PYTHON = sorted(
    path
    for folder in ("shared", "services", "deploy", "lockkeeper", "tests", "examples", "bench")
    for path in (ROOT / folder).rglob("*.py")
)
SERVICES = sorted(path.name for path in (ROOT / "services").iterdir() if (path / "__init__.py").exists())


def test_imports_follow_the_map() -> None:
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(linter, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_outgrows_its_room(path: object) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")  # type: ignore[attr-defined]
    assert lines <= 400, "split it into a folder of the same name"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_card_and_a_role(service: str) -> None:
    card = (ROOT / "services" / service / "__init__.py").read_text(encoding="utf-8")
    assert card.startswith('"""')
    assert "If down" in card
    assert service in ROLES


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_stands_in_the_map(service: str) -> None:
    assert service in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_channel_names_stand_only_in_the_contract() -> None:
    for path in PYTHON:
        if path.name == "channels.py" or "tests" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for channel in Channel:
            assert f'"{channel.value}"' not in text, f"{path.relative_to(ROOT)} names {channel.value}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "helpers", "common", "base", "misc"}
    assert not [path for path in PYTHON if path.stem in empty]
    for path in PYTHON:
        assert not re.search(r"^class \w*Manager\b", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_the_lock_file_holds_no_addresses() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        assert "--hash=sha256:" in text
