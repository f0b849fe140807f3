"""Ten loan requests to try the underwriter with, and what the sample sources of evidence know about them.

Invented figures, no persons: approvals, referrals, a hard rejection by score and one by debt, missing and
contradictory data. `expected` is what the policy of the local stack makes of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from shared.contract.underwriting import Purpose, Verdict

MINOR = {"kind": "late_payment", "material": False, "reported_on": "2025-03-14", "amount": 85}
MATERIAL = {"kind": "charge_off", "material": True, "reported_on": "2025-08-02", "amount": 6_400}


@dataclass(frozen=True, slots=True)
class Sample:
    """One request; None for a file that a source does not have."""

    applicant: str
    title: str
    amount: Decimal
    purpose: Purpose
    expected: Verdict
    score: int | None
    monthly_debt: int | None
    income: int | None
    stated_income: int | None = None
    delinquencies: tuple[dict[str, Any], ...] = field(default=())

    def credit_file(self) -> dict[str, Any] | None:
        """What the sample credit bureau holds."""
        if self.score is None:
            return None
        return {
            "score": self.score,
            "monthly_debt": self.monthly_debt,
            "delinquencies": [dict(each) for each in self.delinquencies],
            "report": f"sample-bureau/{self.applicant}",
        }

    def income_file(self) -> dict[str, Any] | None:
        """What the sample payroll service holds."""
        if self.income is None:
            return None
        return {"annual_income": self.income, "report": f"sample-payroll/{self.applicant}", "months": 24}


SAMPLES: tuple[Sample, ...] = (
    Sample(
        "sample-01", "Debt a little too high, one late payment", Decimal(25_000), "home_improvement", "refer",
        665, 2_400, 76_000, 76_000, (MINOR,),
    ),
    Sample("sample-02", "Good score, low debt", Decimal(30_000), "auto", "approve", 760, 1_500, 120_000, 118_000),
    Sample("sample-03", "Exactly at the limits", Decimal(12_000), "home_improvement", "approve", 660, 1_800, 60_000),
    Sample(
        "sample-04", "Good figures, a material delinquency", Decimal(18_000), "personal", "refer",
        720, 900, 84_000, 84_000, (MATERIAL, MINOR),
    ),
    Sample("sample-05", "Score between the limits", Decimal(22_000), "auto", "refer", 615, 1_000, 66_000, 66_000),
    Sample("sample-06", "Score below the hard limit", Decimal(9_000), "personal", "deny", 545, 700, 52_000, 50_000),
    Sample(
        "sample-07", "Debt above the hard limit", Decimal(40_000), "debt_consolidation", "deny", 690, 3_900, 78_000
    ),
    Sample("sample-08", "No credit file", Decimal(7_500), "personal", "refer", None, None, 48_000, 48_000),
    Sample(
        "sample-09", "Income cannot be verified", Decimal(15_000), "home_improvement", "refer", 705, 800, None, 64_000
    ),
    Sample(
        "sample-10", "Stated income far above the verified one", Decimal(250_000), "home_purchase", "refer",
        740, 1_100, 82_000, 150_000,
    ),
)  # fmt: skip

BY_APPLICANT = {sample.applicant: sample for sample in SAMPLES}
