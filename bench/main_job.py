"""Bench `main_job`: a one-page text PDF from accepted to completed, and two hundred of them in one batch.

It uses the stack that runs in a folder (`--data`, by default the checkout's own) or starts one of its own. Twenty
pages one after another give the median and each stage's share; the batch gives pages a second, what both
cores did, and the memory of every process. Run: `python -m bench.main_job [--data DIR] [--pages 20] [--batch 200]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from deploy.local.folder import StackFolder, free_port
from shared.db.connecting import connect
from tests.support.batch import ENDS, StackUser, page
from tests.support.stack import CHECKOUT, StackProcess

AGENT = "document-agent"
WARM_UPS = 6
START_SECONDS = 400
SAMPLE_SECONDS = 2.0
STAGES = (
    ("accepted_to_claimed", "accepted", "claimed"),
    ("claimed_to_submitted", "claimed", "accepted_by_runner"),
    ("submitted_to_started", "accepted_by_runner", "started"),
    ("started_to_result", "started", "result"),
    ("result_to_completed", "result", "completed"),
)
RESULT_TIMES = """
SELECT x.task_id::text AS task_id, r.created_at FROM lockkeeper.attempt_results r
  JOIN lockkeeper.task_attempts x ON x.id = r.attempt_id WHERE x.task_id = ANY ($1::uuid[])
