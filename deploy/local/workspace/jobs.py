"""Doubles the Jobs API 2.2: ``/api/2.2/jobs`` and ``/api/2.2/jobs/runs`` (2.0 and 2.1 paths answer alike).

What a run does is in ``runs.py``; this room reads requests and shows records. Idempotency tokens are
remembered for ever: a token seen before answers with the run it started, ended or not.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from deploy.local.workspace.operation import (
    ApiError,
    JsonObject,
    Operation,
    integer,
    invalid_parameter,
    json_body,
    json_response,
)
from deploy.local.workspace.orders import only_task
from deploy.local.workspace.run_record import Run, now_ms
from deploy.local.workspace.runs import RunEngine
from deploy.local.workspace.store import Store

_MAX_TOKEN_CHARACTERS = 64
_MAX_PARAMETER_BYTES = 10_000
_MAX_OUTPUT_BYTES = 5 * 1024 * 1024
_JOBS_A_PAGE = 100
_RUNS_A_PAGE = 25
_DEFAULT_PAGE = 20
_MAX_CONCURRENT_RUNS = 1000
_UNLIMITED = 1_000_000


class JobsRoom:
    """Saved jobs and their runs."""

    def __init__(self, *, store: Store, engine: RunEngine) -> None:
        self._store = store
        self._engine = engine

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        calls = [
            ("POST", "create", self.create), ("POST", "reset", self.reset), ("POST", "update", self.update),
            ("POST", "delete", self.delete), ("GET", "get", self.get), ("GET", "list", self.list),
            ("POST", "run-now", self.run_now), ("POST", "runs/submit", self.submit),
            ("GET", "runs/get", self.get_run), ("GET", "runs/list", self.list_runs),
            ("GET", "runs/get-output", self.get_output), ("POST", "runs/cancel", self.cancel),
            ("POST", "runs/cancel-all", self.cancel_all), ("POST", "runs/delete", self.delete_run),
        ]  # fmt: skip
        return [
            Operation(f"jobs.{path.replace('/', '_').replace('-', '_')}", method, f"/api/{version}/jobs/{path}", answer)
            for version in ("2.2", "2.1", "2.0")
            for method, path, answer in calls
        ]

    # -- jobs

    async def create(self, request: Request) -> Response:
        """Save a job."""
        settings = await json_body(request)
        only_task(settings)
        _checked_concurrency(settings)
        job_id = _new_id()
        self._store.add_job(job_id, now_ms(), request.state.client_id, {"format": "MULTI_TASK", **settings})
        return json_response({"job_id": job_id})

    async def reset(self, request: Request) -> Response:
        """Replace all settings of a job."""
        body = await json_body(request)
        job = self._job(body.get("job_id"))
        settings = body.get("new_settings") or {}
        only_task(settings)
        _checked_concurrency(settings)
        self._store.save_job(job["job_id"], {"format": "MULTI_TASK", **settings})
        return json_response({})

    async def update(self, request: Request) -> Response:
        """Replace the named settings of a job; tasks are merged by their key."""
        body = await json_body(request)
        job = self._job(body.get("job_id"))
        settings = {**job["settings"], **(body.get("new_settings") or {})}
        for name in body.get("fields_to_remove") or []:
            settings.pop(name, None)
        only_task(settings)
        _checked_concurrency(settings)
        self._store.save_job(job["job_id"], settings)
        return json_response({})

    async def delete(self, request: Request) -> Response:
        """Remove a job; its runs stay readable."""
        job = self._job((await json_body(request)).get("job_id"))
        self._store.execute("DELETE FROM jobs WHERE job_id = ?", job["job_id"])
        return json_response({})

    async def get(self, request: Request) -> Response:
        """One job."""
        return json_response(self._job(request.query_params.get("job_id")))

    async def list(self, request: Request) -> Response:
        """Jobs, newest first, by exact name if one is given."""
        limit, offset = _page(request, _JOBS_A_PAGE)
        found = self._store.jobs(request.query_params.get("name"), limit + 1, offset)
        return json_response(_paged("jobs", found, limit, offset))

    # -- starting runs

    async def run_now(self, request: Request) -> Response:
        """Start a run of a saved job."""
        body = await json_body(request)
        token = _token(body)
        if token and (known := self._known_run(token)):
            return json_response({"run_id": known.run_id, "number_in_job": known.number_in_job})
        job = self._job(body.get("job_id"))
        settings = job["settings"]
        queue = body.get("queue") or settings.get("queue") or {}
        run = self._started(
            request,
            settings,
            job_id=job["job_id"],
            run_type="JOB_RUN",
            run_name=str(settings.get("name", "Untitled")),
            parameters={**_defaults(settings), **_parameters(body)},
            idempotency_token=token,
            max_concurrent_runs=_checked_concurrency(settings),
            queues=bool(queue.get("enabled")),
        )
        return json_response({"run_id": run.run_id, "number_in_job": run.number_in_job})

    async def submit(self, request: Request) -> Response:
        """Start a one-time run without a saved job; it has neither tags nor job parameters."""
        body = await json_body(request)
        token = _token(body)
        if token and (known := self._known_run(token)):
            return json_response({"run_id": known.run_id})
        run = self._started(
            request,
            body,
            job_id=_new_id(),
            run_type="SUBMIT_RUN",
            run_name=str(body.get("run_name", "Untitled")),
            idempotency_token=token,
            max_concurrent_runs=_UNLIMITED,
        )
        return json_response({"run_id": run.run_id})

    def _started(self, request: Request, settings: JsonObject, **values: Any) -> Run:
        run = Run(
            run_id=_new_id(),
            task_run_id=_new_id(),
            task=only_task(settings),
            creator=request.state.client_id,
            tags=settings.get("tags") or {},
            timeout_seconds=int(settings.get("timeout_seconds") or 0),
            **values,
        )
        self._store.add_run(run)
        self._engine.accept(run)
        return run

    def _known_run(self, token: str) -> Run | None:
        run_id = self._store.run_of_token(token)
        if run_id is None:
            return None
        run = self._store.run(run_id)
        if run is None:
            raise invalid_parameter(f"The run of idempotency token {token} was deleted.")
        return run

    # -- reading and ending runs

    async def get_run(self, request: Request) -> Response:
        """One run, by the id of the run or of its task."""
        return json_response(self._run(request.query_params.get("run_id")).shown(_origin(request)))

    async def list_runs(self, request: Request) -> Response:
        """Runs, newest first."""
        query = request.query_params
        limit, offset = _page(request, _RUNS_A_PAGE)
        conditions: list[tuple[str, object]] = [
            ("active = ?", 1) if query.get("active_only") == "true" else ("1 = ?", 1),
            ("active = ?", 0) if query.get("completed_only") == "true" else ("1 = ?", 1),
        ]
        for name, condition in (
            ("job_id", "job_id = ?"),
            ("start_time_from", "start_time >= ?"),
            ("start_time_to", "start_time <= ?"),
        ):
            if query.get(name):
                conditions.append((condition, integer(query.get(name), name)))
        if query.get("run_type"):
            conditions.append(("run_type = ?", query["run_type"]))
        where = " AND ".join(condition for condition, _ in conditions)
        found = self._store.runs(where, tuple(value for _, value in conditions), limit + 1, offset)
        with_tasks = query.get("expand_tasks") == "true"
        shown = [run.shown(_origin(request), with_tasks=with_tasks) for run in found]
        return json_response(_paged("runs", shown, limit, offset))

    async def get_output(self, request: Request) -> Response:
        """Output and error of a task run; the id of the run around it is refused, as it has no output."""
        run_id = integer(request.query_params.get("run_id"), "run_id")
        run = self._run(run_id)
        if run_id != run.task_run_id:
            raise invalid_parameter(
                "Retrieving the output of runs with multiple tasks is not supported. "
                "Please retrieve the output of each individual task run instead."
            )
        logs, truncated = _tail(self._engine.log_of(run))
        output: JsonObject = {"metadata": run.shown(_origin(request)), "logs": logs, "logs_truncated": truncated}
        if run.error is not None:
            output |= {"error": run.error, "error_trace": run.error_trace or ""}
        return json_response(output)

    async def cancel(self, request: Request) -> Response:
        """Ask a run to stop; a finished run keeps its result."""
        self._engine.cancel(self._run((await json_body(request)).get("run_id")).run_id)
        return json_response({})

    async def cancel_all(self, request: Request) -> Response:
        """Ask every active run of a job to stop."""
        job = self._job((await json_body(request)).get("job_id"))
        for run_id in self._engine.active_of(job["job_id"]):
            self._engine.cancel(run_id)
        return json_response({})

    async def delete_run(self, request: Request) -> Response:
        """Forget an ended run; its idempotency token stays reserved."""
        run = self._run((await json_body(request)).get("run_id"))
        if not run.is_terminal:
            raise ApiError(400, "INVALID_STATE", f"Run {run.run_id} is active and cannot be deleted.")
        self._store.delete_run(run.run_id)
        self._engine.log_of(run).unlink(missing_ok=True)
        return json_response({})

    def _job(self, job_id: object) -> JsonObject:
        number = integer(job_id, "job_id")
        job = self._store.job(number)
        if job is None:
            raise invalid_parameter(f"Job {number} does not exist.")
        return job

    def _run(self, run_id: object) -> Run:
        number = integer(run_id, "run_id")
        run = self._store.run(number)
        if run is None:
            raise invalid_parameter(f"Run {number} does not exist.")
        return run


def _new_id() -> int:
    # Fifteen digits, as the real ones: they do not fit into 32 bits.
    return 10**14 + secrets.randbelow(9 * 10**14)


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _token(body: JsonObject) -> str | None:
    token = body.get("idempotency_token")
    if token is None:
        return None
    if not isinstance(token, str) or len(token) > _MAX_TOKEN_CHARACTERS:
        raise invalid_parameter(f"idempotency_token is longer than {_MAX_TOKEN_CHARACTERS} characters")
    return token


def _parameters(body: JsonObject) -> dict[str, str]:
    given = body.get("job_parameters") or body.get("python_named_params") or {}
    parameters = {str(name): str(value) for name, value in given.items()}
    if sum(len(name.encode()) + len(value.encode()) for name, value in parameters.items()) > _MAX_PARAMETER_BYTES:
        raise invalid_parameter(f"The parameters of the run are larger than {_MAX_PARAMETER_BYTES} bytes.")
    return parameters


def _defaults(settings: JsonObject) -> dict[str, str]:
    return {str(one["name"]): str(one.get("default", "")) for one in settings.get("parameters") or []}


def _checked_concurrency(settings: JsonObject) -> int:
    limit = settings.get("max_concurrent_runs", 1)
    if not isinstance(limit, int) or not 0 <= limit <= _MAX_CONCURRENT_RUNS:
        raise invalid_parameter(f"max_concurrent_runs must be between 0 and {_MAX_CONCURRENT_RUNS}")
    return limit


def _page(request: Request, most: int) -> tuple[int, int]:
    limit = integer(request.query_params.get("limit", str(_DEFAULT_PAGE)), "limit") or most
    if not 0 < limit <= most:
        raise invalid_parameter(f"limit must be between 1 and {most}")
    offset = request.query_params.get("page_token") or request.query_params.get("offset") or "0"
    return limit, integer(offset, "page_token")


def _paged(name: str, found: Sequence[JsonObject], limit: int, offset: int) -> JsonObject:
    page: JsonObject = {name: found[:limit], "has_more": len(found) > limit}
    if len(found) > limit:
        page["next_page_token"] = str(offset + limit)
    return page


def _tail(path: Path) -> tuple[str, bool]:
    if not path.exists():
        return "", False
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MAX_OUTPUT_BYTES))
        return file.read().decode(errors="replace"), size > _MAX_OUTPUT_BYTES
