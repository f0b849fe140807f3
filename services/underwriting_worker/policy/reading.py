"""What the model said, read strictly: a few harmless shapes are tolerated, everything else is asked again.

Nothing that cannot be read ever becomes an approval, and what contradicts the policy is referred to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shared.contract.underwriting import Tool, Verdict

SUBMIT = "submit_recommendation"
MOST_CALLS = 8
_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_TOOLS = frozenset(tool.value for tool in Tool)


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _number(value: object) -> object:
    return value.replace(",", "").replace("$", "").replace("%", "").strip() if isinstance(value, str) else value


def _reason(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number)]


class Reason(BaseModel):
    """One reason, with the names of the tools or policy rules that it rests on."""

    model_config = ConfigDict(extra="ignore")

    text: str = Field(min_length=1, max_length=2_000)
    cites: list[str] = Field(default_factory=list, max_length=20)


class Figures(BaseModel):
    """Figures that the model says it used; held against the evidence."""

    model_config = ConfigDict(extra="ignore")

    credit_score: Annotated[int, BeforeValidator(_number)] | None = None
    annual_income: Number | None = None
    dti_percent: Number | None = None


class Recommendation(BaseModel):
    """The arguments of `submit_recommendation`."""

    model_config = ConfigDict(extra="ignore")

    recommendation: Annotated[Verdict, BeforeValidator(_word)]
    summary: str = Field(default="", max_length=4_000)
    reasons: list[Annotated[Reason, BeforeValidator(_reason)]] = Field(min_length=1, max_length=20)
    figures: Figures = Figures()


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer was: calls of tools, a recommendation, or neither (`trouble` says why)."""

    calls: tuple[dict[str, Any], ...] = ()
    recommendation: Recommendation | None = None
    trouble: str | None = None
    notes: tuple[str, ...] = field(default=())


def read_answer(message: Mapping[str, Any]) -> Reading:
    """What one assistant message of the OpenAI protocol asks for or recommends."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return _read_calls(calls)
    text = _THINKING.sub("", "".join(_texts(message.get("content")))).strip()
    if not text:
        return Reading(trouble="the answer is empty")
    objects = [each for each in _objects(text) if "recommendation" in each]
    if len(objects) != 1:
        said = "no recommendation" if not objects else f"{len(objects)} recommendations"
        return Reading(trouble=f"the answer holds {said}")
    return _validated(objects[0])


def check(reading: Reading, evidence: Mapping[str, Mapping[str, Any] | None]) -> Reading:
    """The same, unless its citations or figures do not stand up against the evidence."""
    found = reading.recommendation
    if found is None:
        return reading
    policy = evidence.get(Tool.POLICY_LOOKUP) or {}
    known = {name for name, result in evidence.items() if result is not None} | _failed(evidence)
    known |= {str(rule["rule"]) for rule in policy.get("rules", ())}
    if not any(cite in known for reason in found.reasons for cite in reason.cites):
        return Reading(trouble="no reason cites a tool's result or a policy rule")
    for name, said, result in _figures(found.figures, evidence):
        if said is not None and result is not None and abs(said - result) > max(0.01, abs(result) * 0.005):
            return Reading(trouble=f"the figure {name} is {said:g}, the evidence says {result:g}")
    return reading


def settle(found: Recommendation, evidence: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """The recommendation as a reviewer sees it: an approval that the policy does not carry becomes a referral."""
    policy = evidence.get(Tool.POLICY_LOOKUP)
    allowed = "refer" if policy is None else str(policy["recommendation"])
    given = found.recommendation
    verdict = "refer" if given == "approve" and allowed != "approve" else given
    settled: dict[str, Any] = {
        "recommendation": verdict,
        "summary": found.summary,
        "reasons": [reason.model_dump() for reason in found.reasons],
        "policy_recommendation": allowed,
        "source": "model",
    }
    if verdict != given:
        settled["overruled"] = {"model_said": given, "because": f"the policy says {allowed}"}
    return settled


def referral(reason: str, message: str) -> dict[str, Any]:
    """What stands in for a recommendation that nobody could give: a person decides on the evidence."""
    return {
        "recommendation": "refer",
        "summary": message,
        "reasons": [{"text": message, "cites": []}],
        "source": "fallback",
        "fallback": reason,
    }


def _failed(evidence: Mapping[str, Mapping[str, Any] | None]) -> set[str]:
    """That a tool gave nothing is evidence too, and may be cited."""
    return {name for name, result in evidence.items() if result is None}


def _figures(
    said: Figures, evidence: Mapping[str, Mapping[str, Any] | None]
) -> Iterable[tuple[str, float | None, float | None]]:
    for name, value, tool, key in (
        ("credit_score", said.credit_score, Tool.CREDIT_CHECK, "score"),
        ("annual_income", said.annual_income, Tool.INCOME_VERIFICATION, "annual_income"),
        ("dti_percent", said.dti_percent, Tool.DEBT_TO_INCOME, "dti_percent"),
    ):
        result = (evidence.get(tool) or {}).get(key)
        yield name, value, None if result is None else float(result)


def _read_calls(calls: Sequence[Any]) -> Reading:
    asked: list[dict[str, Any]] = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return Reading(trouble="a call is not a function call")
        name = str(function.get("name", ""))
        arguments = _arguments(function.get("arguments"))
        if arguments is None:
            return Reading(trouble=f"the arguments of {name or 'a call'} are not one JSON object")
        if name == SUBMIT:
            if len(calls) > 1:
                return Reading(trouble="a recommendation came together with other calls")
            return _validated(arguments)
        if name not in _TOOLS:
            return Reading(trouble=f"there is no tool {name[:100]!r}")
        # Whose file is read is never the model's choice: its arguments are kept, not used.
        asked.append({"tool": name, "arguments": arguments})
    if len(asked) > MOST_CALLS:
        return Reading(trouble=f"{len(asked)} calls in one answer are too many")
    return Reading(calls=tuple(asked))


def _validated(arguments: Mapping[str, Any]) -> Reading:
    try:
        return Reading(recommendation=Recommendation.model_validate(arguments))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Reading(trouble=f"{where}: {first['msg']}"[:300])


def _arguments(value: object) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        return None
    if not value.strip():
        return {}
    found = list(_objects(value))
    return found[0] if len(found) == 1 else None


def _texts(content: Any) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text":
                yield str(part.get("text", ""))


def _objects(text: str) -> Iterable[dict[str, Any]]:
    """Every JSON object at the top of a text, whatever prose or fences stand around it."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict):
                yield value
        at = text.find("{", end)
