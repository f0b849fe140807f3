"""Who is believed, by which way in, and what each may do: through the console's real app, over the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet

from lockkeeper.cli import lockkeeper
from shared.contract.errors import MisconfiguredError
from shared.identity.settings import IdentitySettings
from tests.conftest import TestDatabase
from tests.integration.console.conftest import API, Console, serve
from tests.support.openid import CLIENT, OpenIdProvider

FORWARDED: dict[str, Any] = {
    "mode": "forwarded", "trusted_proxies": ["127.0.0.0/8"],
    "roles": {"olga": ["operator"], "adam": ["admin"], "group:underwriters": ["reviewer"]},
}  # fmt: skip
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def provider() -> AsyncIterator[OpenIdProvider]:
    made = OpenIdProvider()
    await made.open()
    yield made
    await made.close()


def oidc(provider: OpenIdProvider, **more: Any) -> dict[str, Any]:
    return {
        "mode": "oidc", "issuer": provider.issuer, "client_id": CLIENT[0], "client_secret": CLIENT[1],
        "public_url": "http://127.0.0.1", "session_keys": [Fernet.generate_key().decode()],
        "roles": {"ada@example.com": ["operator"]}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("person", "read", "operate", "administer"),
    [("victor", 200, 403, 403), ("olga", 200, 404, 403), ("adam", 200, 404, 201), (None, 401, 401, 401)],
)
async def test_each_role_may_do_its_part(
    database: TestDatabase, tmp_path: Path, person: str | None, read: int, operate: int, administer: int
) -> None:
    headers = {} if person is None else {"X-Forwarded-User": person}
    async with serve(database, tmp_path, identity=FORWARDED) as console:
        assert (await console.http.get(f"{API}/tasks", headers=headers)).status_code == read
        assert (await console.http.post(f"{API}/agents/none/pause", headers=headers)).status_code == operate
        answer = await console.http.put(f"{API}/agents/a", json={"target": "t"}, headers=headers)
        assert answer.status_code == administer
        if person is not None:
            me = (await console.http.get(f"{API}/me", headers=headers)).json()
            assert me["name"] == person and me["by"] == "forwarded"


async def test_every_call_that_changes_something_needs_more_than_reading(
    database: TestDatabase, tmp_path: Path
) -> None:
    async with serve(database, tmp_path, identity=FORWARDED) as console:
        viewer = {"X-Forwarded-User": "victor"}
        document = (await console.http.get(f"{API}/openapi.json", headers=viewer)).json()
        nobody = "01900000-0000-7000-8000-000000000000"
        unsafe = [
            (verb, path) for path, item in document["paths"].items() for verb in item if verb not in {"get", "head"}
        ]
        assert len(unsafe) >= 9
        for verb, path in unsafe:
            filled = path.replace("{name}", "a").replace("{task_id}", nobody).replace("{model}", "m")
            answer = await console.http.request(verb.upper(), filled, json={}, headers=viewer)
            assert answer.status_code == 403, (verb, path)


async def test_a_forwarded_name_counts_only_from_a_trusted_proxy(database: TestDatabase, tmp_path: Path) -> None:
    elsewhere = {**FORWARDED, "trusted_proxies": ["10.0.0.0/8"]}
    async with serve(database, tmp_path, identity=elsewhere) as console:
        for headers in ({"X-Forwarded-User": "adam"}, {"X-Forwarded-User": "adam", "X-Forwarded-For": "10.0.0.1"}):
            assert (await console.http.get(f"{API}/tasks", headers=headers)).status_code == 401


async def test_local_mode_is_for_this_machine_by_its_own_name(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(database, tmp_path) as console:
        assert (await console.http.get(f"{API}/me")).json()["is_proved"] is False
        rebound = await console.http.get(f"{API}/tasks", headers={"Host": "evil.example"})
        assert rebound.status_code == 401
    with pytest.raises(MisconfiguredError, match="for this machine only"):
        IdentitySettings.load("0.0.0.0")  # noqa: S104 - what is refused
    monkeypatch.setenv("LOCKKEEPER_IDENTITY_MODE", "forwarded")
    with pytest.raises(MisconfiguredError, match="TRUSTED_PROXIES"):
        IdentitySettings.load("0.0.0.0")  # noqa: S104 - the same
    monkeypatch.setenv("LOCKKEEPER_IDENTITY_MOOD", "x")
    with pytest.raises(MisconfiguredError, match="unknown setting LOCKKEEPER_IDENTITY_MOOD"):
        IdentitySettings.load("127.0.0.1")


async def test_a_token_is_shown_once_kept_as_a_digest_scoped_and_ended(database: TestDatabase, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(lockkeeper, ["tokens", *arguments, "--url", database.url(), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    import asyncio

    made = await asyncio.to_thread(run, "create", "ci", "--right", "operate")
    rows = await database.owner.fetch("SELECT * FROM lockkeeper.api_tokens")
    assert made["token"].rpartition("_")[2] not in str(rows)
    async with serve(database, tmp_path, identity=FORWARDED) as console:
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert (await console.http.get(f"{API}/me", headers=headers)).json()["name"] == "token:ci"
        assert (await console.http.post(f"{API}/agents/none/pause", headers=headers)).status_code == 404
        put = await console.http.put(f"{API}/agents/a", json={"target": "t"}, headers=headers)
        assert put.status_code == 403
        for wrong in (made["token"][:-1] + "x", made["token"].replace("lk_", "lk_0"), "lk_", "lk_x_y", "Bearer"):
            answer = await console.http.get(f"{API}/tasks", headers={"Authorization": f"Bearer {wrong}"})
            assert answer.status_code == 401, wrong
    await asyncio.to_thread(run, "revoke", made["id"])
    short = await asyncio.to_thread(run, "create", "short", "--days", "1")
    await database.owner.execute("UPDATE lockkeeper.api_tokens SET expires_at = now() WHERE id = $1::uuid", short["id"])
    async with serve(database, tmp_path, identity=FORWARDED) as console:
        for token in (made["token"], short["token"]):
            answer = await console.http.get(f"{API}/tasks", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 401
    acts = [
        row["action"]
        for row in await database.owner.fetch("SELECT action FROM lockkeeper.operator_audit ORDER BY at, id")
    ]
    assert acts == ["create_token", "revoke_token", "create_token"]


@asynccontextmanager
async def signing_in(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> AsyncIterator[tuple[Console, httpx.AsyncClient]]:
    """A console that asks this provider, and a browser."""
    async with (
        serve(database, tmp_path, identity=oidc(provider)) as console,
        httpx.AsyncClient(base_url=console.url, trust_env=False) as browser,
    ):
        yield console, browser


async def sign_in(console: Console, browser: httpx.AsyncClient, path: str = "/tasks/x") -> httpx.Response:
    """What a browser does that asks for a page without a session."""
    page = await browser.get(path, headers={"Accept": "text/html"})
    assert page.status_code == 303
    to_provider = await browser.get(page.headers["location"])
    assert "HttpOnly" in to_provider.headers["set-cookie"] and "SameSite=Lax" in to_provider.headers["set-cookie"]
    async with httpx.AsyncClient(trust_env=False) as http:
        back = await http.get(to_provider.headers["location"])
    query = httpx.URL(back.headers["location"]).query.decode()
    return await browser.get(f"/auth/callback?{query}")


async def test_people_sign_in_at_a_provider_and_act_under_their_own_name(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> None:
    async with serve(database, tmp_path, identity=oidc(provider)) as console:
        await database.owner.execute("INSERT INTO lockkeeper.agents (name, target) VALUES ('reader', 't')")
        async with httpx.AsyncClient(base_url=console.url, trust_env=False) as browser:
            back = await sign_in(console, browser, "/?agent=a")
            assert (back.status_code, back.headers["location"]) == (303, "/?agent=a")
            body = {"agent": "reader", "input": {"a": 1}}
            made = await browser.post(f"{API}/tasks", json=body, headers=SAME_ORIGIN)
            assert made.json()["created_by"] == "ada@example.com"
            for forged in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
                assert (await browser.post(f"{API}/tasks", json=body, headers=forged)).status_code == 403
            spoofed = await browser.get(f"{API}/me", headers={"X-Forwarded-User": "adam"})
            assert spoofed.json()["name"] == "ada@example.com"
            out = await browser.post("/auth/logout", headers=SAME_ORIGIN)
            assert out.status_code == 303
            assert (await browser.get(f"{API}/tasks")).status_code == 401


@pytest.mark.parametrize(
    "claims",
    [{"aud": "another-app"}, {"iss": "https://evil.example"}, {"exp": 1}, {"nonce": "another"}, {"sub": None}],
    ids=lambda claims: next(iter(claims)),
)
async def test_a_token_that_does_not_fit_signs_nobody_in(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    if claims == {"sub": None}:
        provider.person = {}
        provider.claims = {}
    async with signing_in(database, tmp_path, provider) as (console, browser):
        assert (await sign_in(console, browser)).status_code == 403
        assert (await browser.get(f"{API}/tasks")).status_code == 401


async def test_keys_that_were_never_published_sign_nobody_in_and_changed_ones_do(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> None:
    async with serve(database, tmp_path, identity=oidc(provider)) as console:
        provider.signs_with = OpenIdProvider._fresh_key()
        async with httpx.AsyncClient(base_url=console.url, trust_env=False) as browser:
            assert (await sign_in(console, browser)).status_code == 403
    async with serve(database, tmp_path, identity=oidc(provider)) as console:
        provider.signs_with = None
        provider.rotate()
        async with httpx.AsyncClient(base_url=console.url, trust_env=False) as browser:
            assert (await sign_in(console, browser)).status_code == 303


async def test_a_sign_in_that_was_not_begun_here_or_a_forged_session_is_nobody(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> None:
    async with signing_in(database, tmp_path, provider) as (_, browser):
        assert (await browser.get("/auth/callback?code=a&state=b")).status_code == 403
        to_provider = await browser.get("/auth/login?next=https://evil.example/")
        assert to_provider.status_code == 303
        assert (await browser.get("/auth/callback?code=a&state=b")).status_code == 403
        sealed = browser.cookies["lockkeeper_sign_in"]
        browser.cookies.set("lockkeeper_session", sealed)  # one cookie's content under the other's name
        assert (await browser.get(f"{API}/tasks")).status_code == 401
        browser.cookies.set("lockkeeper_session", Fernet(Fernet.generate_key()).encrypt(b'{"for":"session"}').decode())
        assert (await browser.get(f"{API}/tasks")).status_code == 401


async def test_a_sign_in_never_leads_to_another_site(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> None:
    async with serve(database, tmp_path, identity=oidc(provider)) as console:
        for evil in ("https://evil.example/", "//evil.example", "/\\\\evil.example", "javascript:alert(1)"):
            async with httpx.AsyncClient(base_url=console.url, trust_env=False) as browser:
                to_provider = await browser.get("/auth/login", params={"next": evil})
                async with httpx.AsyncClient(trust_env=False) as http:
                    back = await http.get(to_provider.headers["location"])
                query = httpx.URL(back.headers["location"]).query.decode()
                answer = await browser.get(f"/auth/callback?{query}")
                assert (answer.status_code, answer.headers["location"]) == (303, "/"), evil


async def test_a_secure_site_has_cookies_that_only_it_can_set(
    database: TestDatabase, tmp_path: Path, provider: OpenIdProvider
) -> None:
    secure = oidc(provider, public_url="https://lockkeeper.example")
    async with serve(database, tmp_path, identity=secure) as console:
        cookie = (await console.http.get("/auth/login")).headers["set-cookie"]
        assert cookie.startswith("__Host-lockkeeper_sign_in=") and "; Secure" in cookie and "HttpOnly" in cookie
