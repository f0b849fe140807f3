"""When a text layer is believed, and when its lines are put together again."""

from __future__ import annotations

import pytest

from services.document_agent.messages import Table
from services.document_agent.tables import is_likely, joined
from services.document_agent.text import TRUSTED, Run, columns_of, layer_trust, rows_of, rows_text


@pytest.mark.parametrize(
    "text",
    [
        "Plain English text, 12 February 2026.",
        "Größe der Fässer: 225 Liter – Küferstraße",
        "Шановні колеги, надсилаємо кошторис",
        "重庆万州经济技术开发（集团）有限公司",
        "فاتورة رقم ١٢٣",
        "18,870 23,022 22,650 859 1,178 0 14 15",
        "",
    ],
)
def test_readable_layers_are_believed(text: str) -> None:
    assert layer_trust(text, 0.0) >= TRUSTED


@pytest.mark.parametrize(
    ("text", "unmapped"),
    [
        ("\ue001\ue002\ue003\ue004 \ue005\ue006", 0.0),
        ("\ufffd\ufffd\ufffd ab \ufffd\ufffd", 0.0),
        ("ordinary letters", 0.4),
        ("хabιbi ϲΒϴΒhab يبab يϴΒ", 0.0),
        ("¤¦¨¬¯±¶¸¿×÷¤¦¨¬¯±¶¸¿×÷", 0.0),
    ],
)
def test_garbage_layers_are_not(text: str, unmapped: float) -> None:
    assert layer_trust(text, unmapped) < TRUSTED


def run(left: float, top: float, text: str) -> Run:
    return Run(left, top - 10, left + 6 * len(text), top, text)


def test_rows_run_from_top_to_bottom_and_left_to_right_with_cells_apart() -> None:
    runs = [run(300, 700, "right"), run(50, 650, "below"), run(50, 701, "left")]
    assert rows_text(rows_of(runs)) == "left  right\nbelow"


def test_a_dash_stands_in_the_line_of_its_numbers() -> None:
    dash = Run(90, 693.5, 94, 694.5, "-")
    (row,) = rows_of([run(50, 700, "1.35"), dash, run(100, 700, "1.42")])
    assert [each.text for each in row] == ["1.35", "-", "1.42"]


def test_prose_in_two_columns_is_read_column_by_column() -> None:
    left = [run(50, 700 - 14 * line, f"left column, line number {line:02d}") for line in range(10)]
    right = [run(320, 700 - 14 * line, f"right column, line number {line:02d}") for line in range(10)]
    columns = columns_of([each for pair in zip(left, right, strict=True) for each in pair])
    assert [len(column) for column in columns] == [10, 10]
    assert all(each.text.startswith("left") for each in columns[0])


def test_short_cells_are_no_columns_of_prose() -> None:
    cells = [run(50 + 100 * column, 700 - 14 * row, "12.50") for row in range(10) for column in range(4)]
    assert len(columns_of(cells)) == 1


def test_a_table_is_likely_where_rules_cross_and_not_where_a_line_divides() -> None:
    grid = [(50.0 + 80 * column, 600.0 - 20 * row, 130.0 + 80 * column, 620.0 - 20 * row) for row in range(4) for column in range(3)]  # fmt: skip
    assert is_likely(grid)
    assert not is_likely([(43, 742, 569, 743), (43, 683, 569, 684)])


def test_a_table_goes_on_over_the_page_break_without_its_repeated_header() -> None:
    head = ["Date", "Sum"]
    pages = [
        Table([1], [head, ["1 May", "5"]]),
        Table([2], [head, ["2 May", "6"]]),
        Table([4], [["other", "table"], ["1", "2"]]),
    ]
    first, second = joined(pages)
    assert (first.pages, first.rows) == ([1, 2], [head, ["1 May", "5"], ["2 May", "6"]])
    assert first.has_header
    assert second.pages == [4]
