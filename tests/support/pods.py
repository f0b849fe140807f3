"""Services as processes of this machine under the environment that their pods get, replaced as a Deployment does it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.local.folder import free_port
from shared.contract.ownership import role_of
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.workspace import CLIENT, WorkspaceDouble

KEY_ID, KEY = "pods", "a-key-of-the-pods-that-is-long-enough"
PRE_STOP_SECONDS = 1.0
"""Shorter than in a cluster: here an address is taken off the list at once, there it takes a moment."""


@dataclass(eq=False)
class Pod:
    """One process of a service."""

    service: str
    process: subprocess.Popen[bytes]
    ops: str
    url: str
    log: Path


@dataclass
class Pods:
    """Deployments of one system: which pods there are, and which of them get requests."""

    home: Path
    server: PostgresServer
    database: str
    double: WorkspaceDouble
    more: dict[str, str] = field(default_factory=dict)
    """Settings of the installation, as `services.<name>.env` of the chart has them."""
    pods: list[Pod] = field(default_factory=list)
    started: int = 0

    def address(self, service: str) -> str:
        """One of the ready pods, as a Service chooses it."""
        return random.choice([pod.url for pod in self.pods if pod.service == service])

    def environment(self, tree: Path, service: str, name: str, ports: tuple[int, int]) -> dict[str, str]:
        """What the manifests of this tree give a pod, with the addresses of this machine."""
        manifests = (tree / "deploy" / "kustomize" / "base" / "lockkeeper.yaml").read_text(encoding="utf-8")
        found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(manifests) if each}
        deployment = found["Deployment", f"lockkeeper-{service.replace('_', '-')}"]
        container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
        given = {each["name"]: each.get("value", "") for each in container["env"]}
        given = found["ConfigMap", "lockkeeper-addresses"]["data"] | given
        for absent in ("LOCKKEEPER_DATABASE_INSTANCE", "MLFLOW_TRACKING_URI", "PGUSER"):
            given.pop(absent, None)
        ours = {
            "LOCKKEEPER_DATABASE_URL": self.server.url(role_of(service), self.database),
            "LOCKKEEPER_REPLICA": name, "LOCKKEEPER_OPS_HOST": "127.0.0.1", "LOCKKEEPER_OPS_PORT": str(ports[0]),
            "LOCKKEEPER_HOST": "127.0.0.1", "LOCKKEEPER_PORT": str(ports[1]), "DATABRICKS_HOST": self.double.url,
            "DATABRICKS_CLIENT_ID": CLIENT[0], "DATABRICKS_CLIENT_SECRET": CLIENT[1], "PGPASSWORD": PASSWORD,
            "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({KEY_ID: KEY}),
        }  # fmt: skip
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
        own = {name: value for name, value in self.more.items() if name.startswith(f"LOCKKEEPER_{service.upper()}_")}
        return {**clean, **given, **{name: value for name, value in ours.items() if name in given}, **own,
                "LOCKKEEPER_DATABASE_URL": ours["LOCKKEEPER_DATABASE_URL"], "PYTHONUNBUFFERED": "1"}  # fmt: skip

    async def start(self, tree: Path, *services: str) -> None:
        """Start a pod of each, and let it have requests once it is ready."""
        await asyncio.gather(*(self._start(tree, service) for service in services))

    async def _start(self, tree: Path, service: str) -> Pod:
        self.started += 1
        name, ports = f"{service}-{self.started}", (free_port(), free_port())
        log = self.home / f"{name}.log"
        process = _spawn(tree, service, self.environment(tree, service, name, ports), log)
        pod = Pod(service, process, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", log)
        try:
            await self._ready(pod)
        except BaseException:
            process.kill()
            raise
        self.pods.append(pod)
        return pod

    @staticmethod
    async def _ready(pod: Pod, seconds: float = 90) -> None:
        give_up_at = time.monotonic() + seconds
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                assert pod.process.poll() is None, pod.log.read_text()
                try:
                    if (await client.get(f"{pod.ops}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                assert time.monotonic() < give_up_at, pod.log.read_text()
                await asyncio.sleep(0.2)

    async def roll(self, tree: Path) -> None:
        """Replace every pod, all Deployments beside each other as an upgrade does it, the pods of one by turns."""
        old: dict[str, list[Pod]] = {}
        for pod in self.pods:
            old.setdefault(pod.service, []).append(pod)
        await asyncio.gather(*(self._roll(tree, pods) for pods in old.values()))

    async def _roll(self, tree: Path, pods: list[Pod]) -> None:
        """The new one is ready before the old one gets no more requests and is told to end."""
        for old in pods:
            await self._start(tree, old.service)
            self.pods.remove(old)
            await asyncio.sleep(PRE_STOP_SECONDS)
            old.process.terminate()
            code = await asyncio.to_thread(old.process.wait, 60)
            assert code == 0, f"{old.service} ended with {code}: {old.log.read_text()[-2000:]}"

    def stop(self) -> None:
        """End everything."""
        for pod in self.pods:
            pod.process.terminate()
        for pod in self.pods:
            try:
                pod.process.wait(30)
            except subprocess.TimeoutExpired:
                pod.process.kill()
                pod.process.wait()
        self.pods.clear()


def _spawn(tree: Path, service: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"services.{service}"], cwd=tree, env=environment, stdout=output, stderr=output
        )
