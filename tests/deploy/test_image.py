from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.contract.errors import MisconfiguredError
from shared.contract.ownership import ROLES, role_of
from shared.runtime.settings import RuntimeSettings, read_settings
from tests.support.kube import settings_of, tool
from tests.support.statements import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
SERVICES = sorted(set(ROLES) - {"document_agent"})
AGENT_ONLY = ("services/document_agent", "shared/agent_kit")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    # What compose does with ${NAME:-default} where nothing is set.
    found = yaml.safe_load(re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text))
    assert isinstance(found, dict)
    return found


def locked(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return {m[1].lower(): m[2] for m in re.finditer(r"^([\w.-]+)==([^ \\;]+)", text, re.MULTILINE)}


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports anywhere, but for what only the type checker reads."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"shared", "services", "lockkeeper", "deploy"}


def wanted(*, agent: bool) -> set[str]:
    """Distributions that the code of an image imports."""
    owners = packages_distributions()
    found: set[str] = set()
    for folder in ("shared", "services", "lockkeeper"):
        for path in (ROOT / folder).rglob("*.py"):
            where = path.relative_to(ROOT).as_posix()
            if where.startswith("shared/testing") or (where.startswith(AGENT_ONLY) and not agent):
                continue
            for name in imported(path):
                found.add(re.sub(r"[-_.]+", "-", min(owners.get(name, [name]), key=len)).lower())
    return found


def test_the_dockerfile_is_clean(tools: Path) -> None:
    hadolint = tool("hadolint", tools)
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_is_not_root_and_has_no_build_tools() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for stage in stages[1:]:
        name = re.match(r"\S+ AS (\S+)", stage)
        assert name is not None
        if name[1] in {"services", "agent", "stack"}:
            assert "USER 10001:10001" in stage
            assert "ENTRYPOINT" in stage
            assert "pip" not in stage
    assert stages[-1].startswith("base AS services"), "what is built unless a target is named"
    assert "sha256" not in "".join(stages), "a digest belongs to the release that resolved it"


@pytest.mark.parametrize(("lock", "agent"), [("requirements-services.lock", False), ("requirements-agent.lock", True)])
def test_an_image_holds_what_its_code_imports(lock: str, *, agent: bool) -> None:
    have = {name.replace("_", "-") for name in locked(lock)}
    # One distribution gives the import name of another, smaller one.
    have |= {"mlflow"} if have & {"mlflow-skinny", "mlflow-tracing"} else set()
    have |= {"opencv-python"} if "opencv-python-headless" in have else set()
    assert wanted(agent=agent) - have == set()


@pytest.mark.parametrize("lock", ["requirements-services.lock", "requirements-agent.lock"])
def test_an_image_holds_only_versions_that_were_tested(lock: str) -> None:
    tested = locked("requirements.lock")
    for name, version in locked(lock).items():
        assert tested.get(name) == version, f"{name} {version}: run deploy/docker/lock.sh"


def test_a_wheel_asks_for_what_a_service_imports_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.split(r"[=;<> ]", each)[0] for each in project["dependencies"]}
    # uvicorn finds its two by itself, FastAPI its forms, and pypdfium2 what it draws with.
    unnamed = {"httptools", "uvloop", "python-multipart", "pillow"}
    # Several distributions share the name that is imported here.
    shared = {"mlflow-skinny", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}
    assert asked - unnamed - shared <= wanted(agent=False)


def test_the_agents_parts_stay_out_of_the_services_image() -> None:
    heavy = {
        "onnxruntime",
        "rapidocr",
        "opencv-python",
        "opencv-python-headless",
        "pdfplumber",
        "pikepdf",
        "duckdb",
        "mlflow",
    }
    assert heavy & set(locked("requirements-services.lock")) == set()


def test_compose_runs_every_service_in_a_profile(compose: dict[str, Any]) -> None:
    assert set(SERVICES) <= set(compose["services"])
    profiles = {profile for each in compose["services"].values() for profile in each["profiles"]}
    assert profiles == {"core", "underwriting", "observability"}


@pytest.mark.parametrize("service", SERVICES)
def test_compose_gives_a_service_only_settings_that_it_knows(
    compose: dict[str, Any], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ROOT / "services" / service / "settings.py").exists():
        pytest.skip(f"{service} is not there yet")
    part = compose["services"][service]
    assert part["command"] == [f"services.{service}"]
    assert f"//{role_of(service)}@" in part["environment"]["LOCKKEEPER_DATABASE_URL"]
    for name, value in part["environment"].items():
        monkeypatch.setenv(name, value)
    try:
        read_settings(service, RuntimeSettings, settings_of(service))
    except MisconfiguredError as error:
        pytest.fail(error.message)


@pytest.mark.parametrize("service", SERVICES)
def test_compose_hardens_every_service_and_waits_for_its_drain(compose: dict[str, Any], service: str) -> None:
    part = compose["services"][service]
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in part
    assert "container_name" not in part, "it would forbid --scale"
    assert part["stop_grace_period"] == "65s"
    assert part["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert "/readyz" in part["healthcheck"]["test"][-1]


def test_compose_opens_ports_on_this_machine_only(compose: dict[str, Any]) -> None:
    for each in compose["services"].values():
        for port in each.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_compose_makes_a_login_for_every_role() -> None:
    text = (ROOT / "deploy" / "docker" / "roles.sh").read_text(encoding="utf-8")
    (named,) = re.findall(r"ARRAY\[(.*?)\]", text, re.DOTALL)
    assert set(re.findall(r"'(\w+)'", named)) == set(ROLES)
