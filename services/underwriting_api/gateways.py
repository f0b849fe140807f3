"""The API's calls to Temporal, and what its answers mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from services.underwriting_api.settings import ApiSettings
from shared.contract.errors import ConflictError, MissingError, RejectedError, TransientError
from shared.contract.underwriting import (
    DECIDE_UPDATE,
    PURPOSE_ATTRIBUTE,
    STATE_ATTRIBUTE,
    WORKFLOW,
    Decision,
    Receipt,
    RunStart,
    RunState,
    workflow_id,
)
from shared.vendors.temporal import connect, ensure_search_attributes

AWAY = "temporal_unavailable"
LOOK_SECONDS = 1.5
_REFUSED = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED})


class TemporalGateway:
    """Runs in Temporal. Every call has a time limit; what is not answered raises TransientError."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._limit = timedelta(seconds=settings.answer_seconds)
        self._client: Client | None = None

    async def start(self, start: RunStart) -> str:
        """Start the run, or find it started; returns Temporal's own run id. Raises RejectedError when it never will.

        A namespace that does not know our search attributes is told of them first, or does without.
        """
        try:
            try:
                return await self._start(start)
            except RPCError as error:
                if error.status is not RPCStatusCode.INVALID_ARGUMENT or "search attribute" not in error.message:
                    raise
                return await self._start(start if await self._knows_attributes() else _without_attributes(start))
        except (RPCError, RuntimeError) as error:
            if isinstance(error, RPCError) and error.status in _REFUSED:
                raise RejectedError(f"Temporal refuses the run: {error.message}", reason="start_refused") from error
            _away(error)

    async def _start(self, start: RunStart) -> str:
        client = await self._connected()
        try:
            handle = await client.start_workflow(
                WORKFLOW, start, id=workflow_id(start.run_id), task_queue=self._settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING, rpc_timeout=self._limit,
                search_attributes=_attributes(start),
            )  # fmt: skip
        except WorkflowAlreadyStartedError as error:
            return error.run_id or ""
        return handle.first_execution_run_id or ""

    async def _knows_attributes(self) -> bool:
        """Whether they are known by now; a namespace takes a moment to learn new ones, then the start is repeated."""
        try:
            added = await ensure_search_attributes(await self._connected())
        except RejectedError:
            return False
        if added:
            raise TransientError("Temporal is learning our search attributes", reason="search_attributes")
        return True

    async def decide(self, run: UUID, decision: Decision) -> Receipt:
        """Deliver a decision; the same id again gives the same receipt.

        Raises ConflictError with the refusal's word, MissingError when Temporal has no such run (yet), and
        TransientError when nobody knows what became of it: it may still be applied, so the same id is sent again.
        """
        try:
            handle = await self._handle(run)
            receipt: Receipt = await handle.execute_update(
                DECIDE_UPDATE, decision, id=str(decision.decision_id), result_type=Receipt, rpc_timeout=self._limit
            )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError):
                raise ConflictError(cause.message, reason=cause.type or "refused") from error
            raise ConflictError(str(cause), reason="refused") from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise TransientError("no worker has answered yet", reason="no_worker") from error
        except (RPCError, RuntimeError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                if "completed" in error.message or "closing" in error.message:
                    raise ConflictError("the run has ended", reason="run_ended") from error
                raise MissingError("Temporal has no such run", reason="not_started") from error
            _away(error)
        else:
            return receipt

    async def cancel(self, run: UUID) -> None:
        """Ask the run to end; one that has ended is left alone. Raises MissingError when Temporal has no such run."""
        try:
            await (await self._handle(run)).cancel(rpc_timeout=self._limit)
        except (RPCError, RuntimeError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                if "completed" in error.message:
                    return
                raise MissingError("Temporal has no such run", reason="not_started") from error
            _away(error)

    async def answers(self) -> bool:
        """Whether a cluster is there now."""
        try:
            client = await self._connected()
            return await client.service_client.check_health(timeout=timedelta(seconds=LOOK_SECONDS))
        except (RPCError, RuntimeError):
            return False

    async def look(self, run: UUID) -> dict[str, Any]:
        """What Temporal itself says about a run now: its pending activities with attempts and last errors."""
        try:
            handle = await self._handle(run)
            found = await handle.describe(rpc_timeout=timedelta(seconds=LOOK_SECONDS))
        except (RPCError, RuntimeError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                raise MissingError("Temporal has no such run", reason="not_started") from error
            _away(error)
        pending = [
            {
                "activity": each.activity_type.name,
                "attempt": each.attempt,
                "state": each.state,
                "last_error": each.last_failure.message or None,
            }
            for each in found.raw_description.pending_activities
        ]
        return {"status": None if found.status is None else found.status.name.lower(), "pending_activities": pending}

    async def _handle(self, run: UUID) -> WorkflowHandle[Any, Any]:
        return (await self._connected()).get_workflow_handle(workflow_id(run))

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connect(self._settings.keys(), lazy=True)
        return self._client


def _attributes(start: RunStart) -> TypedSearchAttributes | None:
    if not start.search_attributes:
        return None
    state = SearchAttributePair(SearchAttributeKey.for_keyword(STATE_ATTRIBUTE), RunState.STARTING.value)
    purpose = SearchAttributePair(SearchAttributeKey.for_keyword(PURPOSE_ATTRIBUTE), start.purpose)
    return TypedSearchAttributes((state, purpose))


def _without_attributes(start: RunStart) -> RunStart:
    return start.model_copy(update={"search_attributes": False})


def _away(error: Exception) -> NoReturn:
    raise TransientError(f"Temporal does not answer: {error}", reason=AWAY) from error
