"""Volumes through the unchanged SDK: names, ranges, big files, and a disk that is full."""

from __future__ import annotations

import io
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

SMALL, BIG = 1_000, 60 * 1024 * 1024


@pytest.fixture
def folder() -> str:
    """A directory of one test."""
    return f"/Volumes/main/documents/inbox/{uuid.uuid4()}"


def read(client: WorkspaceClient, path: str) -> bytes:
    contents = client.files.download(path).contents
    assert contents is not None
    with contents:
        return contents.read()


@pytest.mark.parametrize(
    "name",
    [
        "plain.pdf",
        "größe und mehr.pdf",
        "😀🎉.pdf",
        "x" * 300 + ".pdf",
        "فاتورة.pdf",
        "50% off?#1.pdf",
        "a\\b:c*d.pdf",
        "..hidden...pdf",
        "%2e%2e%2fescape.pdf",
    ],
)
def test_a_file_of_any_name_comes_back_as_it_went(client: WorkspaceClient, folder: str, name: str) -> None:
    content = os.urandom(SMALL)
    path = f"{folder}/{name}"
    client.files.upload(path, io.BytesIO(content))
    assert read(client, path) == content
    metadata = client.files.get_metadata(path)
    assert metadata.content_length == SMALL
    assert metadata.last_modified
    assert [(entry.path, entry.file_size) for entry in client.files.list_directory_contents(folder)] == [(path, SMALL)]


@pytest.mark.parametrize(
    "path",
    [
        "/Volumes/a/b/c/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/Volumes/a/b/c/..%2f..%2fx",
        "/Volumes/a/b/c/x%00y",
        "/Volumes/a/b",
        "/etc/passwd",
        "/Workspace/x/y/z/a",
        "//Volumes/a/b/c//d",
    ],
)
def test_a_path_that_leads_outside_is_refused(double: WorkspaceDouble, path: str) -> None:
    import http.client

    host = double.url.removeprefix("http://")
    for method in ("PUT", "GET", "DELETE"):
        connection = http.client.HTTPConnection(host, timeout=10)
        headers = {"Authorization": double.http.headers["Authorization"]}
        connection.request(method, f"/api/2.0/fs/files{path}", body=b"x" if method == "PUT" else None, headers=headers)
        assert connection.getresponse().status == 400
        connection.close()


def test_overwriting_is_a_choice(client: WorkspaceClient, folder: str) -> None:
    from databricks.sdk.errors import AlreadyExists

    path = f"{folder}/a.pdf"
    client.files.upload(path, io.BytesIO(b"one"))
    with pytest.raises(AlreadyExists):
        client.files.upload(path, io.BytesIO(b"two"), overwrite=False)
    assert read(client, path) == b"one"
    client.files.upload(path, io.BytesIO(b"three"), overwrite=True)
    assert read(client, path) == b"three"


def test_an_absent_file_is_not_found_everywhere(client: WorkspaceClient, folder: str) -> None:
    from databricks.sdk.errors import NotFound

    for call in (client.files.get_metadata, client.files.delete, client.files.download):
        with pytest.raises(NotFound):
            call(f"{folder}/absent.pdf")
    with pytest.raises(NotFound):
        list(client.files.list_directory_contents(folder))


def test_directories_are_made_with_all_above_and_removed_when_empty(client: WorkspaceClient, folder: str) -> None:
    from databricks.sdk.errors import BadRequest, NotFound

    client.files.create_directory(f"{folder}/a/b/c")
    client.files.create_directory(f"{folder}/a/b/c")
    client.files.get_directory_metadata(f"{folder}/a/b")
    with pytest.raises(BadRequest):
        client.files.delete_directory(f"{folder}/a")
    client.files.delete_directory(f"{folder}/a/b/c")
    with pytest.raises(NotFound):
        client.files.get_directory_metadata(f"{folder}/a/b/c")


def test_listings_come_in_pages(client: WorkspaceClient, folder: str) -> None:
    names = [f"{number:02}.pdf" for number in range(7)]
    for name in names:
        client.files.upload(f"{folder}/{name}", io.BytesIO(b"x"))
    assert [entry.name for entry in client.files.list_directory_contents(folder, page_size=3)] == names


def test_an_empty_file_is_a_file(client: WorkspaceClient, folder: str) -> None:
    client.files.upload(f"{folder}/empty.pdf", io.BytesIO(b""))
    assert client.files.get_metadata(f"{folder}/empty.pdf").content_length == 0


def test_a_big_file_goes_up_in_parts_and_comes_down_in_ranges(
    client: WorkspaceClient, double: WorkspaceDouble, folder: str, tmp_path: Path
) -> None:
    path, source, target = f"{folder}/big.pdf", tmp_path / "big", tmp_path / "back"
    source.write_bytes(os.urandom(SMALL) * (BIG // SMALL))
    client.files.upload_from(path, str(source))
    client.files.download_to(path, str(target), use_parallel=True)
    assert target.read_bytes() == source.read_bytes()
    part = double.http.get(f"/api/2.0/fs/files{path}", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, source.read_bytes()[10:20])


def test_a_signed_address_needs_no_login_and_ends(
    double: WorkspaceDouble, client: WorkspaceClient, folder: str
) -> None:
    import httpx

    path = f"{folder}/a.pdf"
    client.files.upload(path, io.BytesIO(b"content"))
    answers = []
    for expire_time in ("2999-01-01T00:00:00Z", "2001-01-01T00:00:00Z"):
        made = double.http.post(
            "/api/2.0/fs/create-download-url", params={"path": path, "expire_time": expire_time}
        ).json()
        answers.append(httpx.get(made["url"], trust_env=False))
    assert (answers[0].status_code, answers[0].content) == (200, b"content")
    assert (answers[1].status_code, "Request has expired" in answers[1].text) == (403, True)


def test_a_full_disk_is_an_error_and_leaves_the_old_file(
    double: WorkspaceDouble, client: WorkspaceClient, folder: str
) -> None:
    from databricks.sdk.errors.base import DatabricksError

    path = f"{folder}/a.pdf"
    client.files.upload(path, io.BytesIO(b"old"))
    double.fault("files.upload", "disk_full", times=1)
    with pytest.raises(DatabricksError, match="No space left"):
        client.files.upload(path, io.BytesIO(b"new"))
    assert read(client, path) == b"old"


def test_an_upload_that_is_broken_off_leaves_nothing(double: WorkspaceDouble, folder: str) -> None:
    import socket

    host, port = double.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            f"PUT /api/2.0/fs/files{folder}/half.pdf HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            f"Authorization: {double.http.headers['Authorization']}\r\n\r\nhalf".encode()
        )
    assert double.http.head(f"/api/2.0/fs/files{folder}/half.pdf").status_code == 404
