"""Posting to the callback receiver: signed, offered again until a deadline, and never after a refusal."""

from __future__ import annotations

import random
import time
from functools import lru_cache
from typing import Any
from uuid import UUID

import httpx
import structlog

from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.workspace import bearer_token
from shared.contract.callback import (
    KEY_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Body,
    FailureBody,
    HeartbeatBody,
    ResultBody,
    sign_for,
)
from shared.contract.errors import RejectedError, TransientError

log = structlog.get_logger()

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_SECONDS = 15.0


@lru_cache(maxsize=1)
def _http() -> httpx.Client:
    """One client for the process: threads may share it, and connections stay open between runs."""
    return httpx.Client(timeout=httpx.Timeout(10, connect=5), trust_env=False)


class CallbackSender:
    """Speaks for one attempt. Blocks: the kit calls it from threads."""

    def __init__(self, settings: AgentSettings, attempt_id: UUID) -> None:
        self._attempt = str(attempt_id)
        self._address = f"{settings.callback_url.rstrip('/')}/attempts/{attempt_id}"
        self._key_id = settings.callback_key_id
        self._key = settings.callback_key.get_secret_value().encode()
        self._deadline_seconds = settings.callback_deadline_seconds
        self._login = settings.callback_login

    def result(self, body: ResultBody) -> dict[str, Any]:
        """Offer the result until it is settled. Raises RejectedError when refused, TransientError at the deadline."""
        return self._deliver("result", body, self._deadline_seconds)

    def failure(self, body: FailureBody, deadline_seconds: float | None = None) -> dict[str, Any]:
        """The same for a failure."""
        return self._deliver("failure", body, deadline_seconds or self._deadline_seconds)

    def begin(self) -> dict[str, Any]:
        """Say that this attempt's turn has come, until somebody heard it. Errors as `result`."""
        return self._deliver("heartbeat", HeartbeatBody(), self._deadline_seconds)

    def heartbeat(self, body: HeartbeatBody) -> dict[str, Any]:
        """One try: the next beat is the retry."""
        return self._post("heartbeat", _encode(body))

    def _deliver(self, verb: str, body: Body, deadline_seconds: float) -> dict[str, Any]:
        raw = _encode(body)
        give_up_at = time.monotonic() + deadline_seconds
        tries = 0
        while True:
            tries += 1
            try:
                return self._post(verb, raw)
            except TransientError as error:
                pause = _pause(tries, error.retry_after_seconds)
                if time.monotonic() + pause >= give_up_at:
                    raise
                log.warning("callback_again", verb=verb, tries=tries, error=error.message, pause=round(pause, 2))
                time.sleep(pause)

    def _post(self, verb: str, raw: bytes) -> dict[str, Any]:
        # Signed at each try: the receiver refuses old timestamps.
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            TIMESTAMP_HEADER: timestamp,
            KEY_ID_HEADER: self._key_id,
            SIGNATURE_HEADER: sign_for(self._key, timestamp, self._attempt, verb, raw),
        }
        if self._login:
            headers["Authorization"] = f"Bearer {bearer_token()}"
        try:
            answer = _http().post(f"{self._address}/{verb}", content=raw, headers=headers)
        except httpx.TransportError as error:
            said = str(error) or type(error).__name__
            raise TransientError(f"the callback receiver does not answer: {said}") from error
        if answer.status_code in _AGAIN:
            raise TransientError(
                f"the callback receiver answered {answer.status_code}", retry_after_seconds=_retry_after(answer)
            )
        if not answer.is_success:
            raise RejectedError(
                f"the callback receiver answered {answer.status_code}: {answer.text[:300]}",
                reason=f"callback_refused_{answer.status_code}",
            )
        return _object(answer)


def _encode(body: Body) -> bytes:
    return body.model_dump_json(exclude_none=True).encode()


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _retry_after(answer: httpx.Response) -> float | None:
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _pause(tries: int, asked: float | None) -> float:
    """Seconds to wait: what was asked for, else doubling from 0.25 s, each with jitter."""
    wanted = asked if asked is not None else 0.25 * 2 ** min(tries - 1, 6)
    return min(_LONGEST_PAUSE_SECONDS, wanted) * (0.75 + random.random() / 2)  # noqa: S311 - jitter
