"""The main job as a story: PDFs in, structured results and costs out, over the public HTTP API.

It is also the shortest example of a client: upload, submit, look, and ask for the costs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from deploy.local.expectations import Expectation

AGENT = "document-agent"
TERMINAL = frozenset({"completed", "failed", "cancelled"})
POLL_SECONDS = 0.5
COSTS_SECONDS = 30.0
"""How long to wait for the bill after the last task has ended."""

PATIENCE_SECONDS = 60.0
RESTARTING = frozenset({502, 503, 504})

Json = dict[str, Any]


@dataclass(slots=True)
class Paper:
    """One document on its way: what should become of it, and what has."""

    file: Path
    expectation: Expectation
    task: Json | None = None
    refusal: Json | None = None

    @property
    def end(self) -> str:
        """`refused`, or the status of its task."""
        if self.task is None:
            return "refused" if self.refusal else "waiting"
        return str(self.task["status"])

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.end == "refused" or self.end in TERMINAL

    @property
    def reason(self) -> str | None:
        """Why it was refused or failed."""
        if self.task is None:
            return (self.refusal or {}).get("reason")
        return (self.task.get("error") or {}).get("reason")

    @property
    def trouble(self) -> str | None:
        """Why its end is not the right one; None when it is."""
        attempts = self.task["attempt"] if self.task else 0
        return self.expectation.violated_by(self.end, self.reason, attempts)

    @property
    def seconds(self) -> float | None:
        """From the acceptance of the task to its end."""
        if self.task is None or not self.task.get("finished_at"):
            return None
        return _instant(self.task["finished_at"]) - _instant(self.task["created_at"])


class Demo:
    """Carries a pile of papers through a running stack. Raises httpx.HTTPError when the stack fails it."""

    def __init__(self, url: str, papers: Sequence[Paper]) -> None:
        self.papers = papers
        self.label = uuid4().hex[:12]
        self._http = httpx.Client(base_url=f"{url}/api/v1", timeout=120, trust_env=False)

    def submit(self) -> Iterator[Paper]:
        """Upload and submit each paper; those that are refused say why."""
        for number, paper in enumerate(self.papers):
            content = paper.file.read_bytes()
            body = self._ask("POST", "/documents", files={"files": (paper.file.name, content, "application/pdf")})
            if body.get("documents"):
                request = {
                    "agent": AGENT,
                    "document_id": body["documents"][0]["id"],
                    "customer": "demo",
                    "labels": {"demo": self.label},
                    "idempotency_key": f"demo-{self.label}-{number}",  # so that asking again makes no second task
                }
                paper.task = self._ask("POST", "/tasks", json=request)
            elif body.get("refused"):
                paper.refusal = body["refused"][0]
            else:
                raise httpx.DecodingError(f"neither stored nor refused: {paper.file.name}: {body}")
            yield paper

    def progress(self) -> Iterator[None]:
        """Look again and again until every paper is over."""
        while not all(paper.is_over for paper in self.papers):
            self._look(paper for paper in self.papers if not paper.is_over)
            yield
            time.sleep(POLL_SECONDS)

    def costs(self) -> Iterator[None]:
        """Ask the billing tables, and look until each cost is known or the patience is over."""
        self._ask("POST", "/costs/refresh", json={})
        deadline = time.monotonic() + COSTS_SECONDS
        asked_again = time.monotonic()
        while any(_is_unbilled(paper.task) for paper in self.papers) and time.monotonic() < deadline:
            self._look(paper for paper in self.papers if _is_unbilled(paper.task))
            yield
            time.sleep(POLL_SECONDS)
            if time.monotonic() - asked_again > COSTS_SECONDS / 5:
                asked_again = time.monotonic()
                self._ask("POST", "/costs/refresh", json={})

    def _look(self, papers: Iterable[Paper]) -> None:
        for paper in papers:
            if paper.task is not None:
                paper.task = self._ask("GET", f"/tasks/{paper.task['id']}")

    def _ask(self, method: str, path: str, **options: Any) -> Json:
        """The answer's body; a service that restarts is waited for, a refused upload is an answer too."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(httpx.TransportError):
                answer = self._http.request(method, path, **options)
                if answer.status_code not in RESTARTING:
                    break
            if time.monotonic() > deadline:
                raise httpx.ConnectError(f"{self._http.base_url} does not answer")
            time.sleep(POLL_SECONDS)
        if path != "/documents":
            answer.raise_for_status()
        body: Json = answer.json()
        return body


def amount(task: Json | None, kind: str) -> Decimal | None:
    """A cost of a task; None when it is not known."""
    with suppress(InvalidOperation, TypeError, KeyError):
        if task is not None:
            return Decimal(task[kind])
    return None


def summary(papers: Sequence[Paper], seconds: float) -> str:
    """The one line for machines."""
    ends = [paper.end for paper in papers]
    troubles = {paper.file.name: paper.trouble for paper in papers if paper.trouble}
    line: Json = {
        "submitted": len(ends) - ends.count("refused"),
        "completed": ends.count("completed"),
        "failed": ends.count("failed"),
        "refused": ends.count("refused"),
        "seconds": round(seconds, 1),
        "unexpected": troubles,
    }
    return json.dumps(line, ensure_ascii=False)


def _is_unbilled(task: Json | None) -> bool:
    return task is not None and None in {amount(task, "llm_cost"), amount(task, "compute_cost")}


def _instant(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
