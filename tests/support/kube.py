"""The tools of the deploy tier: found on this machine or in the kit of a one-node cluster, else skipped."""

from __future__ import annotations

import importlib
import lzma
import os
import shutil
import sys
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from tests.support.statements import ROOT

KIT = Path(os.environ.get("LOCKKEEPER_KUBE_KIT", str(ROOT.parent / "shared" / "kube")))


def tool(name: str, folder: Path) -> str:
    """The path of a program; from the kit it is unpacked into `folder`. Skips the test where there is none."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    if found:
        return found
    packed = KIT / "bin" / f"{name}.xz"
    if not packed.is_file():
        pytest.skip(f"{name} is neither on the PATH nor in LOCKKEEPER_KUBE_KIT")
    program = folder / name
    if not program.exists():
        program.write_bytes(lzma.decompress(packed.read_bytes()))
        program.chmod(0o755)
    return str(program)


def settings_of(service: str) -> type[BaseSettings]:
    """The settings class of a service."""
    module = importlib.import_module(f"services.{service}.settings")
    (own,) = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, BaseSettings) and each.__module__ == module.__name__
    ]
    return own
