from __future__ import annotations

import json
from typing import Any

import pytest

from services.underwriting_worker.policy.reading import SUBMIT, check, read_answer, settle

GOOD = {"recommendation": "approve", "reasons": [{"text": "every rule passes", "cites": ["policy_lookup"]}]}
EVIDENCE: dict[str, Any] = {
    "credit_check": {"score": 665},
    "income_verification": {"annual_income": 76_000.0},
    "debt_to_income_calc": {"dti_percent": 37.89},
    "policy_lookup": {"recommendation": "approve", "rules": [{"rule": "minimum_score"}]},
}


def calling(arguments: object, name: str = SUBMIT) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": text}}]}


@pytest.mark.parametrize(
    "message",
    [
        calling(GOOD),
        calling({**GOOD, "recommendation": " APPROVE "}),
        calling(f"```json\n{json.dumps(GOOD)}\n```"),
        {"content": f"```json\n{json.dumps(GOOD)}\n```"},
        {"content": f"Here is what I think: {json.dumps(GOOD)} I hope that helps."},
        {"content": f'<think>deny? {{"recommendation": "deny"}}</think>{json.dumps(GOOD)}'},
        {"content": [{"type": "thinking", "thinking": "{}"}, {"type": "text", "text": json.dumps(GOOD)}]},
        calling({**GOOD, "reasons": ["every rule passes"], "figures": {"credit_score": "665", "annual_income": "76,000"}}),
    ],
    ids=["call", "upper case", "fenced call", "fenced text", "prose", "thinking tag", "thinking part", "text numbers"],
)  # fmt: skip
def test_t_13_harmless_shapes_are_read(message: dict[str, Any]) -> None:
    found = read_answer(message).recommendation
    assert found is not None
    assert found.recommendation == "approve"
    if found.figures.credit_score is not None:
        assert (found.figures.credit_score, found.figures.annual_income) == (665, 76_000)


@pytest.mark.parametrize(
    "message",
    [
        {"content": ""},
        {},
        {"content": "approve"},
        {"content": json.dumps(GOOD) + json.dumps({**GOOD, "recommendation": "deny"})},
        calling({**GOOD, "recommendation": "perhaps"}),
        calling({**GOOD, "reasons": []}),
        calling("{not json"),
        calling({**GOOD}, name="transfer_money"),
        {"tool_calls": ["nonsense"]},
        {"tool_calls": [*calling(GOOD)["tool_calls"], *calling({}, "credit_check")["tool_calls"]]},
        {"tool_calls": calling({}, "credit_check")["tool_calls"] * 9},
    ],
    ids=["empty", "nothing", "a word", "two objects", "unknown word", "no reason", "broken", "unknown tool", "no call",
         "both", "too many"],
)  # fmt: skip
def test_t_13_everything_else_is_a_trouble_and_never_an_approval(message: dict[str, Any]) -> None:
    found = read_answer(message)
    assert found.trouble
    assert found.recommendation is None


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"reasons": [{"text": "a feeling", "cites": ["gut"]}]}, "cites"),
        ({"figures": {"credit_score": 765}}, "credit_score"),
        ({"figures": {"dti_percent": 12}}, "dti_percent"),
    ],
)
def test_what_does_not_stand_up_against_the_evidence_is_a_trouble(change: dict[str, Any], trouble: str) -> None:
    found = check(read_answer(calling({**GOOD, **change})), EVIDENCE)
    assert trouble in (found.trouble or "")


@pytest.mark.parametrize(
    ("policy", "said", "becomes"),
    [("approve", "approve", "approve"), ("refer", "approve", "refer"), ("deny", "approve", "refer"),
     (None, "approve", "refer"), ("approve", "deny", "deny"), ("deny", "refer", "refer")],
)  # fmt: skip
def test_an_approval_needs_the_policy_behind_it(policy: str | None, said: str, becomes: str) -> None:
    found = read_answer(calling({**GOOD, "recommendation": said})).recommendation
    assert found is not None
    evidence = {**EVIDENCE, "policy_lookup": None if policy is None else {"recommendation": policy, "rules": []}}
    settled = settle(found, evidence)
    assert settled["recommendation"] == becomes
    assert ("overruled" in settled) == (becomes != said)


def test_calls_of_tools_are_kept_as_they_were_asked() -> None:
    found = read_answer({"tool_calls": calling({"applicant": "somebody else"}, "credit_check")["tool_calls"]})
    assert found.calls == ({"tool": "credit_check", "arguments": {"applicant": "somebody else"}},)
