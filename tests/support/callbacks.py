"""Where an agent's callbacks arrive in a test: a real HTTP server that checks signatures and keeps the bodies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import override

from shared.contract.callback import (
    KEY_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    FailureBody,
    HeartbeatBody,
    ResultBody,
    is_signed_by,
)

KEY_ID, KEY = "test-1", "k" * 32
_BODIES: dict[str, TypeAdapter[Any]] = {
    "result": TypeAdapter(ResultBody),
    "failure": TypeAdapter(FailureBody),
    "heartbeat": TypeAdapter(HeartbeatBody),
}
_OUTCOMES = {"result": "completed", "failure": "failed", "heartbeat": "running"}
Answer = tuple[int, dict[str, Any], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Received:
    """One callback that was signed right and had the right shape."""

    attempt_id: str
    verb: str
    body: dict[str, Any]
    headers: dict[str, str]


class CallbackRecorder:
    """Answers like the receiver; `answers` may be given to misbehave for a while."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.refused: list[str] = []
        self.answers: Callable[[Received], Answer | None] = lambda _: None
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer, headers = recorder.take(self.path, dict(self.headers), raw)
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            @override
            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/callbacks/v1"

    def take(self, path: str, headers: dict[str, str], raw: bytes) -> Answer:
        """What is answered to one post; wrong signatures and shapes are kept apart and refused."""
        attempt_id, verb = path.split("/")[-2:]
        known = {name.lower(): value for name, value in headers.items()}
        timestamp = known.get(TIMESTAMP_HEADER.lower(), "")
        signature = known.get(SIGNATURE_HEADER.lower(), "")
        if known.get(KEY_ID_HEADER.lower()) != KEY_ID or not is_signed_by(
            KEY.encode(), timestamp, attempt_id, verb, raw, signature=signature
        ):
            self.refused.append(f"{verb}: signature")
            return 401, {}, {}
        try:
            _BODIES[verb].validate_json(raw)
        except ValueError as error:
            self.refused.append(f"{verb}: {error}")
            return 422, {"detail": str(error)}, {}
        received = Received(attempt_id, verb, json.loads(raw), headers)
        self.received.append(received)
        chosen = self.answers(received)
        return chosen or (200, {"attempt_id": attempt_id, "outcome": _OUTCOMES[verb]}, {})

    def ends(self, attempt_id: object) -> list[Received]:
        """Results and failures of one attempt."""
        return [each for each in self.received if each.attempt_id == str(attempt_id) and each.verb != "heartbeat"]

    def beats(self, attempt_id: object) -> list[dict[str, Any]]:
        """Heartbeat bodies of one attempt."""
        return [each.body for each in self.received if each.attempt_id == str(attempt_id) and each.verb == "heartbeat"]

    def stop(self) -> None:
        """Close the door."""
        self._server.shutdown()
        self._server.server_close()
