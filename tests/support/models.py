"""A model endpoint whose answers a test decides: the OpenAI protocol over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override


class ScriptedModel:
    """Answers each chat completion with what `answers` makes of the request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.bearers: list[str] = []
        self.answers: Callable[[dict[str, Any]], str] = lambda _: "{}"
        self.usage: dict[str, Any] | None = {"prompt_tokens": 100, "completion_tokens": 10}
        self.finish_reason = "stop"
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.bearers.append(self.headers.get("Authorization", ""))
                model.requests.append(request)
                data = json.dumps(model.completion(request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            @override
            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def completion(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of one answer."""
        message = {"role": "assistant", "content": self.answers(request)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        body = {"id": "c", "object": "chat.completion", "model": request["model"], "choices": [choice]}
        return body if self.usage is None else {**body, "usage": self.usage}

    def stop(self) -> None:
        """Close the endpoint."""
        self._server.shutdown()
        self._server.server_close()
