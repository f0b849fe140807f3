"""Each alert is made to fire by its fault and to clear, on a real Prometheus over a stack.

`LOCKKEEPER_TEST_ALERTS=all` takes every fault by itself, about a quarter of an hour; three at once otherwise.
`LOCKKEEPER_TEST_PICTURES=FOLDER` draws the dashboards over all of that time.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psutil
import pytest

from deploy.local import postgres
from deploy.local.folder import StackFolder, free_port
from tests.support.alarms import Hands, Prometheus, Scene, hurried
from tests.support.batch import StackUser
from tests.support.dashboards import draw, empty_panels
from tests.support.stack import NO_RUNS, StackProcess

pytestmark = pytest.mark.timeout(600)
ALL = os.environ.get("LOCKKEEPER_TEST_ALERTS") == "all"
SPEED = 60 if ALL else 300
PARTS = ("console", "notifier", "dispatcher", "sweeper", "callback_receiver", "cost_attributor", "setup")
LONG_PARTS = ("mlflow",)
"""Without traces an attempt's cost stays pending, and nothing is spent."""
TOKEN_SECONDS = 60
SHORT = ("dispatcher stopped", "unsigned callbacks", "listener cut")
NOT_HERE = {
    "LockkeeperAutoscalerPinned": "kube-state-metrics tells it; tests/deploy/test_cluster.py has the fault",
    "LockkeeperAutoscalerBlind": "kube-state-metrics tells it; tests/deploy/test_cluster.py has the fault",
}
IN_A_HURRY = {
    "LockkeeperOldestTaskTooOld": {"> 3600": "> 4"},
    "LockkeeperNoDispatcherAlive": {"- 60": "- 20"},
    "LockkeeperNoReceiverAlive": {"- 60": "- 20"},
    "LockkeeperSweepStopped": {"> 120": "> 8"},
    "LockkeeperSampleStale": {"> 60": "> 8"},
    "LockkeeperCostPending": {"> 21600": "> 3"},
    "LockkeeperCredentialExpires": {"< 600": f"< {TOKEN_SECONDS // 4}"},
    "LockkeeperXidAge": {"> 5e8": "> 20000"},
    "LockkeeperTableBloat": {"> 100000": "> 500"},
    "LockkeeperConnectionsNearLimit": {"> 0.8": "> 0.7"},
    # What happens once in a while needs a longer look than a minute of ours.
    "LockkeeperLoopFailing": {"[5m]": "[60m]"},
    "LockkeeperFencedWrites": {"[15m]": "[60m]"},
    "LockkeeperPoolExhausted": {"[5m]": "[30m]"},
    "lockkeeper:submits:rate5m": {"[5m]": "[60m]"},
    "lockkeeper:runs_lost:increase15m": {"[15m]": "[90m]"},
}


Fault = Callable[[Scene], AbstractContextManager[object]]


@contextmanager
def dispatcher_stopped(scene: Scene) -> Iterator[None]:
    with scene.paused("dispatcher"):
        scene.tasks()
        yield


@contextmanager
def unsigned_callbacks(scene: Scene) -> Iterator[None]:
    url = f"/callbacks/v1/attempts/{uuid4()}/result"
    with (
        httpx.Client(base_url=scene.user.http.base_url, trust_env=False) as http,
        scene.again(lambda: http.post(url, json={}), 0.7),
    ):
        yield


@contextmanager
def tables_locked(scene: Scene) -> Iterator[None]:
    """Nobody can read the attempts: no sweep, no figures, and callbacks are not taken."""
    attempt = str(uuid4())
    lock = "LOCK TABLE lockkeeper.tasks, lockkeeper.task_attempts IN ACCESS EXCLUSIVE MODE"
    with scene.hands.holding(lock), ExitStack() as callers:
        for _ in range(8):
            callers.enter_context(scene.again(lambda: scene.user.call_back(attempt, "result", {"result": {}})))
        yield


