"""The guard around an app: nobody passes without a name, and nothing is done without the right to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.contract.errors import LockkeeperError, TransientError
from shared.contract.text import clean_text
from shared.db.pool import Database
from shared.identity.oidc import Attempt, Provider
from shared.identity.people import LOCAL, Person, Right, Role, rights_of
from shared.identity.sessions import Cookies
from shared.identity.settings import IdentitySettings
from shared.identity.tokens import Tokens
from shared.runtime.http import problem
from shared.runtime.http.edge import SAFE

log = structlog.get_logger()

Needs = Callable[[str, str], Right | None]
"""The right that a method on a path needs; None for what everybody may have, such as style sheets."""
_LONGEST_NAME = 200


class Identity:
    """Tells who asks."""

    def __init__(self, settings: IdentitySettings, database: Database) -> None:
        self.settings = settings
        self._tokens = Tokens(database)
        self._networks = [ipaddress.ip_network(each) for each in settings.trusted_proxies]
        self.cookies = Cookies(settings) if settings.mode == "oidc" else None
        self.provider = Provider(settings)
        if settings.mode in ("local", "open"):
            log.warning("identity_not_asked", mode=settings.mode, means="everybody who reaches this may do everything")

    async def person(self, scope: Scope, headers: Headers) -> Person | None:
        """Who asks; None when nobody can be told. Raises TransientError while a token cannot be judged."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token.startswith("lk_"):
            return await self._tokens.person(token.strip())
        match self.settings.mode:
            case "local" | "open":
                return LOCAL if self.settings.mode == "open" or _is_here(scope, headers) else None
            case "forwarded":
                return self._forwarded(scope, headers)
            case "oidc":
                return self._signed_in(headers)

    def _forwarded(self, scope: Scope, headers: Headers) -> Person | None:
        peer = _address((scope.get("client") or ("", 0))[0])
        if peer is None or not any(peer in network for network in self._networks):
            return None
        names = [_cleaned(headers.get(f"x-forwarded-{each}", "")) for each in ("user", "email", "preferred-username")]
        groups = [_cleaned(each) for each in headers.get("x-forwarded-groups", "").split(",")]
        return self._known([each for each in names if each], groups, "forwarded")

    def _signed_in(self, headers: Headers) -> Person | None:
        held = self.cookies.read(headers, "session") if self.cookies else None
        return None if held is None else self._known(held["names"], held["groups"], "oidc")

    def _known(self, names: list[str], groups: list[str], by: str) -> Person | None:
        if not names:
            return None
        given = [self.settings.roles.get(each) for each in (*names, *(f"group:{each}" for each in groups if each))]
        roles: set[Role] = {role for some in given if some for role in some} or set(self.settings.default_roles)
        return Person(names[0], rights_of(roles), by)


