from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from deploy.local.folder import PortTakenError, StackFolder, StackRunningError


@pytest.fixture
def folder(tmp_path: Path) -> StackFolder:
    folder = StackFolder(tmp_path / "stack")
    folder.make()
    return folder


def test_ports_stay_what_they_were(folder: StackFolder) -> None:
    first = folder.ports(["a", "b"], {})
    assert len(set(first.values())) == 2
    assert StackFolder(folder.path).ports(["b", "a", "c"], {}).items() >= first.items()


def test_a_port_that_somebody_took_meanwhile_is_replaced(folder: StackFolder) -> None:
    before = folder.ports(["a"], {})["a"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", before))
        other.listen()
        assert folder.ports(["a"], {})["a"] != before


def test_a_fixed_port_is_taken_or_refused_but_never_replaced(folder: StackFolder) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(taken)):
            folder.ports([], {"door": taken})
    assert folder.ports([], {"door": taken}) == {"door": taken}


def test_a_secret_is_made_once_and_kept_private(folder: StackFolder) -> None:
    first = folder.secret("owner")
    assert len(first) >= 32
    assert StackFolder(folder.path).secret("owner") == first
    assert folder.secret("other") != first
    assert (folder.path / "secrets.json").stat().st_mode & 0o077 == 0


def test_one_stack_holds_the_folder(folder: StackFolder) -> None:
    assert folder.holder() is None
    folder.lock()
    other = StackFolder(folder.path)
    assert other.holder() == os.getpid()
    with pytest.raises(StackRunningError) as refused:
        other.lock()
    assert refused.value.pid == os.getpid()


def test_what_a_dead_stack_wrote_does_not_count(folder: StackFolder) -> None:
    folder.stack_file.write_text(json.dumps({"url": "http://gone"}))
    assert folder.read_stack() is None
    folder.lock()
    assert StackFolder(folder.path).read_stack() is None
