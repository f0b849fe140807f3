"""The conversation with the model, made of the record: the same rows give the same prompt, attempt after attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.underwriting_worker.policy.reading import SUBMIT
from shared.contract.underwriting import Tool

Json = dict[str, Any]
Row = Mapping[str, Any]

LONGEST_RESULT = 20_000
"""Characters of one tool result that the model is shown; the whole of it stays in the record."""

SYSTEM = (
    "You assist a loan underwriter. You recommend, you never decide: a person decides after you. "
    "Base everything on the results of the tools and on the rules of the policy lookup. You may call tools again. "
    f"End with one call of {SUBMIT}: approve, refer or deny, with reasons that cite tools by name or policy rules by "
    "name. Refer to a person whenever evidence is missing, contradictory or not covered by the policy."
)

_EVIDENCE = {
    Tool.CREDIT_CHECK: "The applicant's credit file: score, monthly debt, delinquencies.",
    Tool.INCOME_VERIFICATION: "The applicant's verified income, held against what was stated.",
    Tool.DEBT_TO_INCOME: "Monthly debt in percent of monthly income, from the newest credit file and income.",
    Tool.POLICY_LOOKUP: "The lending policy of this purpose, rule by rule, held against the evidence.",
}


def tools() -> list[Json]:
    """The functions that the model is offered."""
    asked = {
        "type": "object",
        "properties": {"why": {"type": "string", "description": "What this call should clarify."}},
    }
    offered = [_function(tool.value, about, asked) for tool, about in _EVIDENCE.items()]
    return [*offered, _function(SUBMIT, "Your recommendation to the person who decides.", _recommendation())]


def opening(request: Row) -> str:
    """The request in words, as the first message of the first turn."""
    stated = [
        f"stated {label}: {request[name]} USD"
        for name, label in (("stated_annual_income", "annual income"), ("stated_monthly_debt", "monthly debt"))
        if request.get(name) is not None
    ]
    parts = [
        f"Loan request: {request['amount']} USD for {str(request['purpose']).replace('_', ' ')}.",
        f"Applicant: {request['applicant']}.",
        *(f"The applicant {each}." for each in stated),
        "Recommend what to do.",
    ]
    return " ".join(parts)


def question(reviewer: str, note: str) -> str:
    """What a reviewer asks for, as the first message of a later turn."""
    return f"The reviewer {reviewer} asks for more information: {note or '(no note)'}"


def prompt(messages: Sequence[Row], calls: Sequence[Row], *, upto: tuple[int, int], trouble: str | None) -> list[Json]:
    """The messages of one model call at (turn, position), in the OpenAI protocol."""
    said: list[Json] = [{"role": "system", "content": SYSTEM}]
    entries: list[tuple[tuple[int, int], list[Json]]] = []
    for row in messages:
        place = (row["turn"], row["position"])
        if place >= upto or row["state"] != "complete" or row["role"] == "system":
            continue
        asked = [call for call in calls if call["message_id"] == row["message_id"]]
        entries.append((place, _message(row, asked)))
    for turn in {call["turn"] for call in calls}:
        planned = [call for call in calls if call["turn"] == turn and call["message_id"] is None]
        if planned:
            entries.append(((turn, planned[0]["position"]), _exchange("", planned)))
    for _, group in sorted(entries, key=lambda entry: entry[0]):
        said += group
    if trouble is not None:
        said.append({"role": "user", "content": f"Your last answer could not be used: {trouble}. Answer again."})
    return said


def evidence(rows: Sequence[Row]) -> dict[str, Json | None]:
    """The newest result of each tool that has ended; None for one that failed."""
    return {row["tool"]: row["result"] if row["state"] == "succeeded" else None for row in rows}


def _message(row: Row, calls: Sequence[Row]) -> list[Json]:
    if row["role"] == "assistant" and calls:
        return _exchange(row["content"], calls)
    return [{"role": row["role"], "content": row["content"] or "(empty)"}]


def _exchange(content: str, calls: Sequence[Row]) -> list[Json]:
    ended = [call for call in calls if call["state"] != "running"]
    asked = [
        {
            "id": str(call["tool_call_id"]),
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call["arguments"])},
        }
        for call in ended
    ]
    return [
        {"role": "assistant", "content": content, "tool_calls": asked},
        *({"role": "tool", "tool_call_id": str(call["tool_call_id"]), "content": _shown(call)} for call in ended),
    ]


def _shown(call: Row) -> str:
    body = {"tool": call["tool"], "state": call["state"]}
    body |= {"result": call["result"]} if call["state"] == "succeeded" else {"error": call["error"]}
    text = json.dumps(body)
    if len(text) <= LONGEST_RESULT:
        return text
    kept = {name: value for name, value in (call["result"] or {}).items() if len(json.dumps(value)) <= 2_000}
    return json.dumps({**body, "result": kept, "left_out": f"{len(text)} characters are kept in the record"})


def _function(name: str, about: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _recommendation() -> Json:
    reason = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "cites": {"type": "array", "items": {"type": "string"}, "description": "names of tools or policy rules"},
        },
        "required": ["text", "cites"],
    }
    figures = {
        "type": "object",
        "properties": {name: {"type": "number"} for name in ("credit_score", "annual_income", "dti_percent")},
    }
    return {
        "type": "object",
        "properties": {
            "recommendation": {"type": "string", "enum": ["approve", "refer", "deny"]},
            "summary": {"type": "string"},
            "reasons": {"type": "array", "items": reason},
            "figures": figures,
        },
        "required": ["recommendation", "reasons"],
    }
