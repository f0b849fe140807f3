"""Bad documents among good ones, from the upload to the command line: each ends once, with a reason people can read.

What each kind does to the room that meets it first is told in the integration tests of the document agent, the
console and the receiver; here is shown that the reason arrives, and that nothing else is harmed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.local.documents import MAKERS
from shared.testing import pdfs
from tests.support.batch import BATCH, StackUser
from tests.support.stack import CHECKOUT, StackProcess

# The first story of the session waits for the whole stack to start.
pytestmark = pytest.mark.timeout(600)

GOOD = pdfs.text_pdf(["Invoice", "Invoice date: 2026-02-03", "Total due: USD 25.00"])
LONG_PAGES = 2_000 if BATCH >= 50 else 600
"""The long form of the suite reads the long document."""

DOCUMENTS: dict[str, tuple[bytes, str, str]] = {
    "good.pdf": (GOOD, "completed", ""),
    "password.pdf": (pdfs.encrypted(user="secret", revision=6), "failed", "password_required"),
    "may not be copied.pdf": (pdfs.encrypted(revision=6), "completed", ""),
    "no pages.pdf": (pdfs.zero_pages(), "failed", "no_pages"),
    "half of it.pdf": (pdfs.truncated(0.7), "completed", ""),
    "nul.pdf": (pdfs.nul_ligature(), "completed", ""),
    "half a pair.pdf": (pdfs.lone_surrogate(), "completed", ""),
    "a page tree in a circle.pdf": (pdfs.page_tree_cycle(), "completed", ""),
    "blank.pdf": (pdfs.blank_pages("0 0 595 842"), "completed", ""),
    "picture of text.pdf": (MAKERS["letter-scanned"]().data, "completed", ""),
    "on its side.pdf": (MAKERS["price-list-on-its-side"]().data, "completed", ""),
    "../../etc/passwd": (GOOD + b"\n%1", "completed", ""),
    "\U0001f6a2\U0001f4c4 lock.pdf": (GOOD + b"\n%2", "completed", ""),
    "n" * 296 + ".pdf": (GOOD + b"\n%3", "completed", ""),
}


@pytest.fixture(scope="module")
def user(queue_stack: StackProcess) -> Iterator[StackUser]:
    user = StackUser(queue_stack)
    yield user
    user.close()


def shown(user: StackUser, task_id: str) -> str:
    """What `lockkeeper tasks show` says to a person."""
    environment = {**os.environ, "LOCKKEEPER_URL": user.stack.description()["url"]}
    ended = subprocess.run(
        [sys.executable, "-m", "lockkeeper", "tasks", "show", task_id],
        capture_output=True, text=True, check=True, env=environment, cwd=CHECKOUT, timeout=120,
    )  # fmt: skip
    return ended.stdout


def test_each_bad_document_ends_once_with_its_reason_and_the_good_ones_are_read(user: StackUser) -> None:
    files = [("files", (name, data, "application/pdf")) for name, (data, _, _) in DOCUMENTS.items()]
    uploaded = user.ask("POST", "/api/v1/documents", files=files)
    assert uploaded["refused"] == []
    assert [each["name"] for each in uploaded["documents"]] == list(DOCUMENTS)
    batch = user.submit(user.agent("bad-input", lease_seconds=30), [each["id"] for each in uploaded["documents"]])
    tasks = user.ended(batch, 240)
    for (name, (_, end, reason)), task in zip(DOCUMENTS.items(), tasks, strict=True):
        assert (task["status"], (task["error"] or {}).get("reason", "")) == (end, reason), name
        # Neither a retry of what cannot get better, nor a second try that was needed.
        assert task["attempt"] == 1, name
        assert "Traceback" not in str(task["error"]), name
        if reason:
            words = shown(user, task["id"])
            assert reason in words
            assert task["error"]["message"][:40] in " ".join(words.split())
            assert "Traceback" not in words
    user.check_invariants()


def test_what_is_no_document_is_named_at_the_door_and_the_good_one_kept(user: StackUser) -> None:
    files = {
        "good.pdf": GOOD,
        "empty.pdf": b"",
        "web page.pdf": b"<html>%PD",
        "archive.pdf": b"PK\x03\x04" + b"0" * 2000,
    }
    answer = user.http.post("/api/v1/documents", files=[("files", each) for each in files.items()])
    assert answer.status_code == 201
    told = answer.json()
    assert [each["name"] for each in told["documents"]] == ["good.pdf"]
    assert {each["name"]: each["reason"] for each in told["refused"]} == {
        "empty.pdf": "empty_file", "web page.pdf": "not_a_pdf", "archive.pdf": "not_a_pdf",
    }  # fmt: skip


def test_the_same_file_twice_is_one_document_and_two_tasks(user: StackUser) -> None:
    first, second = (user.upload([GOOD + b"\n%twice"])[0] for _ in range(2))
    assert first == second
    user.judge(user.submit(user.agent("twice", lease_seconds=30), [first, second]), attempts=1)


def test_a_full_disk_at_upload_is_said_so_and_the_next_upload_is_kept(user: StackUser) -> None:
    user.break_it(api="files.upload", kind="disk_full")
    try:
        refused = user.http.post("/api/v1/documents", files=[("files", ("full.pdf", GOOD + b"\n%full"))])
    finally:
        user.mend()
    assert (refused.status_code, refused.json()["reason"]) == (507, "storage_full")
    assert user.upload([GOOD + b"\n%full"])


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"agent": "nobody", "input": {}}, 422, "nobody"),
        ({"agent": "document-agent"}, 422, "document_id"),
        ({"agent": "document-agent", "input": {}, "priority": "high"}, 422, "priority"),
        ({"agent": "document-agent", "input": [1]}, 422, "input"),
        ({"agent": "document-agent", "document_id": "x"}, 422, "document_id"),
        ({"agent": "document-agent", "input": {}, "colour": "red"}, 422, "colour"),
        ({"agent": "document-agent", "input": {"text": "x" * 2**21}}, 413, "large"),
    ],
    ids=["unknown agent", "no work", "wrong type", "a list", "no id", "unknown field", "too large"],
)
def test_a_request_that_cannot_be_is_refused_in_words(
    user: StackUser, body: dict[str, object], status: int, named: str
) -> None:
    answer = user.http.post("/api/v1/tasks", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in answer.text
    assert "Traceback" not in answer.text


def test_a_long_document_moves_its_bar_and_keeps_its_lease(user: StackUser) -> None:
    agent = user.agent("long", lease_seconds=10)
    batch = user.submit(agent, user.upload([pdfs.many_pages(LONG_PAGES)]))
    seen: set[int | None] = set()

    def is_over() -> bool:
        task = user.task(batch.ids[0])
        seen.add(task["progress"]["pages_done"])
        return bool(task["status"] == "completed")

    user.wait(is_over, 400)
    [task] = user.judge(batch, attempts=1)
    assert task["progress"]["pages_total"] == LONG_PAGES
    assert len(seen - {None, 0, LONG_PAGES}) >= 1
