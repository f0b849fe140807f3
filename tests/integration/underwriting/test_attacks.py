"""The underwriter's API under text that wants to be more, and its memory of who did what."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx

from shared.contract.underwriting import review_id
from tests.support import hostile
from tests.support.underwriting import BASE, Api, Underwriting

LOAN = {"user": "loan-desk", "applicant": "applicant-1", "amount": "1000.00", "purpose": "auto"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /runs": LOAN,
    "POST /runs/{run_id}/reviews/{review_id}/decision": {"decision": "approve", "note": "n", "reviewer": "reviewer-1"},
}


async def places_of(api: Api, **names: str) -> hostile.Places:
    document = (await api.http.get(f"{BASE}/openapi.json")).json()
    return hostile.Places(
        document, BASE, BODIES, dict.fromkeys(("run_id", "review_id", "decision_id"), str(uuid4())) | names
    )


async def test_no_text_becomes_a_statement_a_path_or_an_error(desk: Underwriting, api: Api) -> None:
    """G: every text field of the underwriter's OpenAPI, with a worker there and a run to be spoken to."""
    told: list[str] = []
    async with desk.worker():
        run = (await api.start()).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
        places = await places_of(api, run_id=run, review_id=str(review_id(UUID(run), 1)))
        assert places.with_bodies() == set(BODIES)
        for text in hostile.FEW:
            for verb, path, options in places.calls(text):
                answer = await api.http.request(verb, path, **options)
                if hostile.is_fault(answer.status_code, answer.text):
                    told.append(f"{verb} {path} {options}: {answer.status_code} {answer.text[:200]}")
    assert told == []


async def test_whoever_changes_something_is_named_in_the_record(desk: Underwriting, api: Api) -> None:
    """Every operation that changes something, counted in the OpenAPI document; a refused one as well."""
    acted = {
        "POST /runs": "SELECT user_name FROM agent_ops.agent_runs WHERE run_id = $1",
        "POST /runs/{run_id}/reviews/{review_id}/decision": (
            "SELECT string_agg(DISTINCT reviewer, ',') FROM agent_ops.agent_review_decisions WHERE run_id = $1"
        ),
        "POST /runs/{run_id}/cancel": "SELECT cancel_requested_by FROM agent_ops.agent_runs WHERE run_id = $1",
    }
    assert (await places_of(api)).that_change_something() == set(acted)
    async with desk.worker():
        run = (await api.start(user="person-1")).json()["run_id"]
        await desk.reaches(run, "awaiting_review")
        answers: list[httpx.Response] = [
            await api.decide(run, "approve", turn=2, reviewer="person-1"),
            await api.http.post(f"{BASE}/runs/{run}/cancel"),
        ]
        assert [answer.status_code for answer in answers] == [409, 202]
        await desk.reaches(run, "cancelled")
    for operation, query in acted.items():
        assert await desk.database.owner.fetchval(query, run) in {"person-1", "local"}, operation
