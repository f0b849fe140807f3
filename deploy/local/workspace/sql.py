"""Doubles the Statement Execution API: ``/api/2.0/sql/statements``, INLINE results in JSON_ARRAY format.

Also ``/faults/billing/usage``: adds rows to ``system.billing.usage``, corrections for instance.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response

from deploy.local.workspace.billing import Ledger
from deploy.local.workspace.faults import STATEMENT, FaultBook, require_loopback
from deploy.local.workspace.operation import (
    JsonObject,
    Operation,
    integer,
    invalid_parameter,
    json_body,
    json_response,
    not_found,
)
from deploy.local.workspace.run_record import now_ms
from deploy.local.workspace.settings import WorkspaceSettings
from deploy.local.workspace.store import Store

if TYPE_CHECKING:
    from deploy.local.workspace.warehouse import Table

logger = logging.getLogger(__name__)

_ROWS_A_CHUNK = 5_000
_KEPT_STATEMENTS = 200
_DEFAULT_WAIT = "10s"
_WAIT = re.compile(r"0s|(?:[5-9]|[1-4]\d|50)s")
_ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "CLOSED"})


@dataclass
class Statement:
    """One submitted statement and what became of it."""

    statement_id: str
    state: str = "PENDING"
    error: JsonObject | None = None
    table: Table | None = None
    work: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, state: str, error: JsonObject | None = None) -> None:
        """Write the end; the first one counts."""
        if self.state not in _ENDED:
            self.state, self.error = state, error
            self.done.set()


class SqlRoom:
    """Statements over the billing tables."""

    def __init__(self, *, store: Store, faults: FaultBook, settings: WorkspaceSettings) -> None:
        self._store = store
        self._faults = faults
        self._lag_ms = int(settings.billing_lag_seconds * 1000)
        self._ledger = Ledger(
            account_id=settings.account_id,
            workspace_id=settings.workspace_id,
            cloud=settings.cloud,
            dbu_per_hour=settings.dbu_per_hour,
        )
        self._statements: OrderedDict[str, Statement] = OrderedDict()

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        one = "/api/2.0/sql/statements/{statement_id}"
        return [
            Operation("sql.execute", "POST", "/api/2.0/sql/statements", self.execute),
            Operation("sql.execute", "POST", "/api/2.0/sql/statements/", self.execute),
            Operation("sql.get", "GET", one, self.get),
            Operation("sql.chunk", "GET", one + "/result/chunks/{chunk}", self.chunk),
            Operation("sql.cancel", "POST", one + "/cancel", self.cancel),
            Operation("faults.usage", "POST", "/faults/billing/usage", self.add_usage, public=True),
        ]

    async def execute(self, request: Request) -> Response:
        """Run a statement; answers when it ended or the wait is over, whichever comes first."""
        body = await json_body(request)
        if not body.get("statement") or not body.get("warehouse_id"):
            raise invalid_parameter("statement and warehouse_id are required")
        if body.get("disposition", "INLINE") != "INLINE" or body.get("format", "JSON_ARRAY") != "JSON_ARRAY":
            raise invalid_parameter("the workspace double answers INLINE results in JSON_ARRAY format only")
        wait = str(body.get("wait_timeout", _DEFAULT_WAIT))
        if not _WAIT.fullmatch(wait):
            raise invalid_parameter("wait_timeout must be 0s or between 5s and 50s")
        statement = Statement(str(uuid.uuid4()))
        self._remember(statement)
        statement.work = asyncio.create_task(self._run(statement, body))
        try:
            await asyncio.wait_for(statement.done.wait(), float(wait[:-1]))
        except TimeoutError:
            if body.get("on_wait_timeout") == "CANCEL":
                statement.work.cancel()
                statement.end("CANCELED")
        return json_response(self._shown(statement))

    async def get(self, request: Request) -> Response:
        """Where a statement stands, with the first chunk of its result."""
        return json_response(self._shown(self._statement(request)))

    async def chunk(self, request: Request) -> Response:
        """One more chunk of a result."""
        statement = self._statement(request)
        number = integer(request.path_params["chunk"], "chunk_index")
        if statement.table is None or not 0 <= number < _chunks(statement.table):
            raise not_found(f"statement {statement.statement_id} has no chunk {number}")
        return json_response(_chunk(statement, statement.table, number))

    async def cancel(self, request: Request) -> Response:
        """Stop a statement; one that ended stays as it is."""
        statement = self._statement(request)
        if statement.work is not None:
            statement.work.cancel()
        statement.end("CANCELED")
        return json_response({})

    async def add_usage(self, request: Request) -> Response:
        """Add rows to ``system.billing.usage``; what a row does not say is filled in."""
        require_loopback(request)
        rows = [self._ledger.completed(row) for row in (await json_body(request)).get("rows") or []]
        for row in rows:
            self._store.execute(
                "INSERT OR REPLACE INTO usage_rows VALUES (?, ?)", row["record_id"], orjson.dumps(row).decode()
            )
        return json_response({"rows": rows}, 201)

    async def _run(self, statement: Statement, body: JsonObject) -> None:
        # The parser and the query engine are only loaded by a double that is asked something.
        from deploy.local.workspace.warehouse import StatementError, Warehouse, translated

        facts = {"statement": body["statement"]}
        if self._faults and (rule := self._faults.take(STATEMENT, {"delay", "status"}, facts)):
            if rule.kind == "delay":
                await self._faults.outlast(rule, 1.0)
            else:
                statement.end("FAILED", {"error_code": rule.error_code or "INTERNAL_ERROR", "message": rule.message})
        if statement.state in _ENDED:
            return
        statement.state = "RUNNING"
        warehouse = Warehouse({"usage": self._usage, "list_prices": self._ledger.prices})
        try:
            query = await asyncio.to_thread(translated, str(body["statement"]), body.get("parameters") or [])
            table = await asyncio.to_thread(warehouse.run, query, warehouse.snapshot(query))
        except StatementError as error:
            statement.end("FAILED", {"error_code": error.error_code, "message": str(error)})
            return
        except Exception as error:
            logger.exception("a statement broke the warehouse")
            statement.end("FAILED", {"error_code": "INTERNAL_ERROR", "message": str(error)})
            return
        limit = int(body.get("row_limit") or 0)
        statement.table = table if not limit else type(table)(table.columns, table.rows[:limit])
        statement.end("SUCCEEDED")

    def _usage(self) -> Iterator[JsonObject]:
        yield from self._ledger.of_others(datetime.now(UTC))
        for run in self._store.ended_runs(now_ms() - self._lag_ms):
            yield from self._ledger.of_run(run)
        for (document,) in self._store.rows("SELECT document FROM usage_rows"):
            yield orjson.loads(document)

    def _remember(self, statement: Statement) -> None:
        self._statements[statement.statement_id] = statement
        while len(self._statements) > _KEPT_STATEMENTS:
            self._statements.popitem(last=False)

    def _statement(self, request: Request) -> Statement:
        statement_id = request.path_params["statement_id"]
        statement = self._statements.get(statement_id)
        if statement is None:
            raise not_found(f"The statement {statement_id} was not found.")
        return statement

    def _shown(self, statement: Statement) -> JsonObject:
        status: JsonObject = {"state": statement.state}
        if statement.error is not None:
            status["error"] = statement.error
        shown: JsonObject = {"statement_id": statement.statement_id, "status": status}
        if (table := statement.table) is not None:
            shown["manifest"] = _manifest(table)
            shown["result"] = _chunk(statement, table, 0) if table.rows else {}
        return shown


def _manifest(table: Table) -> JsonObject:
    columns = [
        {"name": one.name, "position": at, "type_name": one.type_name, "type_text": one.type_text}
        for at, one in enumerate(table.columns)
    ]
    chunks = [
        {"chunk_index": at, "row_offset": at * _ROWS_A_CHUNK,
         "row_count": len(table.rows[at * _ROWS_A_CHUNK : (at + 1) * _ROWS_A_CHUNK])}
        for at in range(_chunks(table) if table.rows else 0)
    ]  # fmt: skip
    return {
        "format": "JSON_ARRAY",
        "schema": {"column_count": len(columns), "columns": columns},
        "total_row_count": len(table.rows),
        "total_chunk_count": len(chunks),
        "chunks": chunks,
        "truncated": False,
    }


def _chunks(table: Table) -> int:
    return max(1, -(-len(table.rows) // _ROWS_A_CHUNK))


def _chunk(statement: Statement, table: Table, number: int) -> JsonObject:
    offset = number * _ROWS_A_CHUNK
    rows = table.rows[offset : offset + _ROWS_A_CHUNK]
    chunk: JsonObject = {
        "chunk_index": number, "row_offset": offset, "row_count": len(rows), "data_array": rows
    }  # fmt: skip
    if number + 1 < _chunks(table):
        chunk["next_chunk_index"] = number + 1
        chunk["next_chunk_internal_link"] = (
            f"/api/2.0/sql/statements/{statement.statement_id}/result/chunks/{number + 1}"
            f"?row_offset={offset + _ROWS_A_CHUNK}"
        )
    return chunk
