"""The files of every Volume: an index of paths in the store, the bytes in blobs beside it.

A path is only a key of the index and never becomes part of a file name, so a name may hold any characters
and any length, and no path leads outside. A blob is written under a new name first and put into the index
when it is complete: readers see the old file or the new one, and a killed upload leaves no trace.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from deploy.local.workspace.operation import ApiError, JsonObject, invalid_parameter
from deploy.local.workspace.run_record import now_ms
from deploy.local.workspace.store import Store

_WRITE_BYTES = 1024 * 1024
# /Volumes/<catalog>/<schema>/<volume>: made on first use, never listed as a directory of its own.
_ROOT_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory of a Volume."""

    path: str
    name: str
    blob: Path | None
    size: int
    modified_ms: int

    @property
    def is_directory(self) -> bool:
        """A directory has no bytes."""
        return self.blob is None

    def shown(self) -> JsonObject:
        """As in a directory listing."""
        shown: JsonObject = {"path": self.path, "name": self.name, "is_directory": self.is_directory}
        if not self.is_directory:
            shown |= {"file_size": self.size, "last_modified": self.modified_ms}
        return shown


def checked_path(path: str) -> str:
    """The path in its one spelling, or 400: absolute, inside a Volume, without dot segments and NUL."""
    segments = path.strip("/").split("/")
    if "\0" in path or any(segment in {"", ".", ".."} for segment in segments):
        raise invalid_parameter(f"Invalid path: {path!r}")
    if segments[0] != "Volumes" or len(segments) < _ROOT_SEGMENTS:
        raise invalid_parameter(f"Invalid path: {path!r} is not inside /Volumes/<catalog>/<schema>/<volume>")
    return "/" + "/".join(segments)


