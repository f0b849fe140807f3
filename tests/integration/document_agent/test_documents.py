"""The agent's entry point on whole documents: what it finds, and that it finds nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.local.documents import MAKERS
from services.document_agent.__main__ import main
from services.document_agent.fields.evidence import folded
from tests.support.agents import AgentWorld

pytestmark = pytest.mark.timeout(180)
QUICK = [name for name in MAKERS if "scan" not in name]


def values(result: dict[str, Any], name: str, key: str) -> list[Any]:
    return [each["value"][key] for each in result["fields"][name]]


@pytest.mark.parametrize("name", MAKERS)
async def test_a_made_document_ends_as_it_should_with_what_stands_in_it(world: AgentWorld, name: str) -> None:
    made = MAKERS[name]()
    attempt_id = await world.attempt(made.data, name=f"{name}.pdf")
    end = await world.run(main, attempt_id)
    if made.end == "failed":
        assert (end.verb, end.body["reason"], end.body["retryable"]) == ("failure", made.reason, False)
        return
    assert end.verb == "result"
    stored = await world.stored(attempt_id)
    result, expected = stored["result"], made.expected
    assert stored["pages"] == made.pages == len(result["pages"])
    text = folded(result["text"])
    for each in expected.get("text", []):
        assert folded(each) in text
    if kind := expected.get("document_type"):
        assert kind in result["fields"]["document_type"]["value"]
    assert set(expected.get("dates", [])) <= set(values(result, "dates", "date"))
    assert set(expected.get("parties", [])) <= set(values(result, "parties", "name"))
    sums = {
        (f"{float(each['value']['value']):.2f}", each["value"]["currency"])
        for each in result["fields"]["amounts"] + result["fields"]["totals"]
    }
    assert set(expected.get("totals", []) + expected.get("amounts", [])) <= sums
    for each in result["fields"].values():
        for value in each if isinstance(each, list) else [each] if each else []:
            assert folded(value["evidence"]).replace(" ", "") in text.replace(" ", "")
            assert 0 < value["confidence"] <= 1
    if rows := expected.get("table_rows"):
        (table,) = [each for each in result["tables"] if each["row_count"] == rows]
        assert table["rows"][-1] == expected["last_row"]
    if methods := expected.get("methods"):
        assert [page["method"] for page in result["pages"]] == methods
    assert result["document"]["attachments_ignored"] == expected.get("attachments", [])
    assert bool(end.body.get("damage")) == expected.get("damage", False)
    assert stored["confidence"] == pytest.approx(end.body["confidence"])
    assert stored["confidence"] > 0.8
