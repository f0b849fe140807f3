from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import manifests
from shared.contract.errors import MisconfiguredError
from shared.contract.ownership import ROLES
from shared.runtime.settings import RuntimeSettings, read_settings
from tests.deploy.conftest import Render
from tests.support.kube import settings_of, tool
from tests.support.statements import ROOT

SERVICES = sorted(set(ROLES) - {"document_agent"})
CALLBACK_KEYS = json.dumps({"k": "a-secret-of-sixteen-bytes"})


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in kinds]


def pods(objects: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    found = [
        (each["metadata"]["name"], each["spec"]["template"]["spec"]) for each in of_kind(objects, "Deployment", "Job")
    ]
    return found + [(each["metadata"]["name"], each["spec"]) for each in of_kind(objects, "Pod")]


def deployment(objects: list[dict[str, Any]], service: str) -> dict[str, Any]:
    (found,) = [
        each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith(service.replace("_", "-"))
    ]
    return found


def refusal(helm: str, *settings: str) -> str:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        manifests.render(helm, f"--values={manifests.CHART}/ci/minimal-values.yaml", *(f"--set={s}" for s in settings))
    return str(refused.value.stderr)


@pytest.mark.parametrize("values", ["minimal", "full"])
def test_helm_has_nothing_to_say_against_the_chart(helm: str, values: str) -> None:
    command = [helm, "lint", "--strict", str(manifests.CHART), f"--values={manifests.CHART}/ci/{values}-values.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", ["minimal", "full"])
def test_every_object_fits_the_schema_of_kubernetes(rendered: Render, values: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    core = [each for each in rendered(values) if each["kind"] not in {"ScaledObject", "PodMonitor", "PrometheusRule"}]
    assert len(core) > 20
    for each in core:
        validate.validate(each, "1.34", strict=True)


def test_every_service_is_installed(rendered: Render) -> None:
    names = {each["metadata"]["name"] for each in of_kind(rendered("full"), "Deployment")}
    assert names == {f"lockkeeper-{service.replace('_', '-')}" for service in SERVICES}


@pytest.mark.parametrize("values", ["minimal", "full"])
def test_no_pod_asks_for_more_than_it_needs(rendered: Render, values: str) -> None:
    """What Pod Security calls `restricted`, and a little more."""
    for name, pod in pods(rendered(values)):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"], name
            assert "cpu" not in container["resources"]["limits"], "a CPU limit throttles heartbeats"


@pytest.mark.parametrize("service", SERVICES)
def test_k01_liveness_never_asks_the_database(rendered: Render, service: str) -> None:
    (container,) = deployment(rendered("full"), service)["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["port"] == "http-metrics"


def test_k08_a_pod_never_waits_for_a_migration_under_liveness(rendered: Render) -> None:
    (job,) = of_kind(rendered(), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    for each in of_kind(rendered(), "Deployment"):
        assert "initContainers" not in each["spec"]["template"]["spec"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_k09_no_budget_ever_blocks_a_drain(rendered: Render, replicas: int) -> None:
    settings = [f"services.{service}.replicas={replicas}" for service in SERVICES]
    budgets = of_kind(rendered("minimal", *settings), "PodDisruptionBudget")
    assert len(budgets) == 6
    for each in budgets:
        assert each["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in each["spec"]
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_k04_the_budget_of_connections_is_checked_before_anything_is_installed(helm: str, rendered: Render) -> None:
    assert "need 377 database connections, and database.connectionLimit is 209" in refusal(
        helm, "services.dispatcher.replicas=40"
    )
    assert "database connections" in refusal(helm, "database.connectionLimit=104")
    # A service that is scaled counts with its most replicas, one of a rollout besides.
    refused = refusal(helm, "services.dispatcher.autoscaling.by=keda", "services.dispatcher.autoscaling.max=40")
    assert "need 377 database connections" in refused
    rendered("minimal", "services.dispatcher.replicas=40", "database.connectionLimit=377")


def test_k04_the_bound_counts_pools_and_listeners_of_what_is_rendered(rendered: Render) -> None:
    """The template's arithmetic against the objects themselves: (replicas + 1) × (pool + listener)."""
    listening = {
        name for name, facts in yaml.safe_load((manifests.CHART / "files/services.yaml").read_text()).items()
        if facts["listens"]
    }  # fmt: skip
    total = 50 + 15
    for each in of_kind(rendered(), "Deployment"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        service = container["args"][0].removeprefix("services.")
        pool = next(int(e["value"]) for e in container["env"] if e["name"] == "LOCKKEEPER_DATABASE_CONNECTIONS")
        total += (each["spec"]["replicas"] + 1) * (pool + (service in listening))
    assert total == 149
    rendered("minimal", "database.connectionLimit=149")


@pytest.mark.parametrize("service", SERVICES)
def test_listeners_are_counted_where_a_service_listens(service: str) -> None:
    app = ROOT / "services" / service / "app.py"
    if not app.exists():
        pytest.skip(f"{service} is not there yet")
    facts = yaml.safe_load((manifests.CHART / "files/services.yaml").read_text())[service]
    text = app.read_text(encoding="utf-8")
    assert facts["listens"] == ("wakes=" in text or "hears=" in text)
    assert facts["http"] == ("app=" in text)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("credentials", ["lakebase", "password"])
def test_every_setting_of_a_pod_is_one_that_its_service_knows(
    rendered: Render, service: str, credentials: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ROOT / "services" / service / "settings.py").exists():
        pytest.skip(f"{service} is not there yet")
    objects = rendered("full", f"database.credentials={credentials}")
    (container,) = deployment(objects, service)["spec"]["template"]["spec"]["containers"]
    (addresses,) = [each for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"].endswith("-addresses")]
    given = dict(addresses["data"])
    for each in container["env"]:
        given[each["name"]] = each.get("value", CALLBACK_KEYS if each["name"].endswith("_KEYS") else "from-a-secret")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    try:
        common, _ = read_settings(service, RuntimeSettings, settings_of(service))
    except MisconfiguredError as error:
        pytest.fail(error.message)
    assert common.replica == "from-a-secret"
    assert common.ops_host == "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus ask from outside of the pod
    assert (common.database_instance is not None) == (credentials == "lakebase")


@pytest.mark.parametrize("service", SERVICES)
def test_the_time_to_end_covers_the_drain(rendered: Render, service: str) -> None:
    """Rounds may take 0.6 of the grace time, and each of the seven steps after them 0.3 at the very worst."""
    pod = deployment(rendered("full", "graceSeconds=40"), service)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    waits = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert (waits > 0) == ("http" in {port["name"] for port in container["ports"]})
    assert pod["terminationGracePeriodSeconds"] >= waits + 40 * (0.6 + 7 * 0.3)


def test_a_rollout_never_takes_a_pod_before_its_successor_is_ready(rendered: Render) -> None:
    for each in of_kind(rendered("full"), "Deployment"):
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_what_is_scaled_has_no_count_of_its_own(rendered: Render) -> None:
    objects = rendered("full")
    scaled = {
        each["spec"]["scaleTargetRef"]["name"] for each in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
    }
    assert scaled == {
        "lockkeeper-dispatcher",
        "lockkeeper-callback-receiver",
        "lockkeeper-notifier",
        "lockkeeper-console",
    }
    for each in of_kind(objects, "Deployment"):
        assert ("replicas" in each["spec"]) != (each["metadata"]["name"] in scaled)


def test_the_dispatcher_scales_by_what_the_sweeper_says(helm: str, rendered: Render) -> None:
    objects = rendered("full")
    (scaled,) = of_kind(objects, "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["url"].startswith("http://lockkeeper-sweeper.lockkeeper.svc")
    assert trigger["metadata"]["valueLocation"] == "lockkeeper_dispatchable_tasks"
    assert "lockkeeper-sweeper" in {each["metadata"]["name"] for each in of_kind(objects, "Service")}
    (horizontal,) = of_kind(
        rendered("minimal", "services.dispatcher.autoscaling.by=external"), "HorizontalPodAutoscaler"
    )
    assert horizontal["spec"]["metrics"][0]["external"]["metric"]["name"] == "lockkeeper_dispatchable_tasks"
    assert "only the dispatcher" in refusal(helm, "services.console.autoscaling.by=keda")


def test_events_pass_the_ingress_unbuffered_and_for_as_long_as_they_last(rendered: Render) -> None:
    pages, callbacks = sorted(of_kind(rendered("full"), "Ingress"), key=lambda each: -len(each["metadata"]["name"]))[
        ::-1
    ]
    said = pages["metadata"]["annotations"]
    assert said["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(said["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    paths = {
        path["path"]: path["backend"]["service"]["name"]
        for each in (pages, callbacks)
        for path in each["spec"]["rules"][0]["http"]["paths"]
    }
    assert paths == {
        "/events": "lockkeeper-notifier",
        "/callbacks/v1": "lockkeeper-callback-receiver",
        "/underwriting": "lockkeeper-underwriting-api",
        "/api/v1/underwriting": "lockkeeper-underwriting-api",
        "/": "lockkeeper-console",
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["database.host="], "database.host is not set"),
        (["database.instance="], "database.instance is not set"),
        (["databricks.host="], "databricks.host is not set"),
        (["services.underwriting_api.enabled=true"], "temporal.address is not set"),
        (["databse.host=x"], "additional properties 'databse' not allowed"),
        (["services.dispatcher.replica=2"], "additional properties 'replica' not allowed"),
        (["services.dispatcher.replicas=0"], "minimum"),
        (["image.digest=sha256:abc"], "pattern"),
        (["services.dispatcher.autoscaling.by=magic"], "value must be one of"),
        (
            ["services.dispatcher.autoscaling.by=keda", "services.dispatcher.autoscaling.min=9"],
            "min is larger than max",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_words(helm: str, settings: list[str], words: str) -> None:
    assert words in refusal(helm, *settings)


def test_everything_generated_is_up_to_date(helm: str) -> None:
    files = {**manifests.copies(), **manifests.readme(), **manifests.manifests(helm)}
    assert manifests.stale(files) == [], "run python -m deploy.manifests"


def test_the_plain_manifests_are_complete(helm: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on the PATH")
    production = manifests.KUSTOMIZE / "overlays" / "production"
    done = subprocess.run([kubectl, "kustomize", str(production)], capture_output=True, text=True, check=True)
    objects = list(yaml.safe_load_all(done.stdout))
    assert {each["metadata"].get("namespace") for each in objects} == {"lockkeeper", None}
    (addresses,) = of_kind(objects, "ConfigMap")
    assert "instance.database" in addresses["data"]["LOCKKEEPER_DATABASE_URL"]
    images = {container["image"] for _, pod in pods(objects) for container in pod["containers"]}
    assert images == {"registry.example.invalid/lockkeeper:0.1.0"}
    for placeholder in ("set-in-an-overlay", "//database.example.invalid"):
        assert placeholder not in done.stdout, "an address that the overlay cannot give"
    assert "helm" not in done.stdout.lower(), "nothing here belongs to Helm"


def test_kube_score_finds_nothing_that_is_not_explained(rendered: Render, tmp_path: Path, tools: Path) -> None:
    score = tool("kube-score", tools)
    explained = {
        "container-image-pull-policy": "tags are never moved; a node may start pods while the registry is away",
        "container-ephemeral-storage-request-and-limit": "each emptyDir has its own limit, and the root is read-only",
        "deployment-has-host-podantiaffinity": "topology spread does it, without refusing to run on one node",
        "container-resources": "no CPU limit: throttled heartbeats would lose leases",
    }
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(rendered("full")))
    command = [score, "score", "--kubernetes-version=v1.34", "--output-format=ci", str(file)]
    command += [flag for name in explained for flag in ("--ignore-test", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith(("[CRITICAL]", "[WARNING]"))] == []


def test_checkov_finds_nothing_that_is_not_explained(tools: Path) -> None:
    checkov = tool("checkov", tools)
    done = subprocess.run(
        [checkov, "--config-file", "deploy/checkov.yaml"], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_exception_of_checkov_has_its_reason() -> None:
    lines = (ROOT / "deploy" / "checkov.yaml").read_text(encoding="utf-8").splitlines()
    skipped = [line for line in lines if line.strip().startswith("- CKV")]
    assert skipped
    assert all(re.search(r"# \S+.*: \S+", line) for line in skipped)
