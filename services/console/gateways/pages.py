"""Pages of documents: how many a spooled PDF has, and what one looks like, if that can be had quickly and safely."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from services.console.gateways.children import Child
from shared.vendors.volumes import Volumes
from shared.vendors.workspace import Workspace

_KEPT_FILES = 8
_WIDTH = 1100


class PageCounter:
    """Counts pages."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._child = Child("counting.py", timeout_seconds=timeout_seconds)

    async def count(self, file: Path) -> int | None:
        """The number of pages; None when the file is locked or damaged, or took too long."""
        answer = await self._child.ask(str(file))
        return int(answer) if answer and answer.strip() else None

    async def close(self) -> None:
        """End the child process."""
        await self._child.close()


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page as a picture. `marks` are left, top, width and height of the words looked for, as parts of the page."""

    image: bytes
    pages: int
    width: int
    height: int
    marks: list[list[float]]


class PageViewer:
    """Draws pages of documents in the Volume; the last few files stay at hand."""

    def __init__(self, volumes: Volumes, *, timeout_seconds: float) -> None:
        self._volumes = volumes
        self._child = Child("rendering.py", timeout_seconds=timeout_seconds)
        self._folder = tempfile.TemporaryDirectory(prefix="lockkeeper-pages-", ignore_cleanup_errors=True)
        self._files: OrderedDict[UUID, asyncio.Task[Path]] = OrderedDict()

    async def draw(self, document: UUID, volume_path: str, page: int, wanted: str) -> DrawnPage | None:
        """One page; None when it cannot be drawn. Raises TransientError or MissingError of the Volume."""
        file = await self._at_hand(document, volume_path)
        asked = {"path": str(file), "number": page, "width": _WIDTH, "wanted": wanted}
        answer = await self._child.ask(json.dumps(asked))
        found = json.loads(answer) if answer else {}
        if "image" not in found:
            return None
        return DrawnPage(
            base64.b64decode(found["image"]), found["pages"], found["width"], found["height"], found["marks"]
        )

    async def close(self) -> None:
        """End the child process and forget the files."""
        await self._child.close()
        self._folder.cleanup()

    async def _at_hand(self, document: UUID, volume_path: str) -> Path:
        fetching = self._files.get(document)
        if fetching is None:
            fetching = self._files[document] = asyncio.create_task(self._fetch(document, volume_path))
        self._files.move_to_end(document)
        while len(self._files) > _KEPT_FILES:
            _, oldest = self._files.popitem(last=False)
            if oldest.done() and not oldest.cancelled() and oldest.exception() is None:
                oldest.result().unlink(missing_ok=True)
        try:
            # Whoever gives up must not end the fetching for the others.
            return await asyncio.shield(fetching)
        except Exception:
            with suppress(KeyError):
                del self._files[document]
            raise

    async def _fetch(self, document: UUID, volume_path: str) -> Path:
        file = Path(self._folder.name) / f"{document}.pdf"
        content = await self._volumes.download(volume_path)
        with file.open("wb") as spooled:
            async for piece in content.pieces:
                spooled.write(piece)
        return file


@dataclass(frozen=True, slots=True)
class Files:
    """What reads and keeps documents: the Volume, and the children that look into foreign files."""

    volumes: Volumes
    counter: PageCounter
    viewer: PageViewer

    @classmethod
    def over(cls, workspace: Workspace, *, count_seconds: float = 10, draw_seconds: float = 20) -> Files:
        """All of them over one workspace; the children start when they are first needed."""
        volumes = Volumes(workspace)
        viewer = PageViewer(volumes, timeout_seconds=draw_seconds)
        return cls(volumes, PageCounter(timeout_seconds=count_seconds), viewer)

    async def close(self) -> None:
        """End the children."""
        await self.counter.close()
        await self.viewer.close()