class Volumes:
    """Reads and writes the files of all Volumes."""

    def __init__(self, *, store: Store, blob_dir: Path) -> None:
        self._store = store
        self._blob_dir = blob_dir
        self._upload_dir = blob_dir / "uploads"
        self._copy_dir = blob_dir / "copies"
        shutil.rmtree(self._upload_dir, ignore_errors=True)
        for directory in (self._upload_dir, self._copy_dir):
            directory.mkdir(parents=True, exist_ok=True)

    def entry(self, path: str) -> Entry | None:
        """The file or directory at a path; the root of a Volume always exists."""
        row = self._store.row("SELECT path, name, blob, size, modified_ms FROM volume_entries WHERE path = ?", path)
        if row is not None:
            return self._entry(row)
        if path.count("/") == _ROOT_SEGMENTS:
            return Entry(path, path.rpartition("/")[2], None, 0, 0)
        return None

    def file(self, path: str) -> Entry:
        """The file at a path, or 404."""
        entry = self.entry(path)
        if entry is None or entry.is_directory:
            raise ApiError(404, "NOT_FOUND", f"The file being accessed is not found: {path}")
        return entry

    def directory(self, path: str) -> Entry:
        """The directory at a path, or 404."""
        entry = self.entry(path)
        if entry is None or not entry.is_directory:
            raise ApiError(404, "NOT_FOUND", f"The directory being accessed is not found: {path}")
        return entry

    def children(self, path: str, limit: int, after: str) -> Sequence[Entry]:
        """What lies directly in a directory, by name, beginning after a name."""
        rows = self._store.rows(
            "SELECT path, name, blob, size, modified_ms FROM volume_entries"
            " WHERE parent = ? AND name > ? ORDER BY name LIMIT ?",
            path, after, limit,
        )  # fmt: skip
        return [self._entry(row) for row in rows]

    def make_directory(self, path: str) -> None:
        """Make a directory and every one above it; one that exists is fine."""
        segments = path.strip("/").split("/")
        with self._store.transaction() as db:
            for length in range(_ROOT_SEGMENTS + 1, len(segments) + 1):
                parent, name = "/" + "/".join(segments[: length - 1]), segments[length - 1]
                found = self.entry(f"{parent}/{name}")
                if found is not None and not found.is_directory:
                    raise ApiError(409, "ALREADY_EXISTS", f"A file is in the way: {parent}/{name}")
                db.execute(
                    "INSERT OR IGNORE INTO volume_entries VALUES (?, ?, ?, NULL, 0, ?)",
                    (f"{parent}/{name}", parent, name, now_ms()),
                )

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self.directory(path)
        if self.children(path, 1, ""):
            raise ApiError(400, "FILES_API_DIRECTORY_IS_NOT_EMPTY", f"The directory is not empty: {path}")
        self._store.execute("DELETE FROM volume_entries WHERE path = ?", path)

    def remove_file(self, path: str) -> None:
        """Remove a file."""
        entry = self.file(path)
        self._store.execute("DELETE FROM volume_entries WHERE path = ?", path)
        self._unlink(entry)

    def part_of_upload(self, upload: str, number: int) -> Path:
        """Where one part of a multipart upload is kept until the upload is complete."""
        return self._upload_dir / f"{upload}.{number}"

    def drop_parts(self, upload: str) -> None:
        """Remove the parts of an upload."""
        for part in self._upload_dir.glob(f"{upload}.*"):
            part.unlink(missing_ok=True)

    async def receive(self, chunks: AsyncIterator[bytes], *, full_disk: bool = False) -> Path:
        """Stream bytes to a new blob that no path names yet; memory stays at one piece of 1 MiB."""
        blob = self._upload_dir / uuid.uuid4().hex
        write = _no_space_left if full_disk else _write
        buffer = bytearray()
        try:
            with blob.open("xb") as file:
                async for chunk in chunks:
                    buffer += chunk
                    if len(buffer) >= _WRITE_BYTES:
                        await asyncio.to_thread(write, file, buffer)
                        buffer = bytearray()
                write(file, buffer)
        except OSError as error:
            blob.unlink(missing_ok=True)
            raise _storage_error(error) from error
        except BaseException:
            blob.unlink(missing_ok=True)
            raise
        return blob

    async def join(self, parts: Sequence[Path]) -> Path:
        """One new blob out of the parts of an upload."""
        blob = self._upload_dir / uuid.uuid4().hex
        try:
            await asyncio.to_thread(_concatenate, parts, blob)
        except OSError as error:
            blob.unlink(missing_ok=True)
            raise _storage_error(error) from error
        return blob

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """409 when a file may not be written here: a directory, or a file that is to be kept."""
        before = self.entry(path)
        if before is not None and (before.is_directory or not overwrite):
            raise ApiError(409, "ALREADY_EXISTS", "The file being created already exists.")

    def publish(self, path: str, received: Path, *, overwrite: bool) -> None:
        """Let a path name a received blob; 409 when it exists and may not be overwritten."""
        blob = self._blob_dir / received.name
        before = self.entry(path)
        parent, _, name = path.rpartition("/")
        try:
            self.check_free(path, overwrite=overwrite)
            self.make_directory(parent)
            size = received.stat().st_size
            received.rename(blob)
        except BaseException:
            received.unlink(missing_ok=True)
            raise
        self._store.execute(
            "INSERT OR REPLACE INTO volume_entries VALUES (?, ?, ?, ?, ?, ?)",
            path, parent, name, blob.name, size, now_ms(),
        )  # fmt: skip
        if before is not None:
            self._unlink(before)

    def local_copy(self, path: str) -> Path:
        """A readable local file with the bytes and the ending of a Volume file, for code that must be a file."""
        entry = self.file(checked_path(path))
        assert entry.blob is not None  # noqa: S101 - file() answers files only
        digest = hashlib.sha256(path.encode()).hexdigest()[:16]
        copy = self._copy_dir / f"{digest}{Path(entry.name).suffix[:16]}"
        shutil.copyfile(entry.blob, copy)
        return copy

    def _entry(self, row: tuple[str, str, str | None, int, int]) -> Entry:
        path, name, blob, size, modified_ms = row
        return Entry(path, name, None if blob is None else self._blob_dir / blob, size, modified_ms)

    def _unlink(self, entry: Entry) -> None:
        if entry.blob is not None:
            entry.blob.unlink(missing_ok=True)


def _write(file: BinaryIO, piece: bytearray) -> None:
    file.write(piece)


def _no_space_left(_: BinaryIO, __: bytearray) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _concatenate(parts: Sequence[Path], target: Path) -> None:
    with target.open("xb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, _WRITE_BYTES)


def _storage_error(error: OSError) -> ApiError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return ApiError(507, "INSUFFICIENT_STORAGE", "No space left for the file.")
    return ApiError(500, "INTERNAL_ERROR", f"The file could not be stored: {error.strerror}")
