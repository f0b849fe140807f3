"""Receives an upload of many files as it streams in: hashed on the way, spooled to disk, bounded in memory.

One file's trouble is its own: a refused file is read past and the next one goes on.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.console.policy.documents import SNIFFED_BYTES, refusal_of
from shared.contract.errors import RejectedError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_FLUSH_BYTES = 512 * 1024
_FIELD_BYTES = 10_000
_FILE_FIELDS = frozenset({"files", "file"})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one upload may bring."""

    file_bytes: int
    upload_bytes: int
    files: int


@dataclass
class ReceivedFile:
    """One file of an upload: spooled under `path`, or `refusal` says why not."""

    name: str
    path: Path | None = None
    bytes: int = 0
    sha256: str = ""
    refusal: str | None = None

    def discard(self) -> None:
        """Remove the spooled bytes."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass
class _Part:
    """The part that is being received."""

    name: str = ""
    file: ReceivedFile | None = None
    head: bytes = b""
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    buffer: bytearray = field(default_factory=bytearray)


class Receiver:
    """Takes one multipart body apart. Call `receive` once; `discard` afterwards, whatever happened."""

    def __init__(self, content_type: str, spool_dir: Path, limits: Limits) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise RejectedError("send the files as multipart/form-data", reason="not_multipart")
        self.files: list[ReceivedFile] = []
        self.fields: dict[str, str] = {}
        self._spool_dir = spool_dir
        self._limits = limits
        self._part: _Part | None = None
        self._done: list[_Part] = []
        self._header = (bytearray(), bytearray())
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": self._take,
            "on_part_end": self._end_part,
        }
        self._parser = MultipartParser(options[b"boundary"], callbacks)

    async def receive(self, chunks: AsyncIterator[bytes]) -> None:
        """Read the body to its end. Raises RejectedError for one that is no form or too large as a whole."""
        total = 0
        async for chunk in chunks:
            total += len(chunk)
            if total > self._limits.upload_bytes:
                raise RejectedError("the upload is too large as a whole; send fewer files", reason="too_large")
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise RejectedError(f"the form cannot be read: {error}", reason="bad_form") from error
            await self._flush()
        if self._part is not None and self._part.file is not None:
            self._part.file.refusal = "interrupted"

    def discard(self) -> None:
        """Remove everything that was spooled."""
        for file in self.files:
            file.discard()

    def _begin_part(self) -> None:
        self._part = _Part()

    def _end_header(self) -> None:
        name, value = (bytes(each) for each in self._header)
        for each in self._header:
            each.clear()
        if self._part is None or name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._part.name = _decoded(options.get(b"name", b""))
        # A file is what has a file's name, or stands where files belong.
        if b"filename" in options or self._part.name in _FILE_FIELDS:
            self._open_file(self._part, _decoded(options.get(b"filename", b"")))

    def _open_file(self, part: _Part, name: str) -> None:
        part.file = ReceivedFile(name)
        self.files.append(part.file)
        if len(self.files) > self._limits.files:
            part.file.refusal = "too_many_files"

    def _take(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part is None:
            return
        piece = data[start:end]
        if part.file is None:
            if len(part.buffer) + len(piece) > _FIELD_BYTES:
                raise RejectedError(f"the field {part.name[:50]!r} is too long", reason="bad_form")
            part.buffer += piece
            return
        part.file.bytes += len(piece)
        if part.file.bytes > self._limits.file_bytes:
            part.file.refusal = part.file.refusal or "too_large"
        if part.file.refusal is not None:
            part.buffer.clear()
            return
        if len(part.head) < SNIFFED_BYTES:
            part.head += piece[: SNIFFED_BYTES - len(part.head)]
            if len(part.head) == SNIFFED_BYTES and (refusal := refusal_of(part.head, part.file.bytes)):
                part.file.refusal = refusal
                return
        part.digest.update(piece)
        part.buffer += piece

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        if part.file is None:
            self.fields[part.name] = _decoded(bytes(part.buffer))
        elif not part.file.name and not part.file.bytes:
            # A form whose file field was left empty; it is no file at all.
            self.files.remove(part.file)
        else:
            part.file.refusal = part.file.refusal or refusal_of(part.head, part.file.bytes)
            part.file.sha256 = part.digest.hexdigest()
            self._done.append(part)

    async def _flush(self) -> None:
        done, self._done = self._done, []
        for part in done:
            await self._write(part)
        if self._part is not None and self._part.file is not None and len(self._part.buffer) >= _FLUSH_BYTES:
            await self._write(self._part)

    async def _write(self, part: _Part) -> None:
        file = part.file
        if file is None or file.refusal is not None or not part.buffer:
            return
        data, part.buffer = part.buffer, bytearray()
        try:
            if len(data) < _FLUSH_BYTES:
                self._spool(file, data)
            else:
                await asyncio.to_thread(self._spool, file, data)
        except OSError as error:
            file.discard()
            if error.errno not in _NO_ROOM:
                raise
            file.refusal = "storage_full"

    def _spool(self, file: ReceivedFile, data: bytearray) -> None:
        if file.path is None:
            descriptor, name = tempfile.mkstemp(prefix="lockkeeper-upload-", suffix=".pdf", dir=self._spool_dir)
            os.close(descriptor)
            file.path = Path(name)
        with file.path.open("ab") as spool:
            spool.write(data)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
