"""A real Kubernetes for the deploy tier: the kit's one-node cluster, started and ended around the tests."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.local.folder import free_port
from tests.support.kube import KIT
from tests.support.statements import ROOT

NAMESPACE = "lockkeeper"


@dataclass
class Cluster:
    """The running cluster and the image under test in it."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    image: str = ""
    started_here: bool = False

    @classmethod
    def start(cls) -> Cluster:
        """Bring the kit's cluster up, or find it. Skips where there is no kit or we are not root."""
        if not (KIT / "cluster").is_file() or os.geteuid() != 0:
            pytest.skip("no kit of a one-node cluster: set LOCKKEEPER_KUBE_KIT, and be root")
        cluster = cls()
        running = Path("/run/kube-kit").exists()
        cluster.kit("up")
        cluster.started_here = not running
        return cluster

    def stop(self) -> None:
        """End what was started here. A second try finds less to do, should the first one hang."""
        for _ in range(2 if self.started_here else 0):
            try:
                subprocess.run([str(KIT / "cluster"), "down"], check=False, capture_output=True, timeout=120)
            except subprocess.TimeoutExpired:
                continue
            return

    def kit(self, *arguments: str) -> None:
        """A command of the kit; what it exports holds from then on."""
        done = subprocess.run(
            [str(KIT / "cluster"), *arguments], capture_output=True, text=True, env=self.environment, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        for line in done.stdout.splitlines():
            for name, value in re.findall(r"(\w+)=(\S+)", line.removeprefix("export ")):
                self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def run(self, *arguments: str, check: bool = True, stdin: str | None = None, seconds: float = 180) -> str:
        """The output of a command that sees the cluster."""
        done = subprocess.run(
            arguments, capture_output=True, text=True, env=self.environment, input=stdin, check=False, timeout=seconds,
            cwd=ROOT,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-3000:]}{done.stdout[-1000:]}"
        return done.stdout + ("" if check else done.stderr)

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """kubectl in our namespace."""
        return self.run("kubectl", "--namespace", NAMESPACE, *arguments, **options)

    def get(self, *arguments: str) -> Any:
        """Objects as JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def build(self) -> None:
        """Build the image with the kit's engine, from the Dockerfile as it is, and bring it to the node.

        LOCKKEEPER_TEST_IMAGE is taken in its place: an archive (`docker save`), or an image that the node has.
        """
        ready = os.environ.get("LOCKKEEPER_TEST_IMAGE", "")
        self.image = f"lockkeeper:test-{secrets.token_hex(4)}" if "/" in ready or not ready else ready
        if ready:
            if self.image != ready:
                self.kit("image", ready, self.image)
            return
        self.kit("docker")
        self.kit("base-image", "python:3.11-slim-bookworm")
        self._docker_build(f"--tag={self.image}")
        archive = Path(self.environment["KUBECONFIG"]).parent / "tmp" / "image.tar"
        self.run("/usr/bin/docker", "save", "--output", str(archive), self.image)
        self.kit("image", str(archive), self.image)
        archive.unlink()

    def bill(self, folder: Path) -> dict[str, Any]:
        """The bill of materials of the image, built into this folder."""
        if "DOCKER_HOST" not in self.environment:
            pytest.skip("the image was not built here")
        self._docker_build("--target=bill", f"--output=type=local,dest={folder}")
        found: dict[str, Any] = json.loads((folder / "lockkeeper.cdx.json").read_text(encoding="utf-8"))
        return found

    def _docker_build(self, *more: str) -> None:
        certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or ""
        secret = ["--secret", f"id=ca,src={certificates}"] if Path(certificates).is_file() else []
        done = subprocess.run(
            ["/usr/bin/docker", "build", "--network=host", *secret, "--file=deploy/docker/Dockerfile", *more, "."],
            cwd=ROOT, env={**self.environment, "DOCKER_BUILDKIT": "1"}, capture_output=True, text=True, check=False,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]

    def gateway(self) -> str:
        """The address under which pods reach this machine."""
        node = json.loads(self.run("kubectl", "get", "node", "--output=json"))["items"][0]
        return next(str(each["address"]) for each in node["status"]["addresses"] if each["type"] == "InternalIP")

    def secret(self, name: str, **values: str) -> None:
        """A secret of our namespace."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(body))

    @contextmanager
    def state_metrics(self, program: str, home: Path) -> Iterator[str]:
        """Inside, kube-state-metrics tells of our autoscalers; the address to scrape."""
        port = free_port()
        with (home / "kube-state-metrics.log").open("wb") as log:
            process = subprocess.Popen(
                [program, "--kubeconfig", self.environment["KUBECONFIG"], f"--namespaces={NAMESPACE}",
                 "--resources=horizontalpodautoscalers", "--host=127.0.0.1", f"--port={port}",
                 "--telemetry-host=127.0.0.1", f"--telemetry-port={free_port()}"],
                env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)

    def pods(self, component: str | None = None) -> list[dict[str, Any]]:
        """Our pods that are not ending."""
        chosen = f"={component}" if component else " notin (test, migrate)"
        selector = f"app.kubernetes.io/name=lockkeeper,app.kubernetes.io/component{chosen}"
        items: list[dict[str, Any]] = self.get("pods", f"--selector={selector}")["items"]
        return [each for each in items if "deletionTimestamp" not in each["metadata"]]

    def ready(self, component: str | None = None) -> int:
        """How many of our pods are ready."""
        return sum(
            condition["status"] == "True"
            for pod in self.pods(component)
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "Ready"
        )

    def restarts(self) -> dict[str, int]:
        """Restarts of each pod that had one."""
        counts = {
            pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
            for pod in self.pods()
        }
        return {name: count for name, count in counts.items() if count}

    def until(self, condition: Any, seconds: float, what: str) -> None:
        """Wait for a fact of the cluster, looked at twice a second."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(
                    f"not within {seconds} s: {what}\n{self.kubectl('get', 'pods,hpa,events')[-4000:]}"
                )
            time.sleep(0.5)
