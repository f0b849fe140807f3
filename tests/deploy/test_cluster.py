"""The chart on a real one-node Kubernetes: installed, scaled by a real queue, rolled, drained, cut from its database.

Minutes long, so it runs when the tier is named (`./dev test deploy`) and not with everything else.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from shared.contract.ownership import ROLES, role_of
from shared.testing.rows import make_tasks
from shared.testing.wait import until
from tests.support.alarms import Prometheus, hurried
from tests.support.cluster import NAMESPACE, Cluster
from tests.support.dashboards import empty_panels
from tests.support.kube import tool
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.release import KEY, KEY_ID, agents, done_once, finished, install, settled, with_agent
from tests.support.statements import ROOT
from tests.support.workspace import CLIENT, WorkspaceDouble

pytestmark = pytest.mark.timeout(900)
OBSERVABILITY = ROOT / "deploy" / "observability"
SERVICES = ("dispatcher", "sweeper", "callback-receiver", "cost-attributor", "notifier", "console")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if not any(
        Path(each.split("::")[0]).resolve().is_relative_to(Path(__file__).parent) for each in request.config.args
    ):
        pytest.skip("minutes long: runs when this tier is named")
    cluster = Cluster.start()
    try:
        cluster.build()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> Iterator[PostgresServer]:
    """A Postgres on this machine that pods reach, with the logins and nothing else: the chart migrates it."""
    server = PostgresServer.create(18, listen_addresses=f"127.0.0.1,{cluster.gateway()}", max_connections="209")
    network = ".".join(cluster.gateway().split(".")[:2]) + ".0.0/16"
    with (server.data / "pg_hba.conf").open("a") as file:
        file.write(f"host all all {network} trust\n")
    server.stop()
    server.start()

    async def logins() -> None:
        owner = await asyncpg.connect(server.url(database="postgres"))
        await owner.execute("CREATE ROLE lockkeeper LOGIN CREATEROLE")
        await owner.execute("CREATE DATABASE lockkeeper OWNER lockkeeper")
        for service in ROLES:
            await owner.execute(f"SET ROLE lockkeeper; CREATE ROLE {role_of(service)} LOGIN PASSWORD '{PASSWORD}'")
        await owner.close()

    asyncio.run(logins())
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def double(
    cluster: Cluster, queue: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkspaceDouble]:
    """A workspace whose runs go on until a callback settles them, and take their time to start."""
    double = WorkspaceDouble(
        tmp_path_factory.mktemp("double"), host="0.0.0.0",  # noqa: S104 - pods ask it too
        principals={role_of(service): PASSWORD for service in ROLES}, database_admin_url=queue.url(database="postgres"),
    )  # fmt: skip
    double.url = f"http://{cluster.gateway()}:{double.http.base_url.port}"
    double.fault("run", "hold", state="RUNNING")
    double.fault("jobs.run_now", "delay", seconds=0.5)
    double.make_job("parser")
    yield double
    double.stop()


@pytest.fixture(scope="module")
def installed(cluster: Cluster, queue: PostgresServer, double: WorkspaceDouble) -> Iterator[Cluster]:
    """The chart in a namespace under Pod Security `restricted`."""
    namespace = {
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }  # fmt: skip
    cluster.run("kubectl", "apply", "--filename=-", stdin=json.dumps(namespace))
    cluster.secret("lockkeeper-owner", **principal("lockkeeper", CLIENT[1]))
    for service in ROLES:
        more = {"LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({KEY_ID: KEY})} if "receiver" in service else {}
        cluster.secret(f"lockkeeper-{service.replace('_', '-')}", **principal(role_of(service), PASSWORD), **more)
    cluster.kit("keda")
    install(cluster, queue, double)
    asyncio.run(with_agent(queue))
    yield cluster
    if not cluster.started_here:
        cluster.run("helm", "uninstall", "lockkeeper", f"--namespace={NAMESPACE}", "--wait", check=False)
        cluster.run("kubectl", "delete", "namespace", NAMESPACE, check=False)


@pytest.fixture
def alarms(installed: Cluster, tools: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """Our rules over what kube-state-metrics tells of the autoscalers; half an hour of theirs passes in six seconds."""
    with installed.state_metrics(tool("kube-state-metrics", tools), tmp_path) as address:
        prometheus = Prometheus(tmp_path / "prometheus", {"kube-state-metrics": address}, hurried({}, 300))
        yield prometheus
        prometheus.stop()


def principal(name: str, secret: str) -> dict[str, str]:
    """One of the workspace that is a login of the database as well."""
    return {"DATABRICKS_CLIENT_ID": name, "DATABRICKS_CLIENT_SECRET": secret, "PGUSER": name, "PGPASSWORD": PASSWORD}


def asked(url: str, **parameters: str) -> Any:
    answer = httpx.get(url, params=parameters, trust_env=False, timeout=15).json()
    assert answer["status"] == "success", answer
    return answer["data"]


def test_everything_is_accepted_and_becomes_ready(installed: Cluster) -> None:
    for service in SERVICES:
        assert installed.ready(service) >= 1, service
    assert installed.restarts() == {}
    said = installed.run("helm", "test", "lockkeeper", f"--namespace={NAMESPACE}", "--logs")
    assert said.count(" 200 ") == 4
    plain = str(ROOT / "deploy" / "kustomize" / "overlays" / "production")
    installed.run("kubectl", "apply", "--server-side", "--dry-run=server", "--force-conflicts", "--kustomize", plain)


def test_a_pod_has_no_rights_and_a_bare_one_is_refused(installed: Cluster) -> None:
    (pod, *_) = [each["metadata"]["name"] for each in installed.pods("dispatcher")]
    status = installed.kubectl("exec", pod, "--", "python", "-c", "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Uid:\t10001" in status
    refused = installed.kubectl("run", "bare", f"--image={installed.image}", check=False)
    assert "violates PodSecurity" in refused


def test_the_bill_of_materials_names_what_the_image_holds(installed: Cluster, tmp_path: Path) -> None:
    bill = installed.bill(tmp_path)
    (pod, *_) = [each["metadata"]["name"] for each in installed.pods("dispatcher")]
    code = "from importlib.metadata import distributions as all; print(*{f'{d.name}=={d.version}' for d in all()})"
    held = installed.kubectl("exec", pod, "--", "python", "-c", code).split()
    assert sorted(f"{each['name']}=={each['version']}" for each in bill["components"]) == sorted(held)
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])


async def test_the_dispatcher_scales_with_what_the_limits_admit(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    await owner.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = 0, version = version + 1")
    await make_tasks(owner, 250)
    told: list[tuple[float, int]] = []
    started = time.monotonic()

    def replicas() -> int:
        count = int(installed.get("deployment", "lockkeeper-dispatcher")["spec"]["replicas"])
        if not told or told[-1][1] != count:
            told.append((round(time.monotonic() - started, 1), count))
        return count

    # A deep queue that no limit admits is no reason to scale.
    await asyncio.sleep(15)
    assert replicas() == 1
    async with agents(installed, queue) as answers:
        await owner.execute("UPDATE lockkeeper.agents SET max_concurrent_tasks = 400, version = version + 1")
        most = 1
        end = time.monotonic() + 240
        while not (await settled(owner) and most > 1 and replicas() == 1):
            most = max(most, await asyncio.to_thread(replicas))
            assert time.monotonic() < end, told
            await asyncio.sleep(1)
    print(f"replicas over time: {told}; callbacks answered: {dict(answers)}")
    assert most == 4
    assert set(answers) == {200}
    await done_once(owner, double)
    assert installed.restarts() == {}
    await owner.close()


async def test_a_real_prometheus_scrapes_everything_and_no_panel_stays_empty(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    installed.kit("prometheus", *(str(path) for path in sorted((OBSERVABILITY / "rules").glob("*.yaml"))))
    prometheus = f"{installed.environment['PROMETHEUS_URL']}/api/v1"
    address = {
        name: installed.get("service", f"lockkeeper-{name}")["spec"]["clusterIP"] for name in ("console", "notifier")
    }
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    await make_tasks(owner, 60)

    def empty() -> set[str]:
        return empty_panels(lambda query: asked(f"{prometheus}/query", query=query)["result"])

    async with (
        agents(installed, queue),
        httpx.AsyncClient(trust_env=False, timeout=10, headers={"X-Forwarded-User": "watcher"}) as browser,
        browser.stream("GET", f"http://{address['notifier']}/events"),
    ):
        end = time.monotonic() + 240
        while missing := await asyncio.to_thread(empty):
            await browser.get(f"http://{address['console']}/api/v1/agents")
            assert time.monotonic() < end, sorted(missing)
            await asyncio.sleep(5)

    def targets() -> list[dict[str, Any]]:
        active = asked(f"{prometheus}/targets", state="active")["activeTargets"]
        return [each for each in active if each["labels"].get("namespace") == NAMESPACE]

    # One that was found a moment ago is not asked yet.
    installed.until(lambda: {each["health"] for each in targets()} == {"up"}, 60, "every pod is scraped")
    ours = targets()
    assert {each["labels"]["component"] for each in ours} >= set(SERVICES)
    groups = asked(f"{prometheus}/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    print(f"{len(ours)} targets, {len(rules)} rules; firing: {sorted(firing)}")
    assert firing == set()
    await owner.close()


async def test_the_autoscalers_alerts_fire_by_their_faults_and_clear_with_them(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble, alarms: Prometheus
) -> None:
    scaler = f'namespace="{NAMESPACE}", horizontalpodautoscaler="keda-hpa-lockkeeper-dispatcher"'
    sees = f'kube_horizontalpodautoscaler_status_condition{{{scaler}, condition="ScalingActive", status="true"}} == 1'
    many_done = "SELECT count(*) < 360 FROM lockkeeper.tasks WHERE finished_at IS NULL"
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))

    def replicas() -> int:
        return int(installed.get("deployment", "lockkeeper-dispatcher")["spec"]["replicas"])

    def firing() -> list[str]:
        found = alarms.ask("/query", query=f'ALERTS{{{scaler}, alertstate="firing"}}')["result"]
        return [alert["metric"]["alertname"] for alert in found]

    async def told(*alerts: str) -> None:
        await asyncio.to_thread(alarms.wait, lambda: firing() == [*alerts], 150, firing)

    await asyncio.to_thread(alarms.wait, lambda: bool(alarms.query(sees)), 60)
    await told()
    async with agents(installed, queue):
        # Nobody says any more how much there is to do: work for four stays with one.
        installed.kubectl("scale", "deployment/lockkeeper-sweeper", "--replicas=0")
        try:
            await told("LockkeeperAutoscalerBlind")
            await make_tasks(owner, 400)
            await until(lambda: owner.fetchval(many_done), seconds=90, every=0.5)
            assert replicas() == 1
        finally:
            installed.kubectl("scale", "deployment/lockkeeper-sweeper", "--replicas=2")
        # What is seen again is more than four start at once.
        await told("LockkeeperAutoscalerPinned")
        assert replicas() == 4
        await finished(owner, 120)
    await told()
    installed.until(lambda: replicas() == 1, 60, "one dispatcher is enough")
    await done_once(owner, double)
    await owner.close()


async def test_a_rolling_update_of_everything_loses_and_doubles_nothing(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    await make_tasks(owner, 200)
    before = {pod["metadata"]["uid"] for pod in installed.pods()}
    async with agents(installed, queue) as answers:
        started = time.monotonic()
        # An upgrade: the migration's hook runs beside the old pods, then every pod is replaced.
        await asyncio.to_thread(install, installed, queue, double, upgraded="yes")
        seconds = time.monotonic() - started
        await finished(owner, 180)
    print(f"rolled in {seconds:.0f} s; callbacks answered: {dict(answers)}")
    assert before.isdisjoint({pod["metadata"]["uid"] for pod in installed.pods()})
    assert set(answers) == {200}, "a callback met a pod that no longer or not yet answers"
    await done_once(owner, double)
    assert installed.restarts() == {}
    await owner.close()


async def test_k09_a_drain_takes_what_the_budgets_allow_and_work_goes_on(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    installed.until(lambda: installed.ready("callback-receiver") == 2, 60, "both receivers are ready")
    drain = ["drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=25s"]
    chosen = "--pod-selector=app.kubernetes.io/name=lockkeeper,app.kubernetes.io/component!=dispatcher"
    try:
        async with agents(installed, queue) as answers:
            await make_tasks(owner, 40)
            # There is no other node: what is evicted waits, and the budget keeps the second pod of each.
            said = await asyncio.to_thread(installed.kubectl, *drain, chosen, check=False)
            assert "Cannot evict pod as it would violate the pod's disruption budget" in said
            for service in SERVICES:
                assert installed.ready(service) >= 1, service
            await finished(owner, 90)
        assert set(answers) == {200}
    finally:
        installed.run("kubectl", "uncordon", "node1")
    # A single replica is no obstacle: its budget lets it go.
    (pod,) = [each["metadata"]["name"] for each in installed.pods("dispatcher")]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    installed.run("kubectl", "create", "--raw", path, "--filename=-", stdin=json.dumps(body))
    installed.until(lambda: installed.ready() >= 11, 90, "everything is back")
    await done_once(owner, double)
    await owner.close()


def test_k01_without_its_database_a_pod_is_unready_and_never_restarted(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    installed.until(lambda: installed.ready() >= 11, 90, "everything is ready")
    queue.stop()
    try:
        installed.until(lambda: installed.ready() == 0, 90, "no pod says that it is ready")
        time.sleep(15)
    finally:
        # From this thread: the server ends with the thread that started it.
        queue.start()
    installed.until(lambda: installed.ready() >= 11, 60, "everything is ready again")
    assert installed.restarts() == {}

    async def work() -> None:
        owner = await asyncpg.connect(queue.url(database="lockkeeper"))
        await make_tasks(owner, 10)
        async with agents(installed, queue):
            await finished(owner, 60)
        await done_once(owner, double)
        await owner.close()

    asyncio.run(work())


async def test_the_plain_manifests_run_by_themselves(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble, tmp_path: Path
) -> None:
    """An overlay like production's with addresses of its own, on a new database with credentials that rotate."""
    installed.run("helm", "uninstall", "lockkeeper", f"--namespace={NAMESPACE}", "--wait")
    owner = await asyncpg.connect(queue.url(database="postgres"))
    await owner.execute("CREATE DATABASE plain OWNER lockkeeper")
    await owner.close()
    runs = len(double.runs())
    shutil.copytree(ROOT / "deploy" / "kustomize", tmp_path / "kustomize")
    file = tmp_path / "kustomize" / "overlays" / "production" / "kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    repository, tag = installed.image.split(":")
    for said, ours in {
        "newName: registry.example.invalid/lockkeeper": f"newName: {repository}", "newTag: 0.1.0": f"newTag: {tag}",
        "instance.database.example.invalid:5432/databricks_postgres?sslmode=verify-full":
            f"{installed.gateway()}:{queue.port}/plain?sslmode=disable",
        "https://workspace.example.invalid": double.url,
    }.items():  # fmt: skip
        assert said in text
        text = text.replace(said, ours)
    file.write_text(text, encoding="utf-8")
    apply = ["kubectl", "apply", "--server-side", "--kustomize", str(file.parent)]
    installed.run(*apply)
    for name in ("job --selector=app.kubernetes.io/component=migrate --for=condition=Complete",
                 "deployment --all --for=condition=Available"):  # fmt: skip
        installed.kubectl("wait", *name.split(), "--timeout=150s")
    await with_agent(queue, "plain")
    owner = await asyncpg.connect(queue.url(database="plain"))
    await make_tasks(owner, 20)
    async with agents(installed, queue, "plain") as answers:
        await finished(owner, 90)
    assert set(answers) == {200}
    assert len(double.runs()) == runs + 20
    installed.run(*apply)
    assert installed.restarts() == {}
    await owner.close()
