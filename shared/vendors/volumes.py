"""Files in Unity Catalog Volumes, streamed both ways by the Files API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shared.contract.errors import LockkeeperError, MissingError, TransientError
from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_PIECE_BYTES = 256 * 1024
FULL = "storage_full"
_FULL_WORDS = frozenset({"insufficient_storage", "resource_exhausted", "quota_exceeded"})


@dataclass(frozen=True, slots=True)
class Download:
    """An open file of a Volume: its size if the service told it, and its bytes in pieces."""

    size: int | None
    pieces: AsyncIterator[bytes]


class Volumes:
    """Uploads and downloads; memory stays at one piece, whatever the size of the file."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def upload(self, path: str, file: Path) -> None:
        """Store a local file under a new path and make sure that all of it arrived.

        Raises TransientError, with reason `storage_full` when there is no room, RejectedError or MissingError.
        """
        try:
            await self._workspace.call(lambda client: _upload(client, path, file))
        except LockkeeperError as error:
            if error.reason in _FULL_WORDS:
                raise TransientError(error.message, reason=FULL) from error
            raise

    async def download(self, path: str) -> Download:
        """Open a document's file. Raises MissingError when there is none, TransientError when the Volume is away."""
        try:
            size, contents = await self._workspace.call(lambda client: _open(client, path))
        except MissingError as error:
            raise MissingError("This document's file is not in the Volume any more.") from error
        return Download(size, _pieces(contents))

    async def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is fine."""
        with suppress(MissingError):
            await self._workspace.call(lambda client: client.files.delete(path))


def _upload(client: WorkspaceClient, path: str, file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as contents:
        client.files.upload(path, contents, overwrite=False, use_parallel=False)
    # A service that stored half of a body has answered 200 before.
    stored = client.files.get_metadata(path).content_length
    if stored is not None and stored != size:
        client.files.delete(path)
        raise TransientError(f"the Volume stored {stored} of {size} bytes", reason="incomplete")


def _open(client: WorkspaceClient, path: str) -> tuple[int | None, BinaryIO]:
    answer = client.files.download(path)
    if answer.contents is None:
        raise MissingError(f"{path} has no contents")
    return answer.content_length, answer.contents


async def _pieces(contents: BinaryIO) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(contents.read, _PIECE_BYTES):
            yield piece
    finally:
        await asyncio.to_thread(contents.close)
