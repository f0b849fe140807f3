"""The HTTP API as a client sees it: calls, and refusals as one readable line."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from lockkeeper.failure import CommandError

Json = dict[str, Any]
Filters = Mapping[str, str | int | None]

REFUSED = "application/problem+json"


class Api:
    """One connection to a Lockkeeper. Every method raises CommandError when it was refused or not reached."""

    def __init__(self, url: str, *, timeout_seconds: float = 60) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1",
            timeout=timeout_seconds,
            trust_env=not self.url.startswith("http://127."),
            headers={"Authorization": f"Bearer {token}"} if (token := os.environ.get("LOCKKEEPER_TOKEN")) else None,
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request. A refusal is raised with the reason that the API gives."""
        try:
            answer = self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise CommandError(f"nothing answers at {self.url}; start a stack or set LOCKKEEPER_URL") from None
        except httpx.HTTPError as error:
            raise CommandError(f"{self.url} does not answer: {error or type(error).__name__}") from None
        if answer.is_error:
            raise CommandError(refusal(answer))
        return answer

    def get(self, path: str, filters: Filters | None = None) -> Json:
        """A JSON answer; filters without a value are left out."""
        answer: Json = self.call("GET", path, params=given(filters or {})).json()
        return answer

    def post(self, path: str, body: Json | None = None) -> Json:
        """POST a JSON body."""
        answer: Json = self.call("POST", path, json=body or {}).json()
        return answer

    def upload(self, files: Sequence[Path], customer: str | None = None) -> Json:
        """Upload PDFs, streamed; `documents` holds the good ones, `refused` the others with their reasons."""
        with ExitStack() as opened:
            parts = [
                ("files", (file.name, opened.enter_context(file.open("rb")), mimetypes.guess_type(file.name)[0]))
                for file in files
            ]
            data = {"customer": customer} if customer else {}
            try:
                answer = self._http.post("/documents", files=parts, data=data)
            except httpx.HTTPError as error:
                raise CommandError(f"the upload broke off: {error or type(error).__name__}") from None
        body = _body(answer)
        if answer.is_error and "refused" not in body:
            raise CommandError(refusal(answer))
        return body

    def pages(self, path: str, filters: Filters, rows: str, most: int) -> Iterator[Json]:
        """The rows of a paged list, page by page, at most `most` of them."""
        cursor: str | None = None
        while most > 0:
            page = self.get(path, {**filters, "cursor": cursor, "limit": min(most, 200)})
            yield from page[rows][:most]
            most -= len(page[rows])
            cursor = page.get("next_cursor")
            if cursor is None:
                return


def given(filters: Filters) -> dict[str, str | int]:
    """The filters that have a value."""
    return {name: value for name, value in filters.items() if value is not None}


def refusal(answer: httpx.Response) -> str:
    """What the API said about a request that it refused."""
    body = _body(answer)
    title = body.get("title") or answer.reason_phrase
    detail = body.get("detail")
    text = f"{title}: {detail}" if detail and detail != title else str(title)
    errors = body.get("errors")
    if isinstance(errors, list) and errors:
        text += " (" + "; ".join(_error(each) for each in errors[:3]) + ")"
    return f"{answer.status_code} {text}"


def _error(error: object) -> str:
    if isinstance(error, dict):
        where = ".".join(str(part) for part in error.get("loc", []) if part != "body")
        return f"{where}: {error.get('msg', error.get('detail', ''))}".removeprefix(": ")
    return str(error)


def _body(answer: httpx.Response) -> Json:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
