from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pypdfium2
import pytest

from services.console.messages.answers import Document, UploadAnswer
from tests.conftest import TestDatabase
from tests.integration.console.conftest import API, Console, serve
from tests.support.workspace import WorkspaceDouble


def pdf(pages: int = 1, size: tuple[int, int] = (200, 300)) -> bytes:
    document = pypdfium2.PdfDocument.new()
    for _ in range(pages):
        document.new_page(*size)
    import io

    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


async def upload(console: Console, *files: tuple[str, bytes], status: int = 201, **fields: str) -> Any:
    parts = [("files", (name, content, "application/pdf")) for name, content in files]
    return await console.post("/documents", status, files=parts, data=fields)


async def test_good_files_are_kept_and_bad_ones_named(storing_console: Console) -> None:
    good = pdf(3)
    answer = await upload(
        storing_console, ("a.pdf", good), ("empty.pdf", b""), ("page.pdf", b"<html>no pdf</html>" * 100),
        ("big.pdf", b"%PDF-1.7\n" + b"x" * 3_000_000), ("PDF.txt", b"junk before\n" + pdf()), ("cut.pdf", good[: len(good) // 2]),
        customer="Nordlicht GmbH",
    )  # fmt: skip
    UploadAnswer.model_validate(answer)
    assert [document["name"] for document in answer["documents"]] == ["a.pdf", "PDF.txt", "cut.pdf"]
    assert [(each["name"], each["reason"]) for each in answer["refused"]] == [
        ("empty.pdf", "empty_file"), ("page.pdf", "not_a_pdf"), ("big.pdf", "too_large"),
    ]  # fmt: skip
    first = answer["documents"][0]
    assert (first["pages"], first["bytes"], first["customer"]) == (3, len(good), "Nordlicht GmbH")
    assert first["sha256"] == hashlib.sha256(good).hexdigest()
    Document.model_validate(await storing_console.get(f"/documents/{first['id']}"))
    assert list(storing_console.spool_dir.iterdir()) == []


NONE_GOOD: list[tuple[list[tuple[str, bytes]], int, str]] = [
    ([("a.pdf", b"")], 422, "empty_file"),
    ([("a.pdf", b"hello")], 422, "not_a_pdf"),
    ([("a.pdf", b"%PDF-" + b"x" * 3_100_000)], 413, "too_large"),
    ([("a.pdf", b""), ("b.pdf", b"hello")], 422, "refused"),
    ([], 422, "no_file"),
]


async def test_when_no_file_is_good_the_answer_says_why(storing_console: Console) -> None:
    for files, status, reason in NONE_GOOD:
        parts: list[Any] = [("files", (name, content)) for name, content in files] or [("customer", (None, b"x"))]
        answer = await storing_console.http.post(f"{API}/documents", files=parts)
        assert answer.status_code == status, reason
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["reason"] == reason
        assert len(answer.json()["refused"]) == len(files)


NAMES = [
    "a%20b#1?.pdf", "100% ready.pdf", "two  spaces and dot.pdf.", "../../etc/x.pdf", "/etc/passwd", "%2e%2e%2f.pdf",
    "ｆull／width.pdf", "n" * 300 + ".pdf", "\U0001f6a2\U0001f4c4 lock.pdf", "...", "\u202egnp.pdf", "laporan\u202e.pdf",
]  # fmt: skip


async def test_p11_p12_names_are_data_and_never_a_place(storing_console: Console, workspace: WorkspaceDouble) -> None:
    """The key is ours; the name comes back as it was, but for what would reorder the text around it."""
    content = pdf()
    answer = await upload(storing_console, *((name, content + str(n).encode()) for n, name in enumerate(NAMES)))
    assert [document["name"].strip() for document in answer["documents"]] == [
        name.replace("\u202e", "").strip() for name in NAMES
    ]
    for n, document in enumerate(answer["documents"]):
        assert document["volume_path"] == f"/Volumes/main/lockkeeper/documents/{document['id']}.pdf"
        back = await storing_console.http.get(f"{API}/documents/{document['id']}/content")
        assert back.content == content + str(n).encode()
        assert back.headers["content-disposition"].startswith("attachment; filename=")
        assert "sandbox" in back.headers["content-security-policy"]
        assert back.headers["x-content-type-options"] == "nosniff"


async def test_strange_part_headers(storing_console: Console) -> None:
    content = pdf()
    for head, name in [
        (b'form-data; name="files"; filename=""', "unnamed.pdf"),
        (b'form-data; name="files"; filename="a\x00b.pdf"', "ab.pdf"),
        (b'form-data; name="files"; filename="\xff\xfe.pdf"', "\xff\xfe.pdf"),
        (b'form-data; name="files"; filename="C:\\\\temp\\\\x.pdf"', "x.pdf"),
        (b'form-data; name="files"', "unnamed.pdf"),
    ]:
        body = b"--b\r\nContent-Disposition: " + head + b"\r\n\r\n" + content + b"\r\n--b--\r\n"
        answer = await storing_console.http.post(
            f"{API}/documents", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
        assert answer.status_code == 201, (head, answer.text)
        assert answer.json()["documents"][0]["name"] == name
    for kind, body, status in [
        ("application/json", b"{}", 415), ("multipart/form-data", b"", 415),
        ("multipart/form-data; boundary=b", b"garbage", 422), ("multipart/form-data; boundary=b", b"", 422),
    ]:  # fmt: skip
        answer = await storing_console.http.post(f"{API}/documents", content=body, headers={"Content-Type": kind})
        assert answer.status_code == status, (kind, body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_file_that_ends_too_early_is_refused(storing_console: Console) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.pdf"\r\n\r\n' + pdf()
    answer = await storing_console.http.post(
        f"{API}/documents", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert answer.status_code == 422
    assert answer.json()["reason"] == "interrupted"
    assert list(storing_console.spool_dir.iterdir()) == []


async def test_p16_the_same_bytes_and_name_are_one_document_for_a_while(storing_console: Console) -> None:
    """A double click, and two people with one name."""
    content = pdf()
    answers = await asyncio.gather(*(upload(storing_console, ("a.pdf", content)) for _ in range(6)))
    (document_id,) = {answer["documents"][0]["id"] for answer in answers}
    assert await storing_console.database.owner.fetchval("SELECT count(*) FROM lockkeeper.documents") == 1
    again = await upload(storing_console, ("a.pdf", content))
    assert (again["documents"][0]["id"], again["documents"][0]["reused"]) == (document_id, True)
    other_name = await upload(storing_console, ("b.pdf", content))
    other_bytes = await upload(storing_console, ("a.pdf", content + b"\n"))
    ids = {document_id, other_name["documents"][0]["id"], other_bytes["documents"][0]["id"]}
    assert len(ids) == 3
    await storing_console.database.owner.execute(
        "UPDATE lockkeeper.documents SET created_at = now() - interval '1 day'"
    )
    later = await upload(storing_console, ("a.pdf", content))
    assert later["documents"][0]["id"] not in ids


async def test_a_full_disk_in_the_workspace_is_said_so(storing_console: Console, workspace: WorkspaceDouble) -> None:
    workspace.fault("files.upload", "disk_full")
    answer = await storing_console.http.post(f"{API}/documents", files=[("files", ("a.pdf", pdf(), "application/pdf"))])
    assert answer.status_code == 507, answer.text
    assert answer.json()["reason"] == "storage_full"
    assert await storing_console.database.owner.fetchval("SELECT count(*) FROM lockkeeper.documents") == 0
    assert list(storing_console.spool_dir.iterdir()) == []
    workspace.mend()
    assert (await upload(storing_console, ("a.pdf", pdf())))["documents"]


async def test_a_full_spool_disk_is_said_so(storing_console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.console.gateways import receiving

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(receiving.tempfile, "mkstemp", full)
    answer = await storing_console.http.post(f"{API}/documents", files=[("files", ("a.pdf", pdf(), "application/pdf"))])
    assert answer.status_code == 507
    assert answer.json()["reason"] == "storage_full"


async def test_a_workspace_that_is_away_asks_to_come_back(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOST": "http://127.0.0.1:9", "CLIENT_ID": "x", "CLIENT_SECRET": "y"}.items():
        monkeypatch.setenv(f"DATABRICKS_{name}", value)
    async with serve(database, tmp_path) as console:
        answer = await console.http.post(f"{API}/documents", files=[("files", ("a.pdf", pdf(), "application/pdf"))])
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert "Traceback" not in answer.text


async def test_a_large_file_streams_through_with_little_memory(
    database: TestDatabase, workspace: WorkspaceDouble, tmp_path: Path
) -> None:
    size = 60_000_000

    async def body() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="big.pdf"\r\n\r\n%PDF-1.7\n'
        for _ in range(size // 100_000):
            yield b"x" * 100_000
        yield b"\r\n--b--\r\n"

    import psutil

    async with serve(database, tmp_path) as console:
        await upload(console, ("warm.pdf", pdf()))
        before = psutil.Process().memory_info().rss
        answer = await console.http.post(
            f"{API}/documents", content=body(), headers={"Content-Type": "multipart/form-data; boundary=b"}, timeout=60
        )
        assert answer.status_code == 201, answer.text
        document = answer.json()["documents"][0]
        assert (document["bytes"], document["pages"]) == (size + 9, None)
        assert psutil.Process().memory_info().rss - before < 60_000_000
        received = 0
        async with console.http.stream("GET", f"{API}/documents/{document['id']}/content") as back:
            assert back.headers["content-length"] == str(size + 9)
            async for chunk in back.aiter_bytes():
                received += len(chunk)
        assert received == size + 9


async def test_a_document_that_is_gone_from_the_volume_is_missing(
    storing_console: Console, workspace: WorkspaceDouble
) -> None:
    document = (await upload(storing_console, ("a.pdf", pdf())))["documents"][0]
    workspace.http.delete(f"/api/2.0/fs/files{document['volume_path']}").raise_for_status()
    for path in ("content", "pages/1"):
        answer = await storing_console.http.get(f"{API}/documents/{document['id']}/{path}")
        assert answer.status_code == 404
        # Said for people: the Volume's own words name a path that nobody typed.
        assert answer.json()["detail"] == "This document's file is not in the Volume any more."
    assert (await storing_console.http.get(f"{API}/documents/{uuid.uuid4()}/content")).status_code == 404


async def test_a_client_that_goes_away_leaves_nothing_behind(storing_console: Console) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield (
            b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.pdf"\r\n\r\n%PDF-1.7\n' + b"x" * 600_000
        )
        raise OSError("cut")

    with pytest.raises((OSError, httpx.HTTPError)):
        await storing_console.http.post(
            f"{API}/documents", content=body(), headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
    from shared.testing.wait import until

    await until(lambda: not list(storing_console.spool_dir.iterdir()))