@contextmanager
def database_dead(scene: Scene) -> Iterator[None]:
    """Postgres is killed, and its port taken so that it cannot come back."""
    part = scene.user.stack.part("postgres")
    port = int(part["url"].rpartition(":")[2])
    process = psutil.Process(part["pid"])
    process.kill()
    psutil.wait_procs([process], 10)
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        yield


@contextmanager
def listener_cut(scene: Scene) -> Iterator[None]:
    role = "lockkeeper_notifier"
    with scene.sql(f"ALTER ROLE {role} CONNECTION LIMIT 0", f"ALTER ROLE {role} CONNECTION LIMIT -1"):
        scene.hands.run(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{role}' "
            "AND application_name LIKE '%listen'"
        )
        yield


@contextmanager
def late_loop(scene: Scene) -> Iterator[None]:
    pid = scene.user.stack.part("notifier")["pid"]

    def pulse() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.3)
        os.kill(pid, signal.SIGCONT)

    with scene.again(pulse, 0.6):
        yield


@contextmanager
def budget_used_up(scene: Scene) -> Iterator[None]:
    with scene.broken(api="run", kind="hold", state="RUNNING"):
        scene.tasks(3, max_concurrent_tasks=1, lease_seconds=300)
        yield


@contextmanager
def lease_stuck(scene: Scene) -> Iterator[None]:
    """The row of an overdue task is held by somebody, so that no sweep can deal with it."""
    with scene.broken(api="run", kind="hold", state="RUNNING"):
        (task,) = scene.tasks(1)
        scene.user.wait(lambda: scene.user.task(task)["status"] == "processing", 60)
        with scene.hands.holding(f"SELECT FROM lockkeeper.tasks WHERE id = '{task}' FOR UPDATE"):
            yield


@contextmanager
def silent_deaths(scene: Scene) -> Iterator[None]:
    with scene.broken(api="run", kind="die_silently"):
        scene.tasks(12, max_concurrent_tasks=12, lease_seconds=5)
        yield


@contextmanager
def late_writes(scene: Scene) -> Iterator[None]:
    (task,) = scene.tasks(1)
    scene.user.wait(lambda: scene.user.task(task)["status"] == "completed", 120)
    (attempt,) = scene.user.task(task)["attempts"]
    late = {"reason": "agent_error", "message": "too late", "retryable": False}
    with scene.again(lambda: scene.user.call_back(attempt["id"], "failure", late), 0.1):
        yield


@contextmanager
def results_waiting(scene: Scene) -> Iterator[None]:
    (task,) = scene.tasks(1)
    scene.user.wait(lambda: bool(scene.user.task(task)["attempts"]), 60)
    (attempt,) = scene.user.task(task)["attempts"]
    with scene.paused("callback_receiver"):
        scene.hands.run(f"INSERT INTO lockkeeper.recovered_results (attempt_id) VALUES ('{attempt['id']}')")
        yield


@contextmanager
def pool_exhausted(scene: Scene) -> Iterator[None]:
    with scene.hands.holding("LOCK TABLE lockkeeper.agents IN ACCESS EXCLUSIVE MODE"), ExitStack() as callers:
        for _ in range(12):
            callers.enter_context(scene.again(lambda: scene.user.http.get("/api/v1/agents"), 0.05))
        yield


