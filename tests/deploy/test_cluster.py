"""The chart on a real one-node Kubernetes: installed, scaled by a real queue, rolled, drained, cut from its database.

Minutes long, so it runs when the tier is named (`./dev test deploy`) and not with everything else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.contract.ownership import ROLES, role_of
from shared.db.invariants import violations
from shared.testing.rows import make_agent, make_tasks
from tests.support.cluster import NAMESPACE, Cluster
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.statements import ROOT
from tests.support.workspace import CLIENT, WorkspaceDouble

pytestmark = pytest.mark.timeout(900)
KEY = "a-key-of-the-cluster-test"
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
def double(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceDouble]:
    """A workspace whose runs go on until a callback settles them, and take their time to start."""
    double = WorkspaceDouble(tmp_path_factory.mktemp("double"), host="0.0.0.0")  # noqa: S104 - pods ask it too
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
    principal = {"DATABRICKS_CLIENT_ID": CLIENT[0], "DATABRICKS_CLIENT_SECRET": CLIENT[1], "PGPASSWORD": PASSWORD}
    cluster.secret("lockkeeper-owner", **principal, PGUSER="lockkeeper")
    for service in ROLES:
        more = {"LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({"test": KEY})} if "receiver" in service else {}
        cluster.secret(f"lockkeeper-{service.replace('_', '-')}", **principal, **more, PGUSER=role_of(service))
    cluster.kit("keda")
    install(cluster, queue, double)
    asyncio.run(with_agent(queue))
    yield cluster
    if not cluster.started_here:
        cluster.run("helm", "uninstall", "lockkeeper", f"--namespace={NAMESPACE}", "--wait", check=False)
        cluster.run("kubectl", "delete", "namespace", NAMESPACE, check=False)


async def with_agent(queue: PostgresServer) -> None:
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    await make_agent(owner, max_concurrent_tasks=400)
    await owner.close()


def install(cluster: Cluster, queue: PostgresServer, double: WorkspaceDouble, **labels: str) -> None:
    repository, tag = cluster.image.split(":")
    values: dict[str, Any] = {
        "image": {"repository": repository, "tag": tag},
        "database": {
            "host": cluster.gateway(), "port": queue.port, "name": "lockkeeper", "sslmode": "disable",
            "credentials": "password",
        },
        "databricks": {"host": double.url},
        "mlflow": {"trackingUri": ""},
        "podLabels": labels,
        "services": {
            # One call at a time, each half a second long: one replica is soon too few.
            "dispatcher": {
                "autoscaling": {"by": "keda", "min": 1, "max": 4, "target": 30, "stabilizationSeconds": 10},
                "env": {"LOCKKEEPER_DISPATCHER_SUBMIT_THREADS": "1", "LOCKKEEPER_DISPATCHER_CLAIM_BATCH": "4"},
            },
            "sweeper": {"env": {"LOCKKEEPER_SWEEPER_GAUGES_SECONDS": "2"}},
        },
    }  # fmt: skip
    command = ["helm", "upgrade", "--install", "lockkeeper", "deploy/chart", f"--namespace={NAMESPACE}"]
    cluster.run(*command, "--values=-", "--wait", "--timeout=150s", stdin=json.dumps(values))


@asynccontextmanager
async def agents(cluster: Cluster, queue: PostgresServer) -> AsyncIterator[Counter[int]]:
    """What the runs' code does: it reports a result for every attempt that was submitted. Yields the answers."""
    address = cluster.get("service", "lockkeeper-callback-receiver")["spec"]["clusterIP"]
    answers: Counter[int] = Counter()
    asked: set[str] = set()

    async def report(client: httpx.AsyncClient, attempt: str) -> None:
        body = b'{"result": {"kind": "invoice"}, "confidence": 0.9, "pages": 3}'
        for _ in range(20):
            timestamp = str(int(time.time()))
            headers = {
                TIMESTAMP_HEADER: timestamp,
                KEY_ID_HEADER: "test",
                SIGNATURE_HEADER: sign(KEY.encode(), timestamp, body),
            }
            try:
                answer = await client.post(f"/callbacks/v1/attempts/{attempt}/result", content=body, headers=headers)
            except httpx.HTTPError:
                answers[0] += 1
            else:
                answers[answer.status_code] += 1
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.5)

    async def work() -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=f"http://{address}", trust_env=False, timeout=15, limits=limits
        ) as client:
            while True:
                rows = await owner.fetch("SELECT id::text FROM lockkeeper.task_attempts WHERE status = 'submitted'")
                new = {row["id"] for row in rows} - asked
                asked.update(new)
                await asyncio.gather(*(report(client, attempt) for attempt in new))
                await asyncio.sleep(0.1)

    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    working = asyncio.create_task(work())
    try:
        yield answers
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await owner.close()


