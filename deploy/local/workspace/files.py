"""Doubles the Files API of Unity Catalog Volumes: ``/api/2.0/fs`` and the pre-signed addresses it hands out.

Bodies are streamed to and from disk. Multipart uploads and downloads through signed addresses work as in the
cloud: coordinated here, transferred without a bearer token, refused in the cloud's own words when expired.
"""

from __future__ import annotations

import email.utils
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from deploy.local.workspace.faults import FaultBook
from deploy.local.workspace.operation import (
    ApiError,
    JsonObject,
    Operation,
    integer,
    invalid_parameter,
    json_body,
    json_response,
)
from deploy.local.workspace.signing import Signer
from deploy.local.workspace.volumes import Entry, Volumes, checked_path

_BYTES = "application/octet-stream"
_ENTRIES_A_PAGE = 1000
_UPLOAD_SECONDS = 24 * 3600.0
_SIGNED_SECONDS = 3600.0
_EXPIRED = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


class FilesRoom:
    """Files and directories of Volumes."""

    def __init__(self, *, volumes: Volumes, signer: Signer, faults: FaultBook) -> None:
        self._volumes = volumes
        self._signer = signer
        self._faults = faults

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        file, directory = "/api/2.0/fs/files{path:path}", "/api/2.0/fs/directories{path:path}"
        return [
            Operation("files.upload", "PUT", file, self.upload),
            Operation("files.download", "GET", file, self.download),
            Operation("files.metadata", "HEAD", file, self.download),
            Operation("files.delete", "DELETE", file, self.delete),
            Operation("files.multipart", "POST", file, self.multipart),
            Operation("files.make_directory", "PUT", directory, self.make_directory),
            Operation("files.list", "GET", directory, self.list),
            Operation("files.directory_metadata", "HEAD", directory, self.directory_metadata),
            Operation("files.delete_directory", "DELETE", directory, self.delete_directory),
            Operation("files.download_url", "POST", "/api/2.0/fs/create-download-url", self.download_url),
            Operation("files.part_urls", "POST", "/api/2.0/fs/create-upload-part-urls", self.part_urls),
            Operation("files.signed_download", "GET", "/signed/{token}", self.signed_download, public=True),
            Operation("files.signed_part", "PUT", "/signed/{token}", self.signed_part, public=True),
        ]

    # -- files

    async def upload(self, request: Request) -> Response:
        """Store the body as a file; an existing one is overwritten unless ``overwrite=false``."""
        path = _path(request)
        overwrite = request.query_params.get("overwrite", "true") != "false"
        self._volumes.check_free(path, overwrite=overwrite)
        received = await self._receive(request)
        self._volumes.publish(path, received, overwrite=overwrite)
        return Response(status_code=204)

    async def download(self, request: Request) -> Response:
        """The bytes of a file, or of a range of it; with HEAD only what is known about it."""
        return _sent(request, self._volumes.file(_path(request)))

    async def delete(self, request: Request) -> Response:
        """Remove a file."""
        self._volumes.remove_file(_path(request))
        return Response(status_code=204)

    async def download_url(self, request: Request) -> Response:
        """An address that gives the file away without a bearer token, until it expires."""
        path = checked_path(request.query_params.get("path", ""))
        self._volumes.file(path)
        token = self._signer.seal("download", {"path": path}, _seconds_until(request.query_params.get("expire_time")))
        return json_response({"url": f"{_origin(request)}/signed/{token}", "headers": []})

    async def signed_download(self, request: Request) -> Response:
        """What such an address answers."""
        claims = self._signer.open("download", request.path_params["token"])
        if claims is None:
            return Response(_EXPIRED, 403, media_type="application/xml")
        return _sent(request, self._volumes.file(claims["path"]))

    # -- uploads in parts

    async def multipart(self, request: Request) -> Response:
        """Begin, complete or abort an upload in parts."""
        path, action = _path(request), request.query_params.get("action")
        if action == "initiate-upload":
            overwrite = request.query_params.get("overwrite", "true") != "false"
            self._volumes.check_free(path, overwrite=overwrite)
            opened: JsonObject = {"path": path, "overwrite": overwrite, "upload": uuid.uuid4().hex}
            token = self._signer.seal("upload", opened, _UPLOAD_SECONDS)
            return json_response({"multipart_upload": {"session_token": token}})
        claims = self._opened_session(request.query_params.get("session_token"), path)
        if action == "complete-upload":
            await self._complete(claims, await json_body(request))
            return json_response({})
        if action == "abort-upload":
            self._volumes.drop_parts(claims["upload"])
            return json_response({})
        raise invalid_parameter(f"unknown action {action!r}")

    async def part_urls(self, request: Request) -> Response:
        """Signed addresses to which the parts of an upload are sent."""
        body = await json_body(request)
        claims = self._opened_session(body.get("session_token"), checked_path(str(body.get("path", ""))))
        first, count = integer(body.get("start_part_number"), "start_part_number"), integer(body.get("count"), "count")
        seconds = _seconds_until(body.get("expire_time"))
        urls = []
        for number in range(first, first + count):
            token = self._signer.seal("part", {"upload": claims["upload"], "number": number}, seconds)
            urls.append({"url": f"{_origin(request)}/signed/{token}", "part_number": number, "headers": []})
        return json_response({"upload_part_urls": urls})

    async def signed_part(self, request: Request) -> Response:
        """Store one part."""
        claims = self._signer.open("part", request.path_params["token"])
        if claims is None:
            return Response(_EXPIRED, 403, media_type="application/xml")
        received = await self._receive(request)
        received.rename(self._volumes.part_of_upload(claims["upload"], claims["number"]))
        return Response(status_code=200, headers={"ETag": f'"{claims["upload"]}-{claims["number"]}"'})

    async def _complete(self, claims: JsonObject, body: JsonObject) -> None:
        numbers = sorted(integer(part.get("part_number"), "part_number") for part in body.get("parts") or [])
        parts = [self._volumes.part_of_upload(claims["upload"], number) for number in numbers]
        if not parts or not all(part.exists() for part in parts):
            raise invalid_parameter("the upload lacks a part")
        whole = await self._volumes.join(parts)
        self._volumes.publish(claims["path"], whole, overwrite=claims["overwrite"])
        self._volumes.drop_parts(claims["upload"])

    def _opened_session(self, token: object, path: str) -> JsonObject:
        claims = self._signer.open("upload", str(token or ""))
        if claims is None or claims["path"] != path:
            raise ApiError(404, "NOT_FOUND", "The upload session is not known.")
        return claims

    # -- directories

    async def make_directory(self, request: Request) -> Response:
        """Make a directory with everything above it."""
        self._volumes.make_directory(_path(request))
        return Response(status_code=204)

    async def directory_metadata(self, request: Request) -> Response:
        """200 when the directory exists."""
        self._volumes.directory(_path(request))
        return Response(status_code=200)

    async def delete_directory(self, request: Request) -> Response:
        """Remove an empty directory."""
        self._volumes.remove_directory(_path(request))
        return Response(status_code=204)

    async def list(self, request: Request) -> Response:
        """What lies in a directory, in pages."""
        path = _path(request)
        self._volumes.directory(path)
        size = min(integer(request.query_params.get("page_size", "0"), "page_size") or _ENTRIES_A_PAGE, _ENTRIES_A_PAGE)
        found = self._volumes.children(path, size + 1, request.query_params.get("page_token", ""))
        page: JsonObject = {"contents": [entry.shown() for entry in found[:size]]}
        if len(found) > size:
            page["next_page_token"] = found[size - 1].name
        return json_response(page)

    async def _receive(self, request: Request) -> Path:
        full = self._faults.take("files.upload", {"disk_full"}, {"path": request.url.path}) if self._faults else None
        try:
            return await self._volumes.receive(request.stream(), full_disk=full is not None)
        except ClientDisconnect as error:
            raise ApiError(400, "CANCELLED", "The upload was broken off.") from error


def _path(request: Request) -> str:
    return checked_path(request.path_params["path"])


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _sent(request: Request, entry: Entry) -> Response:
    assert entry.blob is not None  # noqa: S101 - Volumes.file answers files only
    modified = entry.modified_ms // 1000
    unless = email.utils.parsedate_tz(request.headers.get("if-unmodified-since", ""))
    if unless is not None and email.utils.mktime_tz(unless) < modified:
        raise ApiError(412, "PRECONDITION_FAILED", "The file was changed since.")
    headers = {"Last-Modified": email.utils.formatdate(modified, usegmt=True)}
    return FileResponse(entry.blob, headers=headers, media_type=_BYTES)


def _seconds_until(expire_time: object) -> float:
    if not expire_time:
        return _SIGNED_SECONDS
    try:
        return datetime.fromisoformat(str(expire_time)).timestamp() - time.time()
    except ValueError as error:
        raise invalid_parameter(f"expire_time is not a time: {expire_time!r}") from error