@contextmanager
def many_connections(scene: Scene) -> Iterator[None]:
    limit, used = (
        int(scene.hands.run(f"SELECT {each}")) for each in (
            "current_setting('max_connections')::int", "count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
    )  # fmt: skip
    with scene.hands.holding(connections=int(limit * 0.78) - used):
        yield


@contextmanager
def old_transactions(scene: Scene) -> Iterator[None]:
    scene.hands.run("DO $$ BEGIN FOR n IN 1..25000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    yield
    scene.hands.run("VACUUM (FREEZE)")


@contextmanager
def dead_rows(scene: Scene) -> Iterator[None]:
    scene.tasks(1)
    with scene.hands.holding("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM lockkeeper.tasks"):
        for _ in range(3):
            scene.hands.run(
                "DO $$ BEGIN FOR n IN 1..300 LOOP UPDATE lockkeeper.agents SET default_tokens = default_tokens; "
                "COMMIT; END LOOP; END $$"
            )
        yield
    scene.hands.run("VACUUM lockkeeper.agents")


@contextmanager
def costs_pending(scene: Scene) -> Iterator[None]:
    with scene.paused("cost_attributor"):
        (task,) = scene.tasks(1)
        scene.user.wait(lambda: scene.user.task(task)["status"] == "completed", 120)
        yield


@contextmanager
def loops_failing(scene: Scene) -> Iterator[None]:
    with scene.sql(
        "REVOKE SELECT ON lockkeeper.recovered_results FROM lockkeeper_callback_receiver",
        "GRANT SELECT ON lockkeeper.recovered_results TO lockkeeper_callback_receiver",
    ):
        yield


@contextmanager
def submits_refused(scene: Scene) -> Iterator[None]:
    with scene.broken(api="jobs.run_now", kind="status", status=429, retry_after="1"):
        scene.tasks(4)
        yield


@contextmanager
def money_spent(scene: Scene) -> Iterator[None]:
    """A budget for the day is less than what the agent's one task has cost."""
    (task,) = scene.tasks(1, daily_budget="1")
    agent = scene.user.task(task)["agent"]

    def spent() -> float:
        return float(scene.user.ask("GET", f"/api/v1/agents/{agent}")["budget"]["spent_today"])

    scene.user.wait(lambda: spent() > 0, 120)
    scene.user.agent(agent, daily_budget="0.000001")
    yield
    scene.user.agent(agent, daily_budget=None)


@contextmanager
def credentials_withheld(scene: Scene) -> Iterator[None]:
    with ExitStack() as faults:
        for api in ("database.credentials", "postgres.credentials"):
            faults.enter_context(scene.broken(api=api, kind="status", status=503))
        yield


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "dispatcher stopped": (
        dispatcher_stopped, {"LockkeeperDispatchStopped", "LockkeeperOldestTaskTooOld"},
    ),
    "dispatchers gone": (lambda scene: scene.paused("dispatcher"), {"LockkeeperNoDispatcherAlive"}),
    "unsigned callbacks": (unsigned_callbacks, {"LockkeeperCallbacksUnsigned"}),
    "tables locked": (
        tables_locked,
        {"LockkeeperSweepStopped", "LockkeeperSampleStale", "LockkeeperCallbackErrorsFast", "LockkeeperCallbackErrorsSlow"},
    ),
    "receivers gone": (lambda scene: scene.paused("callback_receiver"), {"LockkeeperNoReceiverAlive"}),
    "sweepers gone": (lambda scene: scene.paused("sweeper"), {"LockkeeperSweeperAbsent"}),
    "database dead": (database_dead, {"LockkeeperDatabaseDown"}),
    "listener cut": (listener_cut, {"LockkeeperListenerDown"}),
    "event loop late": (late_loop, {"LockkeeperEventLoopLate"}),
    "budget used up": (budget_used_up, {"LockkeeperBudgetSaturated"}),
    "lease stuck": (lease_stuck, {"LockkeeperLeasesOverdue"}),
    "silent deaths": (silent_deaths, {"LockkeeperLeasesLost"}),
    "late writes": (late_writes, {"LockkeeperFencedWrites"}),
    "results waiting": (results_waiting, {"LockkeeperResultsNotSettled"}),
    "pool exhausted": (pool_exhausted, {"LockkeeperPoolExhausted"}),
    "many connections": (many_connections, {"LockkeeperConnectionsNearLimit"}),
    "old transactions": (old_transactions, {"LockkeeperXidAge"}),
    "dead rows": (dead_rows, {"LockkeeperTableBloat"}),
    "costs pending": (costs_pending, {"LockkeeperCostPending"}),
    "loops failing": (loops_failing, {"LockkeeperLoopFailing"}),
    "submits refused": (submits_refused, {"LockkeeperSubmitsRefused"}),
    "money spent": (money_spent, {"LockkeeperBudgetSpent"}),
    "credentials withheld": (credentials_withheld, {"LockkeeperCredentialExpires"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    given = {
        "LOCKKEEPER_SWEEPER_GAUGES_SECONDS": "1", "LOCKKEEPER_SWEEPER_DATABASE_GAUGES_SECONDS": "2",
        "LOCKKEEPER_AGENT_TRACE_WAIT_SECONDS": "0.2", "LOCKKEEPER_LOCAL_CREDENTIALS": "rotating",
        "LOCKKEEPER_WORKSPACE_DATABASE_TOKEN_SECONDS": str(TOKEN_SECONDS),
        "LOCKKEEPER_COST_ATTRIBUTOR_UNKNOWN_AFTER_SECONDS": "15",
    }  # fmt: skip
    parts = PARTS + LONG_PARTS if ALL else PARTS
    if not ALL:
        given |= NO_RUNS
    stack = StackProcess(tmp_path_factory.mktemp("alerts") / "stack", free_port(), *parts, **given).start(300)
    user = StackUser(stack)
    if not ALL:
        user.break_it(api="run", kind="hold", state="RUNNING")
    # As the superuser, who may cut a role's connections and freeze a whole database.
    where, folder = urlsplit(stack.description()["database_url"]), StackFolder(stack.folder)
    superuser = postgres.url(postgres.SUPERUSER, folder.secret("postgres"), where.port or 0, where.path.strip("/"))
    with Hands(superuser) as hands:
        yield Scene(user, hands)
    user.close()
    stack.destroy()


@pytest.fixture(scope="module")
def prometheus(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = {
        part["name"]: part["metrics_url"].removeprefix("http://").removesuffix("/metrics")
        for part in scene.user.stack.description()["parts"] if part["metrics_url"]
    }  # fmt: skip
    made = Prometheus(tmp_path_factory.mktemp("prometheus") / "home", targets, hurried(IN_A_HURRY, SPEED))
    yield made
    made.stop()


def test_every_alert_has_a_fault_or_a_reason(prometheus: Prometheus) -> None:
    alerts = {rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"}
    faulted = set().union(*(expected for _, expected in FAULTS.values()))
    assert alerts == faulted | NOT_HERE.keys()


def test_everything_is_scraped_every_rule_is_evaluated_and_nothing_fires(prometheus: Prometheus) -> None:
    prometheus.wait(
        lambda: {each["health"] for each in prometheus.ask("/targets")["activeTargets"]} == {"up"}, 60,
        lambda: [(each["scrapeUrl"], each["lastError"]) for each in prometheus.ask("/targets")["activeTargets"]],
    )  # fmt: skip
    prometheus.wait(lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, 60)
    prometheus.wait(lambda: not prometheus.firing(), 120, prometheus.firing)


@pytest.mark.parametrize("names", [(name,) for name in FAULTS] if ALL else [SHORT], ids=" and ".join)
def test_alerts_fire_by_their_faults_and_clear_with_them(
    scene: Scene, prometheus: Prometheus, names: tuple[str, ...]
) -> None:
    expected = set().union(*(FAULTS[name][1] for name in names))
    seen: set[str] = set()

    def all_fired() -> bool:
        seen.update(prometheus.firing())
        return expected <= seen

    with ExitStack() as faults:
        for name in names:
            faults.enter_context(FAULTS[name][0](scene))
        prometheus.wait(all_fired, 150, lambda: f"{sorted(expected - seen)} did not fire; {sorted(seen)} did")
    prometheus.wait(lambda: not prometheus.firing() & expected, 240, prometheus.firing)


@pytest.mark.skipif(not ALL, reason="a batch's time: LOCKKEEPER_TEST_ALERTS=all")
def test_no_panel_of_the_dashboards_stays_empty(scene: Scene, prometheus: Prometheus) -> None:
    scene.tasks(2)
    empty = empty_panels(prometheus.query)

    def all_drawn() -> bool:
        # Windows are seconds here: what a panel showed once, it shows for minutes with the real rules.
        empty.intersection_update(empty_panels(prometheus.query))
        return not empty

    prometheus.wait(all_drawn, 120, lambda: sorted(empty))
    if pictures := os.environ.get("LOCKKEEPER_TEST_PICTURES"):
        draw(prometheus.query_range, Path(pictures))