def asked(url: str, **parameters: str) -> Any:
    answer = httpx.get(url, params=parameters, trust_env=False, timeout=15).json()
    assert answer["status"] == "success", answer
    return answer["data"]


async def settled(owner: asyncpg.Connection) -> bool:
    return bool(await owner.fetchval("SELECT count(*) = 0 FROM lockkeeper.tasks WHERE finished_at IS NULL"))


async def done_once(owner: asyncpg.Connection, double: WorkspaceDouble) -> None:
    """Every task ended well, by its first attempt, and no run was started twice."""
    told = await owner.fetch("SELECT status, attempt, count(*) FROM lockkeeper.tasks GROUP BY 1, 2")
    assert [(row["status"], row["attempt"]) for row in told] == [("completed", 1)]
    assert await owner.fetchval("SELECT count(*) = count(DISTINCT run_id) FROM lockkeeper.task_attempts")
    assert len(double.runs()) == told[0]["count"]
    assert await violations(owner) == []


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

    def empty() -> list[str]:
        found = []
        for path in sorted((OBSERVABILITY / "dashboards").glob("*.json")):
            for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
                for target in panel.get("targets", ()):
                    query = target["expr"].replace("$agent", ".*")
                    if not asked(f"{prometheus}/query", query=query)["result"]:
                        found.append(f"{path.stem}: {panel['title']}: {query}")
        return found

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
    targets = asked(f"{prometheus}/targets", state="active")["activeTargets"]
    ours = [each for each in targets if each["labels"].get("namespace") == NAMESPACE]
    assert {each["health"] for each in ours} == {"up"}
    assert {each["labels"]["component"] for each in ours} >= set(SERVICES)
    groups = asked(f"{prometheus}/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    print(f"{len(ours)} targets, {len(rules)} rules; firing: {sorted(firing)}")
    assert firing == set()
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
        end = time.monotonic() + 180
        while not await settled(owner):
            assert time.monotonic() < end
            await asyncio.sleep(0.5)
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
            end = time.monotonic() + 90
            while not await settled(owner):
                assert time.monotonic() < end
                await asyncio.sleep(0.5)
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


async def test_k01_without_its_database_a_pod_is_unready_and_never_restarted(
    installed: Cluster, queue: PostgresServer, double: WorkspaceDouble
) -> None:
    installed.until(lambda: installed.ready() >= 11, 90, "everything is ready")
    queue.stop()
    try:
        installed.until(lambda: installed.ready() == 0, 90, "no pod says that it is ready")
        await asyncio.sleep(15)
    finally:
        await asyncio.to_thread(queue.start)
    installed.until(lambda: installed.ready() >= 11, 60, "everything is ready again")
    assert installed.restarts() == {}
    owner = await asyncpg.connect(queue.url(database="lockkeeper"))
    await make_tasks(owner, 10)
    async with agents(installed, queue):
        end = time.monotonic() + 60
        while not await settled(owner):
            assert time.monotonic() < end
            await asyncio.sleep(0.5)
    await done_once(owner, double)
    await owner.close()
