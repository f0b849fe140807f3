"""Which proofs count: signatures of one attempt, tokens of the platform; and what a source may get wrong how often."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign_for
from tests.conftest import TestDatabase
from tests.support.openid import CLIENT, OpenIdProvider
from tests.support.receiver import KEYS, USAGE, Receiver, receiver, stage

BODY = json.dumps({"result": {"n": 1}, "usage": USAGE}).encode()


def scoped(attempt: Any, kind: str = "result", body: bytes = BODY) -> dict[str, str]:
    timestamp = str(int(time.time()))
    signature = sign_for(KEYS["first"].encode(), timestamp, str(attempt), kind, body)
    return {KEY_ID_HEADER: "first", TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: signature}


async def offer(made: Receiver, attempt: Any, headers: dict[str, str], kind: str = "result") -> httpx.Response:
    return await made.client.post(f"/callbacks/v1/attempts/{attempt}/{kind}", content=BODY, headers=headers)


async def test_w04_a_callback_that_was_read_on_its_way_ends_no_other_attempt(database: TestDatabase) -> None:
    async with receiver(database, scoped_only=True) as made, stage(database) as one, stage(database) as other:
        mine, theirs = await one.claim(), await other.claim()
        stolen = scoped(mine)
        assert (await offer(made, theirs, stolen)).status_code == 401
        assert (await offer(made, mine, stolen, "failure")).status_code == 401
        assert (await made.post(theirs, "result", {"result": {"n": 1}})).status_code == 401  # v1 covers no attempt
        assert (await offer(made, mine, stolen)).status_code == 200
        again = await offer(made, mine, stolen)
        assert again.status_code == 200
        statuses = await database.owner.fetch("SELECT id, status FROM lockkeeper.task_attempts")
        assert dict(statuses)[theirs] == "submitted"


@pytest.fixture
async def issuer() -> AsyncIterator[OpenIdProvider]:
    made = OpenIdProvider()
    made.person = {"sub": "agents-principal"}
    await made.open()
    yield made
    await made.close()


async def test_the_platforms_token_counts_for_the_agents_principal_alone(
    database: TestDatabase, issuer: OpenIdProvider
) -> None:
    told = {
        "token_jwks_url": f"{issuer.issuer}/keys", "token_issuer": issuer.issuer, "token_audience": CLIENT[0],
        "token_subjects": ["agents-principal"],
    }  # fmt: skip
    foreign = OpenIdProvider()
    async with receiver(database, **told) as made, stage(database) as one:
        attempt = await one.claim()
        wrong = {
            "another subject": issuer.token(sub="somebody"), "another audience": issuer.token(aud="app"),
            "another issuer": issuer.token(iss="https://evil.example"), "ended": issuer.token(exp=1),
            "no key of theirs": foreign.key and _signed_by(issuer, foreign), "no token": "x", "nothing": "",
            "none": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZ2VudHMtcHJpbmNpcGFsIn0.",
        }  # fmt: skip
        for case, token in wrong.items():
            answer = await offer(made, attempt, {"Authorization": f"Bearer {token}"})
            assert answer.status_code == 401, case
        assert (await offer(made, attempt, {})).status_code == 401
        assert (await offer(made, attempt, {"Authorization": f"Bearer {issuer.token()}"})).status_code == 200


def _signed_by(issuer: OpenIdProvider, foreign: OpenIdProvider) -> str:
    issuer.signs_with = foreign.key
    try:
        return issuer.token()
    finally:
        issuer.signs_with = None


async def test_a_source_that_guesses_is_turned_away_and_nobody_else(database: TestDatabase) -> None:
    async with receiver(database, refusals_per_minute=5) as made, stage(database) as one:
        attempt = await one.claim()
        evil = {"X-Forwarded-For": "203.0.113.9", SIGNATURE_HEADER: "v2=00", KEY_ID_HEADER: "first"}
        statuses = [(await offer(made, attempt, evil)).status_code for _ in range(8)]
        assert statuses[:5] == [401] * 5 and 429 in statuses
        spoofed = {**evil, "X-Forwarded-For": "198.51.100.1, 203.0.113.9"}
        assert (await offer(made, attempt, spoofed)).status_code == 429
        good = scoped(attempt) | {"X-Forwarded-For": "198.51.100.1"}
        assert (await offer(made, attempt, good)).status_code == 200
