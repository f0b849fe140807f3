"""Documents: in by upload, out by download."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import structlog
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from services.console.gateways.pages import Files
from services.console.gateways.receiving import Limits, ReceivedFile, Receiver
from services.console.messages.answers import Document, UploadAnswer
from services.console.metrics import DOCUMENT_BYTES, DOCUMENTS
from services.console.policy.documents import display_name, message_of, readable_bytes, volume_path
from services.console.routes.given import API, PROBLEMS, Actor, Json
from services.console.settings import ConsoleSettings
from services.console.storage.documents import DocumentStorage, NewDocument
from shared.contract.errors import LockkeeperError, MissingError, TransientError
from shared.contract.ids import uuid7
from shared.contract.text import clean_text
from shared.runtime.http import problem
from shared.vendors.volumes import FULL, Volumes

log = structlog.get_logger()

_LONGEST_CUSTOMER = 200
_RETRY_SECONDS = 5
# Sandboxed, so that nothing in a hostile file acts with our origin. Chromium's viewer shows no sandboxed
# document, so the inline form forbids everything to the document itself instead.
_SAVED_POLICY = "default-src 'none'; sandbox"
_INLINE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; object-src 'self'; frame-ancestors 'self'"
_MULTIPART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "customer": {"type": "string"},
                    },
                }
            }
        },
    }
}


class Intake:
    """Takes received files into the Volume and makes them known."""

    def __init__(self, storage: DocumentStorage, files: Files, settings: ConsoleSettings) -> None:
        self._storage = storage
        self._volumes = files.volumes
        self._counter = files.counter
        self._settings = settings
        self._transfers = asyncio.Semaphore(settings.upload_threads)
        self.limits = Limits(settings.max_document_bytes, settings.max_upload_bytes, settings.max_upload_files)

    async def keep(self, file: ReceivedFile, actor: str, customer: str | None) -> dict[str, Any]:
        """The document that a received file became. Raises TransientError when it could not be stored."""
        name = display_name(file.name)
        same = await self._storage.find_same_document(file.sha256, name, actor, customer)
        if same is not None:
            return {**same, "reused": True}
        if file.path is None:
            raise TransientError("the spooled file is gone", reason="interrupted")
        pages = await self._counter.count(file.path)
        document_id = uuid7()
        path = volume_path(self._settings.volume, document_id)
        async with self._transfers:
            await self._volumes.upload(path, file.path)
        row, is_new = await self._storage.add_document(
            NewDocument(document_id, name, path, file.sha256, file.bytes, pages, customer, actor)
        )
        if not is_new:
            await self._forget(path)
            return {**row, "reused": True}
        DOCUMENT_BYTES.inc(file.bytes)
        return {**row}

    async def _forget(self, path: str) -> None:
        try:
            await self._volumes.delete(path)
        except LockkeeperError as error:
            log.warning("delete_copy_failed", path=path, error=error.message)


class DocumentRoutes:
    """`/documents`."""

    def __init__(self, intake: Intake, storage: DocumentStorage, volumes: Volumes, settings: ConsoleSettings) -> None:
        self._intake = intake
        self._storage = storage
        self._volumes = volumes
        self._settings = settings

    def router(self) -> APIRouter:
        """Paths and their answers."""
        router = APIRouter(prefix=API, tags=["documents"], responses=PROBLEMS)
        router.add_api_route(
            "/documents", self.upload, methods=["POST"], status_code=201, response_model=UploadAnswer,
            openapi_extra=_MULTIPART, max_body_size=self._settings.max_upload_bytes,
        )  # fmt: skip
        router.add_api_route("/documents/{document_id}", self.show, methods=["GET"], response_model=Document)
        router.add_api_route(
            "/documents/{document_id}/content", self.download, methods=["GET"], response_class=StreamingResponse
        )
        return router

    async def upload(self, request: Request, actor: Actor) -> Response:
        """Upload one or many PDFs. Files that are refused are listed with their reason; the good ones are kept."""
        receiver = Receiver(request.headers.get("content-type", ""), self._settings.spool_dir, self._intake.limits)
        try:
            await receiver.receive(_body(request))
            customer = clean_text(receiver.fields.get("customer", ""))[0].strip()[:_LONGEST_CUSTOMER] or None
            outcomes = await asyncio.gather(*(_kept(self._intake, file, actor, customer) for file in receiver.files))
        finally:
            receiver.discard()
        documents = [document for document, _ in outcomes if document is not None]
        refused = [
            _refused(file, reason, self._settings)
            for file, (_, reason) in zip(receiver.files, outcomes, strict=True)
            if reason is not None
        ]
        DOCUMENTS.labels("kept").inc(len(documents))
        for each in refused:
            DOCUMENTS.labels(each["reason"]).inc()
        return Json({"documents": documents, "refused": refused}, 201) if documents else _none_kept(refused)

    async def show(self, document_id: UUID) -> Response:
        """What is known of a document."""
        return Json(dict(await self._found(document_id)))

    async def download(
        self, document_id: UUID, inline: Annotated[bool, Query(description="show it instead of saving it")] = False
    ) -> Response:
        """The bytes of a document."""
        row = await self._found(document_id)
        content = await self._volumes.download(row["volume_path"])
        headers = {
            "Content-Disposition": f"{'inline' if inline else 'attachment'}; {_filename(row['name'])}",
            "Content-Security-Policy": _INLINE_POLICY if inline else _SAVED_POLICY,
            "Content-Length": str(row["bytes"]),
        }
        return StreamingResponse(content.pieces, headers=headers, media_type="application/pdf")

    async def _found(self, document_id: UUID) -> Any:
        row = await self._storage.read_document(document_id)
        if row is None:
            raise MissingError(f"There is no document {document_id}.")
        return row


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        yield chunk


async def _kept(
    intake: Intake, file: ReceivedFile, actor: str, customer: str | None
) -> tuple[dict[str, Any] | None, str | None]:
    """The document, or the reason why there is none."""
    if file.refusal is not None:
        return None, file.refusal
    try:
        return await intake.keep(file, actor, customer), None
    except LockkeeperError as error:
        log.warning("keep_document_failed", reason=error.reason, error=error.message)
        return None, "storage_full" if error.reason == FULL else "storage_unavailable"


def _refused(file: ReceivedFile, reason: str, settings: ConsoleSettings) -> dict[str, Any]:
    limit = settings.max_upload_files if reason == "too_many_files" else readable_bytes(settings.max_document_bytes)
    return {"name": display_name(file.name), "reason": reason, "message": message_of(reason, limit=limit)}


def _none_kept(refused: list[dict[str, Any]]) -> Response:
    """The answer when no file was good: its status is that of their common reason."""
    reasons = {each["reason"] for each in refused}
    headers: dict[str, str] = {}
    if not refused:
        return problem(422, "No file", "The form holds no file.", reason="no_file", documents=[], refused=[])
    if reasons == {"storage_full"}:
        status, title, reason = 507, "No space left", "storage_full"
    elif reasons & {"storage_unavailable", "storage_full"}:
        status, title, reason = 503, "Not available now", "storage_unavailable"
        headers["Retry-After"] = str(_RETRY_SECONDS)
    elif reasons == {"too_large"}:
        status, title, reason = 413, "Too large", "too_large"
    else:
        status, title, reason = 422, "No file was kept", next(iter(reasons)) if len(reasons) == 1 else "refused"
    detail = "; ".join(f"{each['name'][:80]}: {each['message']}" for each in refused[:5])
    return problem(status, title, detail, headers=headers, reason=reason, documents=[], refused=refused)


def _filename(name: str) -> str:
    """The name for a Content-Disposition header: ASCII for the old, UTF-8 for the rest (RFC 6266)."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\/%' else "_" for each in name)
    return f"filename=\"{plain[:150]}\"; filename*=UTF-8''{quote(name[:200], safe='')}"
