"""A collector of OpenTelemetry: takes what exporters send and keeps the spans."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self
from uuid import UUID

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Seen:
    """One span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    seconds: float
    attributes: dict[str, str]


class Collector:
    """Listens for OTLP over HTTP on a port of its own."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            @override
            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, raw: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(raw)
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Seen(
                            named.get("service.name", ""), span.name, span.trace_id.hex(), span.span_id.hex(),
                            span.parent_span_id.hex(), (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            {each.key: str(each.value).split(": ", 1)[-1].strip().strip('"') for each in span.attributes},
                        )
                    )  # fmt: skip

    def of(self, task: str) -> dict[str, Seen]:
        """The spans of a task by name."""
        return {span.name: span for span in self.spans if span.trace_id == UUID(task).hex}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
