"""The pages under `/underwriting`: templates around small ES modules, everything from here."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from uuid import UUID

import jinja2
from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

_WEB = files("services.underwriting_api").joinpath("web")
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


class PageRoutes:
    """The list, one run, the figures."""

    def __init__(self) -> None:
        self._static = {entry.name: entry.read_bytes() for entry in _WEB.joinpath("static").iterdir()}
        digest = hashlib.sha256()
        for name in sorted(self._static):
            digest.update(name.encode() + b"\0" + self._static[name])
        self._release = digest.hexdigest()[:16]
        self._templates = jinja2.Environment(
            loader=jinja2.FunctionLoader(_template), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.globals["asset"] = lambda name: f"/underwriting/static/{self._release}/{name}"

    def router(self) -> APIRouter:
        """Paths of the pages; they are no part of the API's reference."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        router.add_api_route("/underwriting", self.runs, methods=["GET", "HEAD"])
        router.add_api_route("/underwriting/runs/{run_id}", self.run, methods=["GET", "HEAD"])
        router.add_api_route("/underwriting/metrics", self.figures, methods=["GET", "HEAD"])
        router.add_api_route("/underwriting/static/{release}/{name}", self.static, methods=["GET", "HEAD"])
        return router

    async def runs(self) -> Response:
        """The runs, and a form for a new one."""
        return self._page("runs.html")

    async def run(self, run_id: UUID) -> Response:
        """One run with its review."""
        return self._page("run.html", run_id=str(run_id))

    async def figures(self) -> Response:
        """Workflow and retry figures."""
        return self._page("figures.html")

    async def static(self, release: str, name: str) -> Response:
        """A static file; under another release's name it is not to be kept."""
        content = self._static.get(name)
        if content is None:
            raise HTTPException(404)
        caching = _FOREVER if release == self._release else "no-cache"
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(content, media_type=kind, headers={"Cache-Control": caching})

    def _page(self, template: str, **values: str) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(**values))


def _template(name: str) -> str | None:
    entry = _WEB.joinpath("templates", name)
    return entry.read_text(encoding="utf-8") if entry.is_file() else None
