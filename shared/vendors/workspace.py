"""The Databricks workspace through `databricks-sdk`, kept off the event loop.

The SDK is synchronous and by default retries throttling for five minutes, so every call runs in a
bounded thread pool with a time budget of its own that is shorter than the lease of the work behind it.
Its errors become ours here: TransientError (try again later) or RejectedError (never works as it is).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from shared.contract.errors import LockkeeperError, MissingError, RejectedError, TransientError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

Result = TypeVar("Result")

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class Workspace:
    """One authenticated client with a thread pool; the client is made on first use, in a thread."""

    def __init__(self, *, threads: int = 8, retry_seconds: int = 10, http_seconds: int = 15) -> None:
        self._retry_seconds = retry_seconds
        self._http_seconds = http_seconds
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="workspace")
        self._client: WorkspaceClient | None = None
        self._making = threading.Lock()
        self.deadline_seconds = float(retry_seconds + http_seconds + 5)

    async def call(self, work: Callable[[WorkspaceClient], Result]) -> Result:
        """Run `work` with the client in a thread.

        Raises TransientError (with the service's own words), RejectedError, MissingError. A call that
        outlives the deadline raises TransientError with reason `deadline`: its effect is unknown.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: self._guarded(work))
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.deadline_seconds)
        except TimeoutError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise TransientError(
                f"the workspace did not answer within {self.deadline_seconds:.0f} s", reason="deadline"
            ) from None

    def close(self) -> None:
        """Let go of the threads; calls that still run end by their own time limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, work: Callable[[WorkspaceClient], Result]) -> Result:
        try:
            return work(self._connected())
        except LockkeeperError:
            raise
        except Exception as error:
            raise translate(error) from error

    def _connected(self) -> WorkspaceClient:
        with self._making:
            if self._client is None:
                from databricks.sdk import WorkspaceClient
                from databricks.sdk.core import Config

                self._client = WorkspaceClient(
                    config=Config(
                        retry_timeout_seconds=self._retry_seconds, http_timeout_seconds=self._http_seconds,
                        max_connection_pools=4, max_connections_per_pool=32,
                        product="lockkeeper", product_version="0.1.0",
                    )
                )  # fmt: skip
            return self._client


def translate(error: Exception) -> LockkeeperError:
    """Our error for one of the SDK's; what nobody foresaw counts as transient, so that nothing is lost."""
    import requests
    from databricks.sdk.errors import NotFound
    from databricks.sdk.errors.base import DatabricksError

    if isinstance(error, NotFound):
        return MissingError(str(error))
    if isinstance(error, DatabricksError):
        retry_after = getattr(error, "retry_after_secs", None)
        if _is_transient(error):
            return TransientError(str(error), reason=_word(error), retry_after_seconds=retry_after)
        return RejectedError(str(error), reason=_word(error))
    if isinstance(error, TimeoutError) and isinstance(error.__cause__, DatabricksError):
        # The SDK's own retries ran out; what the service said last is the reason, not the clock.
        return translate(error.__cause__)
    match error:
        case TimeoutError():
            ours = TransientError(str(error.__cause__ or error) or "timed out", reason="deadline")
        case requests.RequestException() | OSError():
            ours = TransientError(f"the workspace cannot be reached: {type(error).__name__}", reason="unreachable")
        case _:
            ours = TransientError(f"{type(error).__name__}: {error}", reason="workspace_error")
    return ours


def _is_transient(error: Exception) -> bool:
    from databricks.sdk import errors

    kinds = (errors.TooManyRequests, errors.TemporarilyUnavailable, errors.InternalError, errors.DeadlineExceeded)
    if isinstance(error, kinds):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(status, int) and status in _TRANSIENT_STATUS


def _word(error: Exception) -> str:
    code = getattr(error, "error_code", None)
    return str(code).lower() if code else "workspace_error"