"""


# -- the stack


@contextmanager
def stack_user(data: Path) -> Iterator[StackUser]:
    """A user of the stack in this folder, or of one that is made for the bench and removed after it."""
    running = StackFolder(data).read_stack()
    if running is not None:
        stack = StackProcess(data, int(running["url"].rpartition(":")[2]))
        yield StackUser(stack)
        return
    home = Path(tempfile.mkdtemp(prefix="lockkeeper-bench-"))
    stack = StackProcess(home / "data", free_port())
    try:
        yield StackUser(stack.start(START_SECONDS))
    finally:
        stack.destroy()
        shutil.rmtree(home, ignore_errors=True)


def processes(stack: StackProcess) -> Iterator[tuple[str, psutil.Process]]:
    """Every process of the stack with the name of its part; the warm processes of the double apart."""
    for part in stack.description()["parts"]:
        if part["pid"] is None:
            continue
        try:
            root = psutil.Process(part["pid"])
            yield part["name"], root
            for child in root.children():
                warm = part["name"] == "workspace"
                yield ("warm_process" if warm else part["name"]), child
                for below in child.children(recursive=True):
                    yield ("document_parser" if warm else part["name"]), below
        except psutil.NoSuchProcess:
            continue
    yield "supervisor", psutil.Process(stack.description()["supervisor_pid"])


def by_part(stack: StackProcess, measure: Callable[[psutil.Process], float]) -> dict[str, float]:
    """A figure of each process, added up by part."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, process in processes(stack):
        try:
            sums[name] += measure(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return dict(sums)


def cpu_seconds(process: psutil.Process) -> float:
    """What the process and the children it has outlived have used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def rss(process: psutil.Process) -> float:
    """Resident megabytes, shared ones counted in full."""
    return float(process.memory_info().rss) / 2**20


def pss(process: psutil.Process) -> float:
    """Resident megabytes, shared ones divided among those who share them."""
    return float(process.memory_full_info().pss) / 2**20


def until(fact: Callable[[], bool], seconds: float, *, every: float) -> None:
    """Look now and then, not all the time: looking costs the processor that is measured."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(f"main_job: not done within {seconds:.0f} s")
        time.sleep(every)


# -- the way of one page


def instants(task: dict[str, Any], run: dict[str, Any], stored: datetime) -> dict[str, float]:
    """When the page passed each door, in seconds since 1970."""
    attempt = task["attempts"][-1]
    accepted_by_runner = run["start_time"] / 1000
    return {
        "accepted": _seconds(task["created_at"]),
        "claimed": _seconds(attempt["leased_at"]),
        "accepted_by_runner": accepted_by_runner,
        "started": accepted_by_runner + (run["queue_duration"] + run["setup_duration"]) / 1000,
        "result": stored.timestamp(),
        "completed": _seconds(task["finished_at"]),
    }


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


async def _stored(database_url: str, ids: Sequence[str]) -> dict[str, datetime]:
    connection = await connect(database_url, name="bench")
    try:
        return {row["task_id"]: row["created_at"] for row in await connection.fetch(RESULT_TIMES, list(ids))}
    finally:
        await connection.close()


def one_by_one(user: StackUser, documents: Sequence[str], label: str) -> dict[str, Any]:
    """Median and 95th percentile of accepted → completed, the stages' shares, and CPU seconds a page by part."""
    user.agent(f"bench-{label}", lease_seconds=60)
    batch = user.submit(f"bench-{label}", [])
    before = by_part(user.stack, cpu_seconds)
    for document in documents:
        user.submit(batch.agent, [document], batch)
        until(lambda: user.task(batch.ids[-1])["status"] in ENDS, 60, every=0.1)
    used = by_part(user.stack, cpu_seconds)
    tasks = [user.task(each) for each in batch.ids]
    if bad := [task["error"] for task in tasks if task["status"] != "completed"]:
        raise SystemExit(f"main_job: {len(bad)} pages did not complete: {bad[:2]}")
    runs = {user.attempt_of(run): run for run in user.runs(batch)}
    stored = asyncio.run(_stored(user.stack.description()["database_url"], batch.ids))
    ways = [instants(task, runs[task["attempts"][-1]["id"]], stored[task["id"]]) for task in tasks]
    whole = sorted(way["completed"] - way["accepted"] for way in ways)
    stages = {name: statistics.median(way[until] - way[since] for way in ways) for name, since, until in STAGES}
    total = sum(stages.values())
    return {
        "median_seconds": round(statistics.median(whole), 3),
        "p95_seconds": round(whole[int(len(whole) * 0.95) - 1], 3),
        "stages": {
            name: {"seconds": round(value, 4), "share": round(value / total, 3)} for name, value in stages.items()
        },
        "cpu_seconds_a_page": _cpu_a_page(before, used, len(documents)),
    }


def warm_up(user: StackUser, documents: Sequence[str], label: str) -> None:
    """The first trace waits for the tracking server, the first run for its process, the first cost for its client."""
    one_by_one(user, documents, label)
    params = {"agent": f"bench-{label}"}
    until(lambda: not user.ask("GET", "/api/v1/summary", params=params)["llm_cost_pending"], 120, every=0.5)


def _cpu_a_page(before: dict[str, float], used: dict[str, float], pages: int) -> dict[str, float]:
    # A process that was replaced meanwhile took its count with it.
    spent = {name: round(max(0.0, value - before.get(name, 0)) / pages, 4) for name, value in used.items()}
    ranked = dict(sorted(spent.items(), key=lambda each: -each[1]))
    return {"all": round(sum(ranked.values()), 4), **ranked}


# -- two hundred at once


class Watch:
    """Samples memory while a batch runs: the most that each part held at one time."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.pss: dict[str, float] = {}
        self.rss: dict[str, float] = {}
        self.total = 0.0

    def __enter__(self) -> Watch:  # noqa: PYI034 - nobody inherits from it
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        now = by_part(self._stack, pss)
        self.total = max(self.total, sum(now.values()))
        self.pss = {name: max(value, self.pss.get(name, 0)) for name, value in now.items()}
        self.rss = {name: max(value, self.rss.get(name, 0)) for name, value in by_part(self._stack, rss).items()}

    def described(self) -> dict[str, Any]:
        """Megabytes by part, the largest first."""
        parts = {
            name: {"pss_mb": round(value), "rss_mb": round(self.rss.get(name, 0))}
            for name, value in sorted(self.pss.items(), key=lambda each: -each[1])
        }
        return {"total_pss_mb": round(self.total), "parts": parts}


def at_once(user: StackUser, documents: Sequence[str], label: str) -> dict[str, Any]:
    """Pages a second of one batch, how busy the machine's cores were, and what the stack held in memory."""
    agent = user.agent(f"bench-{label}", lease_seconds=60, max_concurrent_tasks=8)
    user.ask("POST", f"/api/v1/agents/{agent}/pause")
    batch = user.submit(agent, documents)
    before = by_part(user.stack, cpu_seconds)
    cores = psutil.cpu_times(percpu=True)
    with Watch(user.stack) as watch:
        started = time.monotonic()
        user.ask("POST", f"/api/v1/agents/{agent}/resume")
        until(lambda: sum(user.counts(batch)[each] for each in ENDS) >= len(documents), 900, every=0.5)
        seconds = time.monotonic() - started
        busy = [_busy(now, then, seconds) for now, then in zip(psutil.cpu_times(percpu=True), cores, strict=True)]
        used = by_part(user.stack, cpu_seconds)
    completed = user.counts(batch)["completed"]
    if completed != len(documents):
        raise SystemExit(f"main_job: {completed} of {len(documents)} pages completed")
    spent = sum(used.values()) - sum(before.values())
    return {
        "pages": len(documents),
        "seconds": round(seconds, 2),
        "pages_a_second": round(len(documents) / seconds, 2),
        "cores_busy": busy,
        "stack_share_of_cores": round(spent / seconds / len(busy), 3),
        "cpu_seconds_a_page": _cpu_a_page(before, used, len(documents)),
        "memory": watch.described(),
    }


def _busy(now: Any, then: Any, seconds: float) -> float:
    idle = now.idle + now.iowait - then.idle - then.iowait
    return round(max(0.0, 1 - float(idle) / seconds), 3)


def main_job(data: Path, pages: int, batch: int) -> dict[str, Any]:
    """The bench line."""
    label = format(int(time.time()), "x")
    with stack_user(data) as user:
        documents = user.upload([page(number) for number in range(max(pages + WARM_UPS, batch))])
        warm_up(user, documents[:WARM_UPS], f"{label}-warm")
        single = one_by_one(user, documents[WARM_UPS : WARM_UPS + pages], label)
        together = at_once(user, documents[:batch], f"{label}-batch")
        user.close()
    load = psutil.getloadavg()[0]
    detail = {**single, "batch": together, "pages": pages, "load_average": round(load, 1)}
    return {
        "name": "main_job", "value": single["median_seconds"], "unit": "s", "limit": None, "ratio": None,
        "detail": detail,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=CHECKOUT / ".lockkeeper")
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--batch", type=int, default=200)
    given = parser.parse_args()
    print(json.dumps(main_job(given.data, given.pages, given.batch)), flush=True)
