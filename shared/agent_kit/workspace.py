"""The Databricks workspace as an agent sees it: a token, and files of a Volume. The SDK blocks: call it in a thread."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from shared.contract.errors import MisconfiguredError, RejectedError, TransientError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_CHUNK_BYTES = 1 << 20


def workspace_client() -> WorkspaceClient:
    """The client of this process: made once per identity, since each construction asks the workspace twice."""
    names = ("DATABRICKS_HOST", "DATABRICKS_CLIENT_ID", "DATABRICKS_CLIENT_SECRET", "DATABRICKS_TOKEN")
    return _client(tuple(os.environ.get(name, "") for name in names))


@lru_cache(maxsize=4)
def _client(identity: tuple[str, ...]) -> WorkspaceClient:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.core import Config

    if not identity[0]:
        raise MisconfiguredError("DATABRICKS_HOST is not set")
    try:
        # The default waits 300 s for a workspace that does not answer: longer than a lease.
        config = Config(retry_timeout_seconds=30, http_timeout_seconds=30)
        return WorkspaceClient(config=config)
    except Exception as error:
        raise TransientError(f"the workspace does not answer: {error}", reason="workspace_unavailable") from error


def bearer_token() -> str:
    """A valid OAuth access token of this process' identity."""
    try:
        header = workspace_client().config.authenticate()["Authorization"]
    except (OSError, ValueError, KeyError) as error:
        raise TransientError(f"the workspace gave no token: {error}", reason="workspace_unavailable") from error
    return header.removeprefix("Bearer ")


def download(volume_path: str, target: Path, *, expected_bytes: int | None, limit_bytes: int) -> str:
    """Stream a Volume's file to disk and return its SHA-256; RejectedError or TransientError, never half a file."""
    from databricks.sdk.errors.base import DatabricksError
    from databricks.sdk.errors.platform import NotFound, PermissionDenied

    digest = hashlib.sha256()
    size = 0
    try:
        stream = workspace_client().files.download(volume_path).contents
        if stream is None:
            raise TransientError("the workspace sent no file", reason="document_incomplete")
        with stream, target.open("wb") as file:
            while chunk := stream.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > limit_bytes:
                    raise RejectedError(f"the file is larger than {limit_bytes} bytes", reason="document_too_large")
                digest.update(chunk)
                file.write(chunk)
    except NotFound as error:
        raise RejectedError("the document is not in its Volume any more", reason="document_missing") from error
    except PermissionDenied as error:
        raise RejectedError("the agent may not read this Volume", reason="document_access_denied") from error
    except (DatabricksError, OSError, TimeoutError) as error:
        raise TransientError(f"the document could not be read: {error}", reason="workspace_unavailable") from error
    if expected_bytes is not None and size != expected_bytes:
        raise TransientError(f"{size} of {expected_bytes} bytes arrived", reason="document_incomplete")
    return digest.hexdigest()
