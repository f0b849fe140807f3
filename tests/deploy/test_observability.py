from __future__ import annotations

import importlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from deploy import manifests
from tests.support.statements import ROOT

OBSERVABILITY = ROOT / "deploy" / "observability"
RULES = sorted((OBSERVABILITY / "rules").glob("*.yaml"))
DASHBOARDS = sorted((OBSERVABILITY / "dashboards").glob("*.json"))
FOREIGN = re.compile(r"kube_[a-z_]+|process_[a-z_]+|up")


def rules(kind: str) -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def panels() -> list[tuple[str, str]]:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            found += [(f"{path.stem}: {panel['title']}", target["expr"]) for target in panel.get("targets", [])]
    return found


def exported() -> set[str]:
    """Names of every metric that a process of ours registers."""
    importlib.import_module("shared.runtime.metrics")
    for path in (ROOT / "services").glob("*/metrics.py"):
        importlib.import_module(f"services.{path.parent.name}.metrics")
    names = set()
    for family in REGISTRY.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


def test_the_rules_are_well_formed(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", *map(str, RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_by_its_fault_and_is_silent_without_it(promtool: str) -> None:
    tests = OBSERVABILITY / "tests" / "alerts_test.yaml"
    done = subprocess.run([promtool, "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_test() -> None:
    tests = yaml.safe_load((OBSERVABILITY / "tests" / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules("alert")}
    for test in tests:
        series = {each["series"].split("{")[0] for each in test["input_series"]}
        healthy_beside = len(test["input_series"]) > len(series)
        assert healthy_beside or any(not case["exp_alerts"] for case in test["alert_rule_test"]), test["name"]


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert rule["for"]
    page = (ROOT / rule["annotations"]["runbook_url"]).read_text(encoding="utf-8")
    assert f"`{rule['alert']}` ({rule['labels']['severity']})" in page
    for heading in ("## What it means", "## Look first", "## Do"):
        assert heading in page
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert f"[{rule['alert']}]" in index


def test_links_between_the_runbooks_lead_somewhere() -> None:
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        for target in re.findall(r"\]\(([\w-]+\.md)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name} -> {target}"


def test_rules_panels_and_triggers_name_only_what_is_exported_or_recorded() -> None:
    known = exported() | {rule["record"] for rule in rules("record")}
    asked = [
        (rule.get("alert") or rule["record"], rule["expr"]) for kind in ("alert", "record") for rule in rules(kind)
    ]
    autoscaling = (manifests.CHART / "templates" / "autoscaling.yaml").read_text(encoding="utf-8")
    asked += [("the autoscaler", name) for name in re.findall(r"lockkeeper_\w+", autoscaling)]
    for where, expression in asked + panels():
        for name in re.findall(r"\b(?:lockkeeper[:_][a-z0-9_:]+|process_\w+|kube_\w+)", expression):
            assert name in known or FOREIGN.fullmatch(name), f"{where} asks for {name}"


def test_o01_no_metric_has_a_label_that_grows_with_the_work() -> None:
    unbounded = {
        "attempt",
        "customer",
        "document",
        "error",
        "host",
        "id",
        "message",
        "path",
        "pod",
        "run",
        "task",
        "user",
    }
    exported()
    for collector in set(REGISTRY._collector_to_names):
        for label in getattr(collector, "_labelnames", ()):
            name = getattr(collector, "_name", "")
            assert not (unbounded & set(label.split("_"))), f"{name} has the label {label}"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_a_dashboard_can_be_provisioned(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == f"lockkeeper-{path.stem}"
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "two panels lie over each other"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_o02_panels_of_table_derived_metrics_never_add_replicas_up() -> None:
    once = {
        name
        for name in exported()
        if name.startswith(("lockkeeper_tasks", "lockkeeper_agent_", "lockkeeper_database_c", "lockkeeper_costs"))
        and not name.endswith(("_total", "_bucket", "_sum", "_count"))
    }
    for where, expression in panels():
        for name in once & set(re.findall(r"lockkeeper_\w+", expression)):
            assert re.search(rf"max( by \([^)]*\))? \({name}|max\({name}", expression), f"{where} adds up {name}"