class Guard:
    """The layer inside of the edge. It also answers `/auth/…` and `/api/v1/me` itself."""

    def __init__(self, app: ASGIApp, identity: Identity, needs: Needs) -> None:
        self._app = app
        self._identity = identity
        self._needs = needs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through with the person in `scope["state"]`, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = await self._answer(scope, Headers(scope=scope))
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, headers: Headers) -> Response | None:
        method, path = scope["method"], scope["path"]
        if path.startswith("/auth/"):
            return await self._sign(method, path, parse_qs(scope["query_string"].decode("latin-1")), headers)
        right = self._needs(method, path)
        if right is None:
            return None
        try:
            person = await self._identity.person(scope, headers)
        except TransientError as error:
            return problem(503, "Not available now", "Try again in a moment.", headers={"Retry-After": "2"},
                           reason=error.reason)  # fmt: skip
        if person is None:
            return self._stranger(method, scope, headers)
        if not person.may(right):
            log.info("refused", person=person.name, right=right.value, method=method, path=path)
            said = f"This needs the right to {right.value}; {person.name} does not have it."
            return problem(403, "Not allowed", said, reason="not_allowed", needs=right.value)
        if _is_forgeable(person, method, headers):
            return problem(403, "Refused", "Only our own pages may do this with a session.", reason="cross_site")
        if path == "/api/v1/me":
            return JSONResponse(
                {"name": person.name, "by": person.by, "rights": sorted(person.rights), "is_proved": person.is_proved}
            )
        scope.setdefault("state", {})["person"] = person
        return None

    def _stranger(self, method: str, scope: Scope, headers: Headers) -> Response:
        wants_page = method in SAFE and "text/html" in headers.get("accept", "")
        if self._identity.settings.mode == "oidc" and wants_page:
            asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"/auth/login?next={quote(asked, safe='')}", 303)
        return problem(401, "Who are you?", "Sign in, or send a token.", reason="unknown_person",
                       headers={"WWW-Authenticate": "Bearer"})  # fmt: skip

    async def _sign(self, method: str, path: str, query: dict[str, list[str]], headers: Headers) -> Response:
        cookies = self._identity.cookies
        if cookies is None:
            return problem(404, "Not found")
        try:
            match (method, path):
                case ("GET", "/auth/login"):
                    attempt = Attempt.begin(query.get("next", ["/"])[0])
                    answer: Response = RedirectResponse(await self._identity.provider.address(attempt), 303)
                    answer.headers.append("Set-Cookie", cookies.written("sign_in", asdict(attempt)))
                    return answer
                case ("GET", "/auth/callback"):
                    return await self._signed_in(cookies, query, headers)
                case ("POST", "/auth/logout"):
                    answer = RedirectResponse("/auth/login", 303)
                    answer.headers.append("Set-Cookie", cookies.written("session", None))
                    return answer
                case _:
                    return problem(404, "Not found")
        except LockkeeperError as error:
            status = 503 if isinstance(error, TransientError) else 403
            log.warning("sign_in_failed", reason=error.reason, error=error.message)
            return problem(status, "Not signed in", error.message, reason=error.reason)

    async def _signed_in(self, cookies: Cookies, query: dict[str, list[str]], headers: Headers) -> Response:
        held = cookies.read(headers, "sign_in")
        state, code = query.get("state", [""])[0], query.get("code", [""])[0]
        if held is None or not code or state != held["state"]:
            return problem(403, "Not signed in", "This sign-in was not begun here, or too long ago.",
                           reason="sign_in_refused")  # fmt: skip
        attempt = Attempt(held["state"], held["nonce"], held["verifier"], held["next"])
        claims = await self._identity.provider.claims(attempt, code)
        content = _session(claims)
        log.info("signed_in", person=content["names"][0])
        answer = RedirectResponse(attempt.next, 303)
        answer.headers.append("Set-Cookie", cookies.written("session", content))
        answer.headers.append("Set-Cookie", cookies.written("sign_in", None))
        return answer


def _session(claims: dict[str, Any]) -> dict[str, Any]:
    # An address that the provider has not verified is anybody's claim, and no name.
    email = claims.get("email") if claims.get("email_verified", True) else None
    names = [_cleaned(str(each)) for each in (email, claims.get("sub")) if each]
    groups = claims.get("groups", [])
    return {"names": names, "groups": [_cleaned(str(each)) for each in groups] if isinstance(groups, list) else []}


def _is_forgeable(person: Person, method: str, headers: Headers) -> bool:
    """A change with a cookie that no browser vouches for: the edge lets programs without an origin pass."""
    if person.by != "oidc" or method in SAFE:
        return False
    return "sec-fetch-site" not in headers and "origin" not in headers


def _is_here(scope: Scope, headers: Headers) -> bool:
    """From this machine, and by a name of this machine: a page elsewhere can make its own name lead here."""
    peer = _address((scope.get("client") or ("", 0))[0])
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    named = _address(host)
    return peer is not None and peer.is_loopback and (host == "localhost" or bool(named and named.is_loopback))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _cleaned(text: str) -> str:
    return clean_text(text)[0].strip()[:_LONGEST_NAME]
