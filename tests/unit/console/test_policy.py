from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.policy.documents import display_name, refusal_of, volume_path
from services.console.policy.enqueueing import acceptable_start, estimated_tokens, request_digest, storable
from services.console.policy.exports import csv_text
from services.console.policy.operating import Action, forbids
from services.console.policy.paging import decode_cursor, encode_cursor
from shared.contract.errors import RejectedError
from shared.contract.lifecycle import TaskStatus, is_terminal

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("head", "size", "refusal"),
    [
        (b"", 0, "empty_file"),
        (b"%PDF-1.7", 8, None),
        (b"x" * 1000 + b"%PDF-1.4", 2000, None),
        (b"x" * 1024 + b"%PDF-1.4", 2000, "not_a_pdf"),
        (b"%pdf-1.7", 8, "not_a_pdf"),
        (b"\x89PNG\r\n", 6, "not_a_pdf"),
    ],
)
def test_a_pdf_is_known_by_its_content(head: bytes, size: int, refusal: str | None) -> None:
    assert refusal_of(head, size) == refusal


@given(st.text(max_size=600))
def test_every_name_becomes_data_that_can_be_stored_and_shown(name: str) -> None:
    shown = display_name(name)
    assert 1 <= len(shown) <= 500
    assert shown.encode().decode() == shown
    assert not any(each in shown for each in "\x00\r\n\u202e\u2066")


def test_names_keep_what_people_wrote() -> None:
    for name in ("../../etc/x.pdf", "a%20b#1?.pdf", "\U0001f6a2.pdf", "عقد.pdf", "n" * 300):
        assert display_name(name) == name
    assert display_name("") == display_name("\x00\u202e") == "unnamed.pdf"
    key = volume_path("/Volumes/a/b/c", UUID(int=1))
    assert key == "/Volumes/a/b/c/00000000-0000-0000-0000-000000000001.pdf"


def test_estimates_are_never_nothing() -> None:
    assert estimated_tokens(3, 10**9, 700) == 2100
    assert estimated_tokens(0, 10, 700) == 700
    assert estimated_tokens(None, 1, 700) == 700
    assert estimated_tokens(None, None, 700) is None


def test_a_digest_is_of_what_is_said_and_not_of_how() -> None:
    assert request_digest({"a": 1, "b": {"c": 2, "d": 3}}) == request_digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert request_digest({"a": 1}) != request_digest({"a": "1"})


def test_what_cannot_be_stored_is_refused_by_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    for value in (deep, {"n": 2**64}):
        with pytest.raises(RejectedError, match="input"):
            storable(value, "input")
    assert storable({"a": float("nan"), "b": "\ud800x"}, "input") == {"a": None, "b": "x"}


def test_a_start_in_the_past_is_now_and_a_far_one_is_refused() -> None:
    assert acceptable_start(None, NOW) is None
    assert acceptable_start(NOW, NOW) is None
    assert acceptable_start(datetime.min.replace(tzinfo=UTC), NOW) is None
    assert acceptable_start(NOW + timedelta(seconds=1), NOW) == NOW + timedelta(seconds=1)
    with pytest.raises(RejectedError):
        acceptable_start(datetime.max.replace(tzinfo=UTC), NOW)


ALLOWED: dict[Action, dict[TaskStatus, bool]] = {
    "cancel": dict.fromkeys((TaskStatus.ENQUEUED, TaskStatus.PROCESSING), True),
    "reprioritise": dict.fromkeys((TaskStatus.ENQUEUED, TaskStatus.PROCESSING), True),
    "retry": dict.fromkeys((TaskStatus.FAILED, TaskStatus.CANCELLED), True),
    "reprocess": dict.fromkeys((TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.COMPLETED), True),
}


@pytest.mark.parametrize("status", list(TaskStatus))
@pytest.mark.parametrize("action", list(ALLOWED))
def test_each_action_from_each_status(action: Action, status: TaskStatus) -> None:
    alone = {"status": status.value, "gather": None, "parent_status": None}
    why = forbids(action, {**alone, "available_at": NOW}, NOW)
    assert (why is None) == ALLOWED[action].get(status, False)
    if action == "retry":
        later = {**alone, "available_at": NOW + timedelta(seconds=1)}
        assert (forbids(action, later, NOW) is None) == (status in {*ALLOWED["retry"], TaskStatus.ENQUEUED})


@pytest.mark.parametrize("status", list(TaskStatus))
@pytest.mark.parametrize("action", list(ALLOWED))
def test_a_parent_can_be_cancelled_and_moved_but_not_started_again(action: Action, status: TaskStatus) -> None:
    parent = {"status": status.value, "gather": "all_completed", "parent_status": None, "available_at": NOW}
    assert (forbids(action, parent, NOW) is None) == (action in {"cancel", "reprioritise"} and not is_terminal(status))


@pytest.mark.parametrize("of_parent", list(TaskStatus))
@pytest.mark.parametrize("action", ["retry", "reprocess"])
def test_a_child_is_done_anew_as_long_as_its_parent_waits(action: Action, of_parent: TaskStatus) -> None:
    child = {"status": "failed", "gather": None, "parent_status": of_parent.value, "available_at": NOW}
    why = forbids(action, child, NOW)
    assert (why is None) == (not is_terminal(of_parent))
    assert why is None or f"has ended as {of_parent}" in why


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_comes_back_as_it_was(instant: datetime, row: UUID) -> None:
    assert decode_cursor(encode_cursor(instant, row)) == (instant, row)


@pytest.mark.parametrize("cursor", ["x", "%%%", "bm9uc2Vuc2U", "MjAyNi0xMS0zMCB4", "é"])
def test_a_foreign_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(RejectedError):
        decode_cursor(cursor)


def test_a_spreadsheet_reads_no_formula() -> None:
    text = csv_text([["=1+1", "+x", "-x", "@x", "\tx", 'plain, "quoted"', None, 3]])
    assert text == '\'=1+1,\'+x,\'-x,\'@x,\'\tx,"plain, ""quoted""",,3\r\n'
