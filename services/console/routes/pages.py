"""The pages: templates around small ES modules, everything from here and nothing from elsewhere."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any
from uuid import UUID

import jinja2
from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from services.console.settings import ConsoleSettings

_WEB = files("services.console").joinpath("web")
_FOREVER = "public, max-age=31536000, immutable"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the pages, in memory."""

    content: bytes
    media_type: str


def static_files() -> dict[str, StaticFile]:
    """All static files by name."""
    return {
        entry.name: StaticFile(entry.read_bytes(), _media_type(entry)) for entry in _WEB.joinpath("static").iterdir()
    }


def _media_type(entry: Traversable) -> str:
    suffix = f".{entry.name.rpartition('.')[2]}"
    return _TYPES.get(suffix) or mimetypes.guess_type(entry.name)[0] or "application/octet-stream"


def _read_template(name: str) -> str | None:
    entry = _WEB.joinpath("templates", name)
    return entry.read_text(encoding="utf-8") if entry.is_file() else None


class Templates:
    """Renders the templates; `asset` in them gives the address of a static file of this very version."""

    def __init__(self, release: str) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(_read_template), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._environment.globals["asset"] = lambda name: f"/static/{release}/{name}"

    def page(self, template: str, **values: Any) -> HTMLResponse:
        """The page as an answer."""
        return HTMLResponse(self._environment.get_template(template).render(**values))


def release_of(static: dict[str, StaticFile]) -> str:
    """A name for exactly these files; it stands in their addresses, so browsers may keep them for ever."""
    digest = hashlib.sha256()
    for name in sorted(static):
        digest.update(name.encode() + b"\0" + static[name].content)
    return digest.hexdigest()[:16]


class PageRoutes:
    """The pages, and `/static`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._static = static_files()
        self._release = release_of(self._static)
        self.templates = Templates(self._release)

    def router(self) -> APIRouter:
        """Paths of the pages; they are no part of the API's reference."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        for path, page in (
            ("/", self.board), ("/tasks", self.tasks), ("/tasks/{task_id}", self.task),
            ("/batches/{batch}", self.batch), ("/upload", self.upload), ("/agents", self.agents),
            ("/costs", self.costs), ("/audit", self.audit),
            ("/static/{release}/{name}", self.static), ("/favicon.ico", self.icon),
        ):  # fmt: skip
            router.add_api_route(path, page, methods=["GET", "HEAD"])
        return router

    async def board(self) -> Response:
        """The overview."""
        return self.templates.page("board.html", max_document_bytes=self._settings.max_document_bytes)

    async def tasks(self) -> Response:
        """The tasks, with filters and actions on many."""
        return self.templates.page("tasks.html", batch="")

    async def batch(self, batch: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]) -> Response:
        """The tasks of one upload of many files."""
        return self.templates.page("tasks.html", batch=batch)

    async def task(self, task_id: UUID) -> Response:
        """One task."""
        return self.templates.page("task.html", task_id=str(task_id), shows_traces=bool(self._settings.tracking_uri))

    async def upload(self) -> Response:
        """Uploads by the hundred."""
        return self.templates.page("upload.html", max_document_bytes=self._settings.max_document_bytes)

    async def agents(self) -> Response:
        """The agents and their settings."""
        return self.templates.page("agents.html")

    async def costs(self) -> Response:
        """What was spent."""
        return self.templates.page("costs.html")

    async def audit(self) -> Response:
        """What operators did."""
        return self.templates.page("audit.html")

    async def static(self, release: str, name: str) -> Response:
        """A static file. An older page may ask under its own release; it gets what is there, not to be kept."""
        file = self._static.get(name)
        if file is None:
            raise HTTPException(404)
        caching = _FOREVER if release == self._release else "no-cache"
        return Response(file.content, media_type=file.media_type, headers={"Cache-Control": caching})

    async def icon(self) -> Response:
        """Where browsers look for an icon by themselves."""
        return RedirectResponse(f"/static/{self._release}/icon.svg", 308)
