"""`/documents/{id}/pages`: a page of a document as people see it, with the place of what was read there."""

from __future__ import annotations

import base64
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from services.console.gateways.pages import PageViewer
from services.console.messages.answers import PageView
from services.console.routes.given import API, PROBLEMS, Json
from services.console.storage.documents import DocumentStorage
from shared.contract.errors import MissingError, RejectedError


class ViewingRoutes:
    """The one path."""

    def __init__(self, storage: DocumentStorage, viewer: PageViewer) -> None:
        self._storage = storage
        self._viewer = viewer

    def router(self) -> APIRouter:
        """The path and its answer."""
        router = APIRouter(prefix=API, tags=["documents"], responses=PROBLEMS)
        router.add_api_route(
            "/documents/{document_id}/pages/{page}", self.page, methods=["GET"], response_model=PageView
        )
        return router

    async def page(
        self, document_id: UUID, page: Annotated[int, Path(ge=1, le=100_000)],
        text: Annotated[str, Query(max_length=2000, description="words to mark on the page")] = "",
    ) -> Response:  # fmt: skip
        """A page as a picture, and where the words stand on it, as parts of its width and height."""
        row = await self._storage.read_document(document_id)
        if row is None:
            raise MissingError(f"There is no document {document_id}.")
        drawn = await self._viewer.draw(document_id, row["volume_path"], page, text)
        if drawn is None:
            raise RejectedError("This page cannot be drawn; open the document itself.", reason="page_unreadable")
        image = f"data:image/jpeg;base64,{base64.b64encode(drawn.image).decode()}"
        shown = {"page": page, "pages": drawn.pages, "width": drawn.width, "height": drawn.height, "marks": drawn.marks}
        return Json({**shown, "image": image})
