"""One statement on a SQL warehouse, for the platform's billing tables: named parameters in, rows of text out.

A failing statement is an answer and not an HTTP error, results come in chunks, and a warehouse that starts
cold takes minutes; all of that stays here. Values travel as parameters, never as text of the statement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.contract.errors import LockkeeperError, MisconfiguredError, RejectedError, TransientError
from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.sql import StatementResponse

WAIT_SECONDS = 20
_ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "CLOSED"})

Row = dict[str, str | None]


class Warehouse:
    """A SQL warehouse of the workspace.

    `statement_seconds` bounds a whole statement with its cold start. A call is held open for `wait_seconds`, 5 to
    50; the workspace's own time limit for a call must be longer.
    """

    def __init__(
        self, workspace: Workspace, warehouse_id: str | None, *, statement_seconds: float = 240,
        wait_seconds: int = WAIT_SECONDS,
    ) -> None:  # fmt: skip
        self._workspace = workspace
        self._warehouse_id = warehouse_id
        self._statement_seconds = statement_seconds
        self._wait = f"{wait_seconds}s"

    async def workspace_id(self) -> str:
        """The id under which this workspace stands in account-wide tables."""
        return await self._workspace.call(lambda client: str(client.config.workspace_id or client.get_workspace_id()))

    async def query(self, statement: str, parameters: Mapping[str, str]) -> list[Row]:
        """All rows of a query, each a dict of column to text.

        Raises RejectedError with the warehouse's own words, TransientError when it did not finish in time, and
        MisconfiguredError when no warehouse is named.
        """
        warehouse_id = self._warehouse_id or await self._workspace.call(lambda client: client.config.warehouse_id)
        if not warehouse_id:
            raise MisconfiguredError("no SQL warehouse is named: set DATABRICKS_WAREHOUSE_ID")
        give_up_at = time.monotonic() + self._statement_seconds
        answer = await self._workspace.call(
            lambda client: _execute(client, statement, warehouse_id, parameters, self._wait)
        )
        pause = 0.5
        while _state(answer) not in _ENDED:
            if time.monotonic() >= give_up_at:
                await self._cancel(answer)
                said = f"the warehouse did not finish within {self._statement_seconds:.0f} s"
                raise TransientError(said, reason="deadline")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
            answer = await self._ask_again(str(answer.statement_id))
        if _state(answer) != "SUCCEEDED":
            raise _refusal(answer)
        return await self._rows(answer)

    async def _ask_again(self, statement_id: str) -> StatementResponse:
        return await self._workspace.call(lambda client: client.statement_execution.get_statement(statement_id))

    async def _cancel(self, answer: StatementResponse) -> None:
        def cancel(client: WorkspaceClient) -> None:
            client.statement_execution.cancel_execution(str(answer.statement_id))

        await self._workspace.call(cancel)

    async def _rows(self, answer: StatementResponse) -> list[Row]:
        schema = answer.manifest.schema if answer.manifest else None
        names = [str(column.name) for column in (schema.columns or [])] if schema else []
        rows: list[Row] = []
        chunk = answer.result
        while chunk is not None:
            rows += [dict(zip(names, cells, strict=True)) for cells in chunk.data_array or []]
            if chunk.next_chunk_index is None:
                break
            chunk = await self._chunk(str(answer.statement_id), chunk.next_chunk_index)
        return rows

    async def _chunk(self, statement_id: str, number: int) -> Any:
        return await self._workspace.call(
            lambda client: client.statement_execution.get_statement_result_chunk_n(statement_id, number)
        )


def _execute(
    client: WorkspaceClient, statement: str, warehouse_id: str, parameters: Mapping[str, str], wait: str
) -> StatementResponse:
    from databricks.sdk.service.sql import Disposition, ExecuteStatementRequestOnWaitTimeout, Format
    from databricks.sdk.service.sql import StatementParameterListItem as Parameter

    return client.statement_execution.execute_statement(
        statement, warehouse_id, wait_timeout=wait,
        on_wait_timeout=ExecuteStatementRequestOnWaitTimeout.CONTINUE,
        parameters=[Parameter(name=name, value=value, type="STRING") for name, value in parameters.items()],
        disposition=Disposition.INLINE, format=Format.JSON_ARRAY,
    )  # fmt: skip


def _state(answer: StatementResponse) -> str:
    state = answer.status.state if answer.status else None
    return "PENDING" if state is None else state.value


def _refusal(answer: StatementResponse) -> LockkeeperError:
    error = answer.status.error if answer.status else None
    said = (error.message if error else None) or f"the statement ended as {_state(answer)}"
    if _state(answer) == "FAILED" and not (error and error.error_code and error.error_code.value in _PASSING):
        return RejectedError(f"the warehouse refused the statement: {said}", reason="statement_failed")
    return TransientError(f"the warehouse gave the statement up: {said}", reason="statement_ended")


_PASSING = frozenset(
    {"ABORTED", "DEADLINE_EXCEEDED", "INTERNAL_ERROR", "IO_ERROR", "RESOURCE_EXHAUSTED", "SERVICE_UNDER_MAINTENANCE",
     "TEMPORARILY_UNAVAILABLE", "WORKSPACE_TEMPORARILY_UNAVAILABLE"}
)  # fmt: skip
