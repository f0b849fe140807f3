"""Cases from the field, by kind: each that applies here is a test that carries its id in its name."""

from __future__ import annotations

import re

import pytest

from tests.support.statements import ROOT

CASES = {
    "K": (1, 3, 4, 7, 8, 9),
    "T": (1, 2, 4, 5, 7, 8, 9, 11, 12, 13, 14),
}
"""Kinds that no page tells: K Kubernetes and shutdown, T Temporal and the underwriter."""
_ROW = re.compile(r"^\| ([A-Z]-\d\d) \| [^|]+ \|([^|]*)\|$", re.MULTILINE)
_NAME = re.compile(r"def test_(\w+)")
_ID = re.compile(r"(?:(?<=_)|^)([a-z])_?(\d\d)(?=_|$)")


def carried() -> set[str]:
    """The ids that names of tests carry: `test_t_09_…` and `test_t09_…` carry T-09."""
    return {
        f"{kind.upper()}-{number}"
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in _NAME.findall(file.read_text(encoding="utf-8"))
        for kind, number in _ID.findall(name)
    }


@pytest.mark.parametrize("kind", CASES)
def test_every_case_of_a_kind_is_a_test(kind: str) -> None:
    missing = {f"{kind}-{number:02}" for number in CASES[kind]} - carried()
    assert not missing, f"no test carries {', '.join(sorted(missing))}"


def test_the_page_of_cases_says_what_is_a_test() -> None:
    """Each case of the page is a test or has its reason, and none has both."""
    rows = _ROW.findall((ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8"))
    assert len(rows) == len(dict(rows)) == 70
    found = carried()
    assert not [case for case, why in rows if not why.strip() and case not in found], "neither a test nor a reason"
    assert not [case for case, why in rows if why.strip() and case in found], "a reason, and a test all the same"
