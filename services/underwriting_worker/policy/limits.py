"""What the lending policy says about the evidence: every rule with its threshold, the actual value and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

Json = dict[str, Any]

FIXTURE_SOURCE = "fixture_fallback"
CONTRADICTION_SHARE = Decimal("0.20")
"""Stated and verified figures that differ by more than this share contradict each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one loan purpose, and where they come from."""

    purpose: str
    policy_name: str
    policy_version: str
    minimum_score: int
    automatic_approval_dti: Decimal
    hard_reject_score: int
    hard_reject_dti: Decimal
    source: str
    synced_at: datetime | None = None


def fixture(purpose: str) -> Limits:
    """The limits that stand in for a missing row, when the settings allow that; they are strict on purpose."""
    return Limits(purpose, "fixture", "fixture-1", 700, Decimal(30), 580, Decimal(50), FIXTURE_SOURCE)


def debt_to_income(monthly_debt: Decimal, annual_income: Decimal) -> Decimal | None:
    """Monthly debt in percent of monthly income, two digits; None without an income."""
    if annual_income <= 0:
        return None
    return (monthly_debt * 1200 / annual_income).quantize(Decimal("0.01"), ROUND_HALF_UP)


def contradicts(stated: Decimal | None, verified: Decimal | None) -> bool:
    """Whether the applicant's word and the better source are too far apart to be the same thing."""
    if stated is None or verified is None:
        return False
    return abs(stated - verified) > CONTRADICTION_SHARE * max(stated, verified)


def judge(limits: Limits, evidence: Mapping[str, Mapping[str, Any] | None]) -> Json:
    """The lookup's result: the rules one by one, and what they add up to.

    `evidence` holds the results of `credit_check`, `income_verification` and `debt_to_income_calc`, None for
    those that are missing. A rule that cannot be judged recommends to refer, never to approve.
    """
    credit, income = evidence.get("credit_check"), evidence.get("income_verification")
    ratio = evidence.get("debt_to_income_calc")
    score = None if credit is None else int(credit["score"])
    percent = None if ratio is None else Decimal(str(ratio["dti_percent"]))
    rules = [
        _floor("hard_reject_score", limits.hard_reject_score, score, "credit_check", "deny"),
        _floor("minimum_score", limits.minimum_score, score, "credit_check", "refer"),
        _ceiling("hard_reject_dti", limits.hard_reject_dti, percent, "debt_to_income_calc", "deny"),
        _ceiling("automatic_approval_dti", limits.automatic_approval_dti, percent, "debt_to_income_calc", "refer"),
        _delinquencies(credit),
        _consistency(credit, income, ratio),
    ]
    return {
        "purpose": limits.purpose,
        "policy_name": limits.policy_name,
        "policy_version": limits.policy_version,
        "source": limits.source,
        "synced_at": None if limits.synced_at is None else limits.synced_at.isoformat(),
        "rules": rules,
        "recommendation": strictest(rule["recommendation"] for rule in rules),
    }


def strictest(verdicts: Any) -> str:
    """What several verdicts add up to: one deny denies, one refer refers."""
    found = set(verdicts)
    return "deny" if "deny" in found else "refer" if "refer" in found else "approve"


def _rule(name: str, limits: tuple[Any, Any], passed: bool | None, source: str, *, failing: str, why: str) -> Json:
    threshold, actual = limits
    recommendation = "approve" if passed else "refer" if passed is None else failing
    return {
        "rule": name, "threshold": threshold, "actual": actual, "passed": passed, "source": source,
        "recommendation": recommendation, "rationale": why,
    }  # fmt: skip


def _floor(name: str, threshold: int, actual: int | None, source: str, failing: str) -> Json:
    passed = None if actual is None else actual >= threshold
    why = f"the score {actual} is {'not ' if passed else ''}below {threshold}"
    if passed is None:
        why = "there is no score, so a person must look"
    return _rule(name, (threshold, actual), passed, source, failing=failing, why=why)


def _ceiling(name: str, threshold: Decimal, actual: Decimal | None, source: str, failing: str) -> Json:
    passed = None if actual is None else actual <= threshold
    why = f"debt-to-income of {actual} % is {'not ' if passed else ''}above {threshold.normalize():f} %"
    if passed is None:
        why = "debt-to-income could not be calculated, so a person must look"
    shown = (float(threshold), None if actual is None else float(actual))
    return _rule(name, shown, passed, source, failing=failing, why=why)


def _delinquencies(credit: Mapping[str, Any] | None) -> Json:
    name, source = "material_delinquencies", "credit_check"
    if credit is None:
        return _rule(name, (0, None), None, source, failing="refer", why="there is no credit file to look into")
    material = sum(1 for each in credit["delinquencies"] if each["material"])
    minor = len(credit["delinquencies"]) - material
    why = f"{material} material and {minor} non-material delinquencies on file"
    return _rule(name, (0, material), material == 0, source, failing="refer", why=why)


def _consistency(
    credit: Mapping[str, Any] | None, income: Mapping[str, Any] | None, ratio: Mapping[str, Any] | None
) -> Json:
    name, source = "evidence_is_consistent", "income_verification"
    if credit is None or income is None or ratio is None:
        given = (("credit_check", credit), ("income_verification", income), ("debt_to_income_calc", ratio))
        missing = ", ".join(tool for tool, found in given if found is None)
        return _rule(name, (True, None), None, source, failing="refer", why=f"evidence is missing: {missing}")
    found = [*income.get("contradictions", ()), *ratio.get("contradictions", ())]
    why = "; ".join(found) or "stated and verified figures agree"
    return _rule(name, (True, not found), not found, source, failing="refer", why=why)
