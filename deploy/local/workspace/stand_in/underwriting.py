"""The stand-in as an underwriting assistant: calls the tools it is offered, and recommends by the policy's own rules.

It takes a chat with the underwriting tool set and answers with function calls, as a language model would. It
says that it is none, cites only what stands in the tools' results, and never decides.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from deploy.local.workspace.stand_in.answer import MODEL_NOTE

SUBMIT = "submit_recommendation"
EVIDENCE = ("credit_check", "income_verification", "debt_to_income_calc", "policy_lookup")
_ABOUT = {
    "credit_check": re.compile(r"(?i)\b(credit|score|bureau|delinquenc\w*)\b"),
    "income_verification": re.compile(r"(?i)\b(income|salary|payroll|employ\w*)\b"),
    "debt_to_income_calc": re.compile(r"(?i)\b(debt|dti|ratio)\b"),
    "policy_lookup": re.compile(r"(?i)\b(policy|limit\w*|threshold\w*|rule\w*)\b"),
}
_ASKED_AGAIN = re.compile(r"\b(re-?check|check|look|again|verif\w*|updat\w*|new(er)?)\b", re.IGNORECASE)

Message = dict[str, Any]
Results = dict[str, dict[str, Any]]


def is_asked(tools: object) -> bool:
    """Whether a chat offers the underwriting tool set."""
    return isinstance(tools, list) and SUBMIT in _names(tools)


def answer(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Message:
    """The assistant's message: calls of tools while something is to be looked up, then the recommendation."""
    offered = _names(tools)
    results = _results(messages)
    missing = [name for name in EVIDENCE if name not in results and name in offered]
    wanted = missing or [name for name in _asked_for(messages) if name in offered]
    if wanted:
        return _calling(f"I am a {MODEL_NOTE}; I look this up first.", [(name, {}) for name in wanted])
    return _calling(f"I am a {MODEL_NOTE}.", [(SUBMIT, _recommendation(results))])


def _recommendation(results: Results) -> dict[str, Any]:
    policy = _result(results, "policy_lookup")
    verdict = "refer" if policy is None else str(policy.get("recommendation", "refer"))
    reasons = [
        {"text": f"{name} gave no result: {_trouble(body)}", "cites": [name]}
        for name, body in results.items()
        if body.get("state") != "succeeded"
    ]
    rules = [] if policy is None else list(policy.get("rules", ()))
    failing = [rule for rule in rules if rule.get("recommendation") != "approve"]
    reasons += [
        {"text": str(rule["rationale"]), "cites": [str(rule["rule"]), str(rule["source"])]}
        for rule in (failing or rules)
    ]
    summary = f"Rule-based stand-in, not a language model: {verdict}"
    if policy is not None:
        summary += f" under {policy.get('policy_name')} {policy.get('policy_version')}"
        summary += f", {len(failing)} of {len(rules)} rules do not pass" if failing else ", every rule passes"
    figures = {
        name: value
        for name, tool, key in (
            ("credit_score", "credit_check", "score"),
            ("annual_income", "income_verification", "annual_income"),
            ("dti_percent", "debt_to_income_calc", "dti_percent"),
        )
        if (value := (_result(results, tool) or {}).get(key)) is not None
    }
    return {"recommendation": verdict, "summary": summary, "reasons": reasons[:20], "figures": figures}


def _asked_for(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the reviewer's last question wants looked up anew, unless that was done since."""
    last = max((at for at, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    text = str(messages[last].get("content", "")) if last >= 0 else ""
    looked = any(MODEL_NOTE in str(each.get("content") or "") for each in messages[last + 1 :])
    if looked or "asks for more information" not in text or not _ASKED_AGAIN.search(text):
        return []
    return [name for name in EVIDENCE if _ABOUT[name].search(text.split(":", 1)[-1])]


def _results(messages: Sequence[Mapping[str, Any]]) -> Results:
    """The newest result of each tool in the conversation."""
    found: Results = {}
    for message in messages:
        if message.get("role") != "tool":
            continue
        try:
            body = orjson.loads(str(message.get("content", "")))
        except orjson.JSONDecodeError:
            continue
        if isinstance(body, dict) and body.get("tool") in EVIDENCE:
            found[str(body["tool"])] = body
    return found


def _result(results: Results, tool: str) -> dict[str, Any] | None:
    found = results.get(tool, {}).get("result")
    return found if isinstance(found, dict) else None


def _trouble(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("message")) if isinstance(error, dict) else "no reason given"


def _names(tools: Sequence[Any]) -> set[str]:
    functions = (tool.get("function") for tool in tools if isinstance(tool, dict))
    return {str(function.get("name")) for function in functions if isinstance(function, dict)}


def _calling(content: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> Message:
    return {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "tool_calls": [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
            }
            for name, arguments in calls
        ],
    }
