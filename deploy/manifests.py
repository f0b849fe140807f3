"""Write what is generated under deploy/: the chart's README and files, and the plain manifests.

`python -m deploy.manifests` writes, `--check` only says what is out of date. The chart is the one
source: `kubectl apply -k deploy/kustomize/…` applies what `helm template` renders. Needs `helm`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "chart"
KUSTOMIZE = DEPLOY / "kustomize"
KUBE_VERSION = "1.34.0"
COMPONENTS = {
    "keda": ("ScaledObject",),
    "podmonitor": ("PodMonitor",),
    "prometheusrule": ("PrometheusRule",),
    "dashboards": ("ConfigMap",),
}
"""Kinds that need something in the cluster; each is a component of its own to choose."""

Files = dict[Path, str]


def render(helm: str, *arguments: str) -> list[dict[str, Any]]:
    """The chart's objects with these values. Raises CalledProcessError with helm's own words when it refuses."""
    command = [helm, "template", "lockkeeper", str(CHART), "--namespace=lockkeeper", f"--kube-version={KUBE_VERSION}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def copies() -> Files:
    """What the chart carries of deploy/observability: helm cannot read outside of its chart."""
    found: Files = {}
    for folder, pattern in (("rules", "*.yaml"), ("dashboards", "*.json")):
        for source in sorted((DEPLOY / "observability" / folder).glob(pattern)):
            found[CHART / "files" / folder / source.name] = source.read_text(encoding="utf-8")
    return found


def readme() -> Files:
    """The chart's README: a line for each value, from the comments of values.yaml."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    lines = [
        "<!-- Made by `python -m deploy.manifests` from values.yaml. -->",
        "# Lockkeeper on Kubernetes",
        "",
        "```sh",
        "helm install lockkeeper deploy/chart --namespace lockkeeper --create-namespace \\",
        "  --set database.host=… --set database.instance=… --set databricks.host=https://…",
        "```",
        "",
        "The secrets that it names must exist first; [docs/production.md](../../docs/production.md) has every command",
        "from nothing. `helm test lockkeeper` asks each service whether it is ready. The chart refuses values with",
        "which all pods together could need more database connections than `database.connectionLimit`.",
        "",
        "| value | default | |",
        "|---|---|---|",
        *(f"| `{path}` | `{default}` | {words} |" for path, default, words in _values(text)),
    ]
    return {CHART / "README.md": "\n".join(lines) + "\n"}


def _values(text: str) -> Iterator[tuple[str, str, str]]:
    """Path, default and comment of each value that is a leaf, or has a comment of its own."""
    path: list[tuple[int, str]] = []
    said: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# -- (.*)", line):
            said = [comment[1]]
            continue
        entry = re.match(r"(\s*)([A-Za-z_][\w./-]*):\s*(.*)", line)
        if entry is None:
            continue
        depth = len(entry[1])
        path = [*((at, name) for at, name in path if at < depth), (depth, entry[2])]
        if entry[3] or said:
            yield ".".join(name for _, name in path), (entry[3] or "…").replace("|", "\\|"), " ".join(said)
        said = []


def manifests(helm: str) -> Files:
    """The plain manifests: a base that needs nothing in the cluster, and a component for each addition."""
    values = f"--values={KUSTOMIZE / 'values.yaml'}"
    everything = [
        "--set=services.dispatcher.autoscaling.by=keda",
        "--set=monitoring.podMonitor=true,monitoring.rules=true,monitoring.dashboards=true",
    ]
    base = [each for each in render(helm, values) if not _is_test(each)]
    known = {_key(each) for each in base}
    more = [each for each in render(helm, values, *everything) if _key(each) not in known and not _is_test(each)]
    found = {KUSTOMIZE / "base" / "lockkeeper.yaml": _dump(base)}
    for component, kinds in COMPONENTS.items():
        chosen = [each for each in more if each["kind"] in kinds]
        found[KUSTOMIZE / "components" / component / "objects.yaml"] = _dump(chosen)
    return found


def _is_test(document: dict[str, Any]) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def _key(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _dump(documents: list[dict[str, Any]]) -> str:
    head = "# Made by `python -m deploy.manifests` from deploy/chart.\n"
    for document in documents:
        template = document.get("spec", {}).get("template", {}).get("metadata", {})
        for labels in (document["metadata"].setdefault("labels", {}), template.get("labels", {})):
            if labels.pop("helm.sh/chart", None):
                labels["app.kubernetes.io/managed-by"] = "kustomize"
        # An overlay gives the addresses: a checksum of what stood here would say nothing.
        template.pop("annotations", None)
    return head + yaml.safe_dump_all(documents, sort_keys=False, width=120)


def stale(files: Files) -> list[Path]:
    """Files whose content is not what it should be."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when something is out of date.")
def main(*, check: bool) -> None:
    """Write the generated files under deploy/."""
    helm = shutil.which("helm")
    if helm is None:
        raise click.ClickException("helm is not on the PATH")
    carried = copies()
    behind = stale(carried)
    if not check:
        write(carried)
    files = {**readme(), **manifests(helm)}
    behind += stale(files)
    if not check:
        write(files)
    for path in behind:
        click.echo(f"{'out of date' if check else 'wrote'}: {path.relative_to(DEPLOY.parent)}")
    if check and behind:
        sys.exit(1)


def write(files: Files) -> None:
    """Write each file, with its folder."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
