"""The long proofs in their short form: half a minute of load, and one turn of the attack. `./dev soak NAME` is the long one."""

from __future__ import annotations

import pytest

from tests.soak import attack, credentials

# The generator of hostile calls leaves sockets of refused connections to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)


@pytest.mark.timeout(900)
def test_passwords_of_seconds_restarts_and_fail_overs_are_noticed_by_nobody() -> None:
    report = credentials.run(0.5)
    assert report["faults"] == []
    assert report["seen"]["restarts"] and report["seen"]["fail-overs"]
    assert report["oldest_session_seconds"] <= report["session_life_seconds"]
    assert report["credential_calls_failed"] > 0


@pytest.mark.timeout(600)
def test_nothing_that_the_openapi_allows_or_forbids_breaks_or_tells_anything() -> None:
    report = attack.run(0)
    assert report["faults"] == []
    assert report["operations"] == report["of_operations"] > 40
