"""The one cleaner: what Postgres cannot hold is taken out and counted, everything else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contract.text import clean_json, clean_text

ANYTHING = st.text(alphabet=st.characters(exclude_categories=()), max_size=60)


@pytest.mark.parametrize(
    ("dirty", "clean", "dropped"),
    [
        ("speci\x00c", "specic", 1),
        ("\ud83d\ude00", "😀", 0),
        ("\ud83dx\ude00", "x", 2),
        ("\ud83d\ud83d\ude00", "😀", 1),
        ("plain", "plain", 0),
        ("", "", 0),
    ],
)
def test_p01_p02_zero_and_lone_halves_go_and_pairs_are_joined(dirty: str, clean: str, dropped: int) -> None:
    assert clean_text(dirty) == (clean, dropped)


@given(ANYTHING)
def test_p02_what_is_left_can_be_stored_and_reads_back_equal(text: str) -> None:
    clean, dropped = clean_text(text)
    assert clean.encode().decode() == clean
    assert "\x00" not in clean
    assert clean_text(clean) == (clean, 0)
    assert dropped <= len(text)


def test_p01_keys_nested_values_and_numbers_that_are_none_are_cleaned() -> None:
    dirty: Any = {"a\x00": ["x\ud800", float("nan"), {"b": ("\x00",)}], "n": 1.5, "t": None, "y": True}
    clean, dropped = clean_json(dirty)
    assert clean == {"a": ["x", None, {"b": [""]}], "n": 1.5, "t": None, "y": True}
    assert dropped == 4
    json.dumps(clean, allow_nan=False)
