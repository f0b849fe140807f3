"""Real documents, when they are at hand: each ends as a person would say it should."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from services.document_agent.__main__ import main
from services.document_agent.fields.evidence import folded
from tests.support.agents import AgentWorld
from tests.support.statements import ROOT

SAMPLES = Path(os.environ.get("LOCKKEEPER_SAMPLES", ROOT.parent / "shared" / "samples"))
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples beside the repository; LOCKKEEPER_SAMPLES names them"),
]


async def read(world: AgentWorld, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of a sample that must be completed, and its callback."""
    file = SAMPLES / f"{name}.pdf"
    attempt_id = await world.attempt(file.read_bytes(), name=file.name)
    end = await world.run(main, attempt_id)
    assert end.verb == "result", end.body
    result: dict[str, Any] = (await world.stored(attempt_id))["result"]
    for each in result["fields"].values():
        for value in each if isinstance(each, list) else [each] if each else []:
            dense = folded(value["evidence"]).replace(" ", "")
            assert dense in folded(result["text"].replace("\f", "\n")).replace(" ", ""), "an invented value"
    return result, end.body


@pytest.mark.parametrize("name", ["password-protected", "password-protected-2"])
async def test_p03_a_really_locked_file_fails_once_as_password_required(world: AgentWorld, name: str) -> None:
    attempt_id = await world.attempt((SAMPLES / f"{name}.pdf").read_bytes())
    end = await world.run(main, attempt_id)
    assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", "password_required", False)


async def test_p15_zero_bytes_are_refused(world: AgentWorld) -> None:
    end = await world.run(main, await world.attempt(b""))
    assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", "empty_file", False)


@pytest.mark.parametrize("name", ["fax-image-only", "grayscale-image-only"])
async def test_a_picture_without_words_is_completed_as_empty(world: AgentWorld, name: str) -> None:
    result, body = await read(world, name)
    assert result["document"]["is_empty"] is True
    assert not any(result["fields"].values())
    assert body["confidence"] == 0
    assert body.get("usage", []) == []


async def test_a_broken_character_map_is_completed_with_low_confidence(world: AgentWorld) -> None:
    result, body = await read(world, "arabic")
    assert body["confidence"] < 0.5
    assert result["pages"][0]["confidence"] < 0.5
    assert "cannot be believed" in body["damage"][0]


async def test_a_damaged_scan_is_read_and_the_damage_noted(world: AgentWorld) -> None:
    result, body = await read(world, "malformed")
    assert "2021" in result["text"]
    assert body["damage"]


async def test_a_table_over_sixteen_pages_is_one_table(world: AgentWorld) -> None:
    result, _ = await read(world, "warn-report-multipage-table")
    table = max(result["tables"], key=lambda each: each["row_count"])
    assert table["pages"] == list(range(1, 16))
    assert table["columns"][:3] == ["Notice Date", "Effective", "Received"]
    assert (table["row_count"], len(table["rows"])) == (633, 633)
    assert table["rows"][0][:6] == [
        "06/22/2015",
        "03/25/2016",
        "07/01/2015",
        "Maxim Integrated Product",
        "San Jose",
        "150",
    ]
    assert all(len(row[0]) == 10 for row in table["rows"])
    assert "cut" not in " ".join(result["document"]["damage"])


async def test_a_page_on_its_side_gives_the_same_table(world: AgentWorld) -> None:
    upright, _ = await read(world, "wide-table-landscape")
    turned, _ = await read(world, "wide-table-rotated")
    assert turned["tables"][0]["rows"] == upright["tables"][0]["rows"]
    assert sorted(turned["text"].split("\n")) == sorted(upright["text"].split("\n"))
    assert turned["fields"]["totals"] == upright["fields"]["totals"]
    assert turned["pages"][0]["turned"] == 270
    assert ["Alabama", "18,870", "23,022"] in [row[:3] for row in upright["tables"][0]["rows"]]


async def test_line_numbers_stay_with_their_lines(world: AgentWorld) -> None:
    result, _ = await read(world, "court-transcript")
    assert "10  Tuesday, January 13, 2009" in result["text"]
    assert "2009-01-13" in [each["value"]["date"] for each in result["fields"]["dates"]]


async def test_an_embedded_file_is_ignored_and_named(world: AgentWorld) -> None:
    result, _ = await read(world, "with-attachment")
    assert result["document"]["attachments_ignored"] == ["image.png"]


async def test_a_notice_in_three_columns_keeps_its_reading_order(world: AgentWorld) -> None:
    # Eight of its pages are pictures of text; what stands in them is not asked for here.
    world.configure(LOCKKEEPER_AGENT_OCR_PAGE_SECONDS=0.5)
    result, body = await read(world, "federal-register-rule")
    text = " ".join(result["text"].split())
    assert "contains notices to the public of the proposed issuance of rules and regulations" in text
    assert "Federal Aviation Administration" in text
    assert body["pages"] == 15
    assert "2020-09-21" in [each["value"]["date"] for each in result["fields"]["dates"]]


@pytest.mark.parametrize("name", ["ag-energy-report", "four-pages", "precinct-bulletin"])
async def test_other_documents_are_completed_with_their_text(world: AgentWorld, name: str) -> None:
    result, body = await read(world, name)
    assert result["document"]["is_empty"] is False
    assert body["confidence"] > 0.5


async def test_prices_of_a_market_report_carry_their_unit(world: AgentWorld) -> None:
    result, _ = await read(world, "ag-energy-report")
    prices = [(each["value"]["value"], each["value"]["currency"]) for each in result["fields"]["amounts"]]
    assert ("1.35", "USD") in prices
