"""The outside of a generated month: a tracking server that speaks MLflow's wire, and a warehouse in DuckDB.

The tracking server answers the unchanged MLflow client; the warehouse runs the very statement of the bill, translated
as the workspace double does it. Both show only what can be seen at a moment.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import orjson

from deploy.local.workspace.billing import PRICE_COLUMNS, USAGE_COLUMNS, Ledger
from deploy.local.workspace.warehouse import translated
from tests.support.month import OURS, BillFact, TraceFact

_IDS = re.compile(r"'([^']+)'")
EXPERIMENT = "1"


class TrackingServer:
    """`/version`, an experiment by name, and the search of traces, a page at a time."""

    def __init__(self) -> None:
        self._by_request: dict[str, list[tuple[TraceFact, datetime]]] = {}
        self.searches = 0
        self.now: datetime | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path.startswith("/version"):
                    self._answer(b"3.17.2")
                else:
                    one = {"experiment_id": EXPERIMENT, "name": "lockkeeper", "lifecycle_stage": "active"}
                    self._answer(json.dumps({"experiment": one}).encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(orjson.dumps(server.search(asked)))

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def store(self, attempt_id: str, traces: Iterable[TraceFact], started_at: datetime) -> None:
        """Traces of one attempt, each to be found from its own time on."""
        self._by_request[attempt_id] = [(trace, started_at) for trace in traces]

    def search(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.searches += 1
        found = [
            _info(attempt_id, trace, started_at)
            for attempt_id in _IDS.findall(asked["filter"])
            for trace, started_at in self._by_request.get(attempt_id, ())
            if self.now is None or trace.seen_at <= self.now
        ]
        first, size = int(asked.get("page_token") or 0), int(asked["max_results"])
        more = {"next_page_token": str(first + size)} if len(found) > first + size else {}
        return {"traces": found[first : first + size], **more}

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _info(attempt_id: str, trace: TraceFact, started_at: datetime) -> dict[str, Any]:
    sent, output, read, written = trace.tokens
    usage = {
        "input_tokens": sent + read + written, "output_tokens": output,
        "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
    }  # fmt: skip
    metadata = {"mlflow.trace_schema.version": "3", "mlflow.trace.tokenUsage": json.dumps(usage)}
    if trace.cost is not None:
        metadata["mlflow.trace.cost"] = json.dumps({"total_cost": float(trace.cost)})
    return {
        "trace_id": trace.trace_id, "client_request_id": attempt_id, "state": "OK", "execution_duration": "1s",
        "request_time": started_at.strftime("%Y-%m-%dT%H:%M:%SZ"), "trace_metadata": metadata, "tags": {},
        "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": EXPERIMENT}},
    }  # fmt: skip


class DuckWarehouse:
    """The account's bill, growing; counts its statements."""

    def __init__(self) -> None:
        self._duck = duckdb.connect(":memory:", config={"threads": "1"})
        self._duck.execute("SET TimeZone = 'UTC'; CREATE SCHEMA billing")
        self._ledger = Ledger(account_id="a", workspace_id=OURS, cloud="AWS", dbu_per_hour=1)
        for name, columns in (("usage", USAGE_COLUMNS), ("list_prices", PRICE_COLUMNS)):
            self._duck.execute(
                f"CREATE TABLE billing.{name} ({', '.join(f'{c} {kind}' for c, kind in columns.items())})"
            )
        self._insert("list_prices", PRICE_COLUMNS, self._ledger.prices())
        self.statements = 0

    async def workspace_id(self) -> str:
        return OURS

    async def query(self, statement: str, parameters: Mapping[str, str]) -> list[dict[str, str | None]]:
        self.statements += 1
        given = [{"name": name, "value": value, "type": "STRING"} for name, value in parameters.items()]
        self._duck.execute(translated(statement, given).text)
        names = [str(column[0]) for column in self._duck.description or []]
        rows = self._duck.fetchall()
        return [{name: _cell(value) for name, value in zip(names, row, strict=True)} for row in rows]

    def grow(self, facts: Iterable[BillFact]) -> None:
        """More rows of the bill arrive."""
        self._insert("usage", USAGE_COLUMNS, (self._row(fact) for fact in facts))

    def _row(self, fact: BillFact) -> dict[str, Any]:
        return {
            "workspace_id": fact.workspace, "record_id": fact.record_id, "sku_name": fact.sku, "cloud": "AWS",
            "usage_start_time": fact.start.replace(tzinfo=None), "usage_end_time": fact.end.replace(tzinfo=None),
            "usage_date": fact.start.date(), "usage_unit": "DBU", "usage_quantity": fact.quantity,
            "usage_metadata": {"job_run_id": str(fact.run_id)}, "record_type": fact.record_type,
            "ingestion_date": fact.seen_at.date(), "billing_origin_product": fact.product,
        }  # fmt: skip

    def _insert(self, name: str, columns: Mapping[str, str], rows: Iterable[dict[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows) + b"\n")
            kinds = ", ".join(f"'{column}': '{kind}'" for column, kind in columns.items())
            self._duck.execute(
                f"INSERT INTO billing.{name} SELECT {', '.join(columns)} "
                f"FROM read_json('{path}', format = 'newline_delimited', columns = {{{kinds}}})"
            )


def _cell(value: object) -> str | None:
    if value is None:
        return None
    return value.isoformat() if isinstance(value, datetime) else str(value)
