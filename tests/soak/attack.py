"""The whole OpenAPI of the console and the underwriting API, called with all that fits and all that does not.

Schemathesis makes the calls from the documents themselves, by turns for every operation. Half of the ids and
names lead to real rows, and every text may carry a statement, markup, a path or an address. As an
administrator nothing may answer 5xx or tell of our insides; as a viewer nothing may have an effect.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from tests.support import hostile
from tests.support.attacked import ADMIN, DOCUMENTS, Attacked, Known, attacked
from tests.support.batch import page

TURNS = [(mode, who) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) for who in ("admin", "viewer")]
LATEST_SECONDS = 30.0
_LEAKS = re.compile(
    r"Traceback|asyncpg|File \"/|\bat 0x[0-9a-f]{6}|lockkeeper_(console|owner)|postgresql://[^1]|syntax error at|"
    r"relation \"|column \"|PGPASSWORD|BEGIN PRIVATE KEY|/site-packages/|root:x:0"
)
_NOT_AN_ANSWER = frozenset({503, 507})
"""Said on purpose when something outside is away."""
_SECONDS_KNOWN = 10.0


@dataclass
class Witness:
    """What was answered."""

    faults: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def judge(self, person: str, label: str, answer: Any, sent: str) -> None:
        self.calls[label] += 1
        self.answers[f"{person} {answer.status_code}"] += 1
        self.served[label] += person == "admin" and answer.status_code < 300
        self.slowest = max(self.slowest, answer.elapsed)
        text = answer.text[:100_000] if "json" in answer.headers.get("content-type", [""])[0] else ""
        said = None
        if answer.status_code >= 500 and answer.status_code not in _NOT_AN_ANSWER:
            said = f"{answer.status_code} {text[:300]}"
        elif answer.status_code >= 400 and (leak := _LEAKS.search(text)):
            said = f"tells {leak[0]!r}: {text[:300]}"
        elif person == "viewer" and answer.request.method not in {"GET", "HEAD"} and answer.status_code < 400:
            said = f"let a viewer {answer.request.method}: {answer.status_code}"
        elif answer.elapsed > LATEST_SECONDS:
            said = f"{answer.status_code} after {answer.elapsed:.1f} s"
        if said is not None:
            self.fault(f"{label} as {person}: {said} <- {sent[:300]}")

    def fault(self, said: str) -> None:
        """Put on record what must not be."""
        if len(self.faults) < 50:
            self.faults.append(said)
            print(said, flush=True)


class Hand:
    """Puts into a call what leads somewhere, and what should not."""

    def __init__(self, known: Known, number: int) -> None:
        self._known = known
        self._chance = random.Random(number)

    def spoil(self, case: Any) -> None:
        """Half of the ids become real ones, and now and then a text becomes hostile."""
        path, query = case.path_parameters or {}, case.query or {}
        self._aim(path, "customer" if "/customers/" in case.operation.label else "agent", 0.7)
        if "review_id" in path and "review" in self._known and self._chance.random() < 0.7:
            path["run_id"], path["review_id"] = self._chance.choice(self._known["review"]).split()
        self._aim(query, "agent", 0.4)
        self._poison(query)
        for body in _objects(case.body):
            self._aim(body, "agent", 0.6)
            self._poison(body)
        if isinstance(case.body, dict) and "multipart" in (case.media_type or "") and self._chance.random() < 0.5:
            case.body["files"] = [page(self._chance.randint(1, 1000))]

    def _aim(self, given: dict[str, Any], name: str, likely: float) -> None:
        for key, value in list(given.items()):
            kind = name if key == "name" else key
            if kind in self._known and self._chance.random() < likely:
                real = self._chance.choice(self._known[kind])
                given[key] = [real] if isinstance(value, list) else real

    def _poison(self, given: dict[str, Any]) -> None:
        texts = [key for key, value in given.items() if isinstance(value, str)]
        if texts and self._chance.random() < 0.3:
            given[self._chance.choice(texts)] = self._chance.choice(hostile.ALL)


def _objects(body: Any) -> list[dict[str, Any]]:
    """A body and the objects in its lists, such as prices and children."""
    if not isinstance(body, dict):
        return []
    lists = [value for value in body.values() if isinstance(value, list)]
    return [body, *(each for some in lists for each in some if isinstance(each, dict))]


def operations(it: Attacked) -> list[tuple[str, Any]]:
    """Every operation of both documents with the address that it is sent to."""
    found = []
    for name, document in DOCUMENTS.items():
        answer = httpx.get(it.urls[name] + document, headers=ADMIN, timeout=30, trust_env=False)
        schema = schemathesis.openapi.from_dict(answer.json())
        found += [(it.urls[name], each.ok()) for each in schema.get_all_operations()]
    return found


def attack(it: Attacked, witness: Witness, until: float, examples: int, session: requests.Session) -> int:
    """All operations by turns until the time is over, the first turn in any case; how many there are."""
    all_of_them, number, looked = operations(it), 0, 0.0
    strategies: dict[tuple[str, GenerationMode], Any] = {}
    known = it.known()
    while True:
        for mode, person in TURNS:
            for url, operation in all_of_them:
                number += 1
                if number > len(all_of_them) and time.monotonic() > until:
                    return len(all_of_them)
                if time.monotonic() > looked + _SECONDS_KNOWN:
                    known, looked = it.known(), time.monotonic()
                key = operation.label, mode
                if key not in strategies:
                    strategies[key] = operation.as_strategy(generation_mode=mode)
                _storm(strategies[key], url, person, witness, examples, Hand(known, number), number, session)


def _storm(
    strategy: Any,
    url: str,
    person: str,
    witness: Witness,
    examples: int,
    hand: Hand,
    number: int,
    session: requests.Session,
) -> None:
    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    @given(case=strategy)
    def storm(case: Any) -> None:
        hand.spoil(case)
        sent = f"{case.path_parameters} {case.query} {case.body!r}"
        try:
            answer = case.call(base_url=url, headers={"X-Forwarded-User": person}, timeout=60, session=session)
        except OSError as error:
            witness.fault(f"{case.operation.label} as {person}: broke off, {error} <- {sent[:300]}")
        else:
            witness.judge(person, case.operation.label, answer, sent)

    try:
        storm()
    except Exception as error:  # noqa: BLE001 - what cannot be made or sent is no answer, and is counted
        witness.answers[f"not sent: {type(error).__name__}"] += 1


def run(minutes: float) -> dict[str, Any]:
    """The attack over so many minutes."""
    witness, examples = Witness(), 8 if minutes >= 10 else 2
    with (
        tempfile.TemporaryDirectory(prefix="lockkeeper-attack-") as folder,
        attacked(Path(folder)) as it,
        requests.Session() as session,
    ):
        there = attack(it, witness, time.monotonic() + minutes * 60, examples, session)
        rows = it.rows()
        witness.faults += it.complaints()
    if len(witness.calls) < there:
        witness.faults.append(f"{there - len(witness.calls)} operations were never called")
    return {
        "name": "soak_attack", "minutes": minutes, "faults": witness.faults, "answers": dict(witness.answers),
        "calls": witness.calls.total(), "operations": len(witness.calls), "of_operations": there,
        "calls_by_operation": {label: [count, witness.served[label]] for label, count in witness.calls.items()},
        "slowest_seconds": round(witness.slowest, 1), "rows": rows,
    }  # fmt: skip
