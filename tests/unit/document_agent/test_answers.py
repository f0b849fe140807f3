"""The shapes in which models answer: those that are tolerated, and those that are asked for again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.document_agent.fields.answers import read_answer
from services.document_agent.fields.schema import DEFAULT_SCHEMA, field_schema, kind_of
from shared.agent_kit import RejectedError

SCHEMA = field_schema({})
OWN = field_schema(
    {
        "schema": {
            "type": "object",
            "properties": {
                "score": {"type": "number"},
                "decision": {"type": "string", "enum": ["approve", "deny"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "address": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    }
)
FULL: dict[str, Any] = {
    "document_type": "invoice",
    "parties": [{"name": "A Ltd", "role": None, "evidence": "A Ltd"}],
    "dates": [],
    "amounts": [],
    "totals": [{"label": "Total", "value": "5.00", "currency": "EUR", "evidence": "Total 5.00"}],
    "summary": None,
    "evidence": {"document_type": "INVOICE", "summary": None},
}


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(FULL),
        f"```json\n{json.dumps(FULL, indent=2)}\n```",
        f"Here you are:\n{json.dumps(FULL)}\nAnything else?",
        f'{{"thought": "it is an invoice"}} {json.dumps(FULL)}',
        f"Let me see {{so}} {json.dumps(FULL)} {json.dumps(FULL)}",
    ],
)
def test_t13_fences_prose_and_second_objects_are_tolerated(said: str) -> None:
    assert read_answer(said, SCHEMA) == (FULL, [])


def test_t13_missing_fields_are_empty_and_unasked_ones_left_out() -> None:
    answer, faults = read_answer('{"document_type": "letter", "mood": "good"}', SCHEMA)
    assert faults == []
    assert answer is not None
    assert (answer["parties"], answer["summary"]) == ([], None)
    assert "mood" not in answer


def test_t13_values_come_as_the_type_that_is_asked_for() -> None:
    said = {"score": "665", "decision": "APPROVE", "tags": "one", "address": {"city": "Bath", "zip": 1}}
    answer, faults = read_answer(json.dumps(said), OWN)
    assert faults == []
    assert answer is not None
    assert (answer["score"], answer["decision"], answer["address"]) == (665.0, "approve", {"city": "Bath"})
    assert answer["tags"] == [{"value": "one", "evidence": None}]


def test_t13_a_number_where_text_is_asked_and_a_wrapped_value() -> None:
    said = {"document_type": {"value": "bill", "evidence": "BILL"}, "totals": [{"value": 76000.5, "evidence": "x"}]}
    answer, faults = read_answer(json.dumps(said), SCHEMA)
    assert faults == []
    assert answer is not None
    assert (answer["document_type"], answer["evidence"]["document_type"]) == ("bill", "BILL")
    assert answer["totals"][0]["value"] == "76000.5"


@pytest.mark.parametrize(
    "said", ["", "I cannot do that.", "[1, 2]", '{"a": 1}', "{document_type: 'invoice'", '{"parties": [{"name": {}}]}']
)
def test_t13_everything_else_is_a_fault(said: str) -> None:
    answer, faults = read_answer(said, SCHEMA)
    assert answer is None
    assert faults


def test_t13_an_unknown_choice_is_a_fault_not_a_decision() -> None:
    answer, faults = read_answer('{"decision": "maybe"}', OWN)
    assert answer is None
    assert "decision" in faults[0]


def test_p01_what_nobody_can_store_is_taken_out_of_an_answer() -> None:
    answer, _ = read_answer('{"document_type": "in\\u0000voice\\ud800"}', SCHEMA)
    assert answer is not None
    assert answer["document_type"] == "invoice"


@pytest.mark.parametrize(
    "schema", [{"type": "banana"}, {"properties": {}}, [], {"properties": {"a": 1}}, {"properties": {"evidence": {}}}]
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any) -> None:
    with pytest.raises(RejectedError) as refused:
        field_schema({"schema": schema or [1]})
    assert refused.value.reason == "schema_invalid"


def test_kinds_of_the_default_fields() -> None:
    sums = DEFAULT_SCHEMA["properties"]["totals"]["items"]["properties"]
    assert {name: kind_of(name, one) for name, one in sums.items()} == {
        "label": "derived",
        "value": "amount",
        "currency": "currency",
    }
    assert kind_of("signed", {"type": "string", "format": "date"}) == "date"
    assert kind_of("count", {"type": ["integer", "null"]}) == "number"


def test_the_answer_that_is_asked_for_is_closed_and_complete() -> None:
    def check(schema: dict[str, Any]) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False
            assert set(schema["required"]) == set(schema["properties"])
            for each in schema["properties"].values():
                check(each)
        if "items" in schema:
            check(schema["items"])
        assert not [key for key in schema if key.startswith("x-")]

    check(SCHEMA.answer)
    check(OWN.answer)
