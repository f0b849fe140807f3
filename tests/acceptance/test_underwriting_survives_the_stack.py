from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.folder import free_port
from shared.contract.underwriting_samples import SAMPLES
from tests.support.stack import NO_RUNS, StackProcess

PARTS = ("front_door", "underwriting_api", "underwriting_worker", "policy_sync", "temporal", "workspace", "setup")
API = "/api/v1/underwriting"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackProcess]:
    made = StackProcess(tmp_path / "stack", free_port(), *PARTS, **NO_RUNS)
    yield made
    made.destroy()


def reach(http: httpx.Client, run: str, fact: Callable[[dict[str, Any]], bool], seconds: float = 90) -> dict[str, Any]:
    """The run as the API shows it once the fact holds."""
    deadline = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = http.get(f"{API}/runs/{run}").json()
        if fact(found):
            return found
        assert time.monotonic() < deadline, f"{found.get('state')}, {found.get('condition')}"
        time.sleep(0.2)


def is_waiting(turn: int) -> Callable[[dict[str, Any]], bool]:
    return lambda run: run["state"] == "awaiting_review" and run["turn"] == turn


@pytest.mark.timeout(400)
def test_a_waiting_run_survives_a_stop_and_start_of_everything_and_sees_the_new_policy(stack: StackProcess) -> None:
    stack.start(150)
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.port}", timeout=30, trust_env=False) as http:
        sample = SAMPLES[0]
        body = {"applicant": sample.applicant, "amount": str(sample.amount), "purpose": sample.purpose}
        run = http.post(f"{API}/runs", json=body).json()["run_id"]
        waiting = reach(http, run, is_waiting(1))
        assert waiting["recommendation"]["recommendation"] == "refer"
        assert http.get("/underwriting").status_code == 200
        assert http.get(f"/underwriting/runs/{run}").status_code == 200
    stack.signal(signal.SIGINT)
    assert stack.ended(90) == 0

    policy = stack.folder / "underwriting_policy.yaml"
    policy.write_text(policy.read_text().replace('"2026-04"', '"2026-05"').replace("dti: 36", "dti: 40"))
    stack.start(150)
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.port}", timeout=30, trust_env=False) as http:
        same = reach(http, run, is_waiting(1))
        review = same["review"]["review_id"]
        assert review == waiting["review"]["review_id"]
        asked = {"decision": "request_more_info", "note": "Is it still so?", "reviewer": "reviewer-1"}
        answer = http.post(f"{API}/runs/{run}/reviews/{review}/decision", json=asked)
        assert answer.status_code == 202, answer.text
        second = reach(http, run, is_waiting(2))
        assert (second["policy"]["policy_version"], second["recommendation"]["recommendation"]) == (
            "2026-05",
            "approve",
        )
        stale = http.post(f"{API}/runs/{run}/reviews/{review}/decision", json={**asked, "decision": "approve"})
        assert (stale.status_code, stale.json()["reason"]) == (409, "stale_review")
        approve = {"decision": "approve", "reviewer": "reviewer-1"}
        http.post(f"{API}/runs/{run}/reviews/{second['review']['review_id']}/decision", json=approve)
        done = reach(http, run, lambda found: found["state"] == "completed")
        assert done["outcome"] == "approved"
        versions = [review["policy"]["policy_version"] for review in done["reviews"]]
        assert versions == ["2026-04", "2026-05"]
