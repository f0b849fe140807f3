"""A real Prometheus over a running stack, with our rules in a hurry."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from uuid import uuid4

import asyncpg
import httpx
import pytest
import yaml

from deploy.local.folder import free_port
from tests.support.batch import StackUser, page
from tests.support.statements import ROOT

RULES = ROOT / "deploy" / "observability" / "rules"
_SPAN = re.compile(r"(\d+)(s|m|h)\b")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_WINDOW = re.compile(r"\[[^\]]+\]")


def hurried(changes: Mapping[str, Mapping[str, str]], speed: int = 60) -> dict[str, Any]:
    """All rules, so many times as fast. `changes` has texts of single rules, for thresholds that are spans of time."""
    groups = []
    for file in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                for old, new in changes.get(rule.get("alert") or rule["record"], {}).items():
                    assert old in rule["expr"], (rule, old)
                    rule["expr"] = rule["expr"].replace(old, new)
                rule["expr"] = _WINDOW.sub(lambda window: _faster(window[0], 5, speed), rule["expr"])
                if "for" in rule:
                    rule["for"] = _faster(rule["for"], 1, speed)
            groups.append(group)
    return {"groups": groups}


def _faster(text: str, least: int, speed: int) -> str:
    def span(found: re.Match[str]) -> str:
        seconds = int(found[1]) * _SECONDS[found[2]]
        return f"{max(least, seconds // speed)}s" if seconds >= 60 else "1s"

    return _SPAN.sub(span, text)


class Prometheus:
    """A server of its own over these targets, each by its component."""

    def __init__(self, home: Path, targets: Mapping[str, str], rules: Mapping[str, Any]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("this machine has no Prometheus")
        home.mkdir(parents=True)
        (home / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
        static = [{"targets": [address], "labels": {"component": name}} for name, address in targets.items()]
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "lockkeeper", "static_configs": static}],
        }
        (home / "prometheus.yml").write_text(yaml.safe_dump(settings))
        port = free_port()
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"],
                stdout=log, stderr=log,
            )  # fmt: skip
        self._started_at = time.time()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=15)
        self.wait(self._answers, 30)

    def _answers(self) -> bool:
        try:
            return self.http.get("/status/buildinfo").is_success
        except httpx.TransportError:
            return False

    @staticmethod
    def wait(fact: Callable[[], bool], seconds: float, what: Callable[[], object] = str) -> None:
        give_up_at = time.monotonic() + seconds
        while not fact():
            assert time.monotonic() < give_up_at, what()
            time.sleep(0.2)

    def ask(self, path: str, **query: str) -> Any:
        answer = self.http.get(path, params=query).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, query: str) -> list[object]:
        """What an expression gives now."""
        found: list[object] = self.ask("/query", query=query)["result"]
        return found

    def query_range(self, query: str) -> list[Any]:
        """What it gave since this server began, at 200 moments."""
        now = time.time()
        step = (now - self._started_at) / 200
        spans = {"start": str(self._started_at), "end": str(now), "step": str(step)}
        found: list[Any] = self.ask("/query_range", query=query, **spans)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and state."""
        return [rule for group in self.ask("/rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """Alerts that fire now."""
        return {rule["name"] for rule in self.rules() if rule.get("state") == "firing"}

    def stop(self) -> None:
        self.http.close()
        self._process.terminate()
        self._process.wait(30)


class Hands:
    """Connections of the owner that stay open, driven from a thread of their own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, sql: str) -> Any:
        """One statement of its own; its first value."""
        return self._do(self._once(sql))

    async def _once(self, sql: str) -> Any:
        connection = await asyncpg.connect(self._url)
        try:
            return await connection.fetchval(sql) if sql.startswith("SELECT") else await connection.execute(sql)
        finally:
            await connection.close()

    @contextmanager
    def holding(self, sql: str = "SELECT 1", connections: int = 1) -> Iterator[None]:
        """Inside, so many open transactions have done this."""
        open_ones = [self._do(asyncpg.connect(self._url)) for _ in range(connections)]
        try:
            for each in open_ones:
                self._do(each.execute(f"BEGIN; {sql}"))
            yield
        finally:
            for each in open_ones:
                self._do(each.close())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class Scene:
    """What a fault has at hand."""

    user: StackUser
    hands: Hands

    @contextmanager
    def paused(self, *names: str) -> Iterator[None]:
        """These processes neither work nor answer."""
        pids = [self.user.stack.part(name)["pid"] for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def again(self, act: Callable[[], object], seconds: float = 0.25) -> Iterator[None]:
        """Somebody does this again and again."""
        over = Event()

        def work() -> None:
            while not over.wait(seconds):
                try:
                    act()
                except httpx.TransportError:
                    continue

        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(60)

    @contextmanager
    def broken(self, **rule: object) -> Iterator[None]:
        """The workspace goes wrong by this rule."""
        self.user.break_it(**rule)
        try:
            yield
        finally:
            self.user.mend()

    @contextmanager
    def sql(self, fault: str, mend: str) -> Iterator[None]:
        self.hands.run(fault)
        try:
            yield
        finally:
            self.hands.run(mend)

    def tasks(self, count: int = 2, **settings: object) -> list[str]:
        """So many tasks of an agent of their own."""
        agent = self.user.agent(f"alert-{uuid4().hex[:8]}", **settings)
        return self.user.submit(agent, self.user.upload([page(n) for n in range(count)])).ids
