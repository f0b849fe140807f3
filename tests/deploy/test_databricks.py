from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.databricks.agent import main as start_agent
from deploy.databricks.app.main import adopt_platform
from deploy.local.folder import free_port
from deploy.local.setup import job_settings
from lockkeeper.address import with_credential
from shared.contract.callback import KEY_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from shared.contract.errors import MisconfiguredError
from shared.contract.ownership import ROLES, role_of
from shared.testing.rows import make_agent, make_tasks
from tests.conftest import TestDatabase
from tests.support.statements import ROOT
from tests.support.workspace import WorkspaceDouble

BUNDLE = ROOT / "deploy" / "databricks"
KEY = "a-key-of-the-app's-test"


def bundle() -> dict[str, Any]:
    found = yaml.safe_load((BUNDLE / "databricks.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def resources() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((BUNDLE / "resources").glob("*.yml")):
        for kind, each in yaml.safe_load(path.read_text(encoding="utf-8"))["resources"].items():
            found.setdefault(kind, {}).update(each)
    return found


def named(kind: str) -> list[tuple[str, dict[str, Any]]]:
    return list(resources().get(kind, {}).items())


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        ("jobs", "jobs", "Job"),
        ("apps", "apps", "App"),
        ("schemas", "schemas", "Schema"),
        ("volumes", "volumes", "Volume"),
        ("secret_scopes", "secret_scopes", "SecretScope"),
        ("experiments", "experiments", "MlflowExperiment"),
        ("sql_warehouses", "sql_warehouses", "SqlWarehouse"),
    ],
)
def test_a_resource_has_only_fields_of_its_kind(kind: str, module: str, name: str) -> None:
    models = pytest.importorskip(f"databricks.bundles.{module}", reason="databricks-bundles is not installed")
    for _, fields in named(kind):
        getattr(models, name).from_dict(fields)


@pytest.mark.parametrize(
    ("kind", "spec", "own"),
    [
        ("postgres_projects", "ProjectSpec", {"project_id"}),
        ("postgres_branches", "BranchSpec", {"parent", "branch_id"}),
        ("postgres_roles", "RoleRoleSpec", {"parent", "role_id"}),
        ("postgres_synced_tables", "SyncedTableSyncedTableSpec", {"synced_table_id"}),
    ],
)
def test_a_lakebase_resource_has_only_fields_of_the_sdk(kind: str, spec: str, own: set[str]) -> None:
    postgres = pytest.importorskip("databricks.sdk.service.postgres")
    known = {field.name for field in dataclasses.fields(getattr(postgres, spec))} | own
    assert named(kind)
    for name, fields in named(kind):
        assert set(fields) <= known, name
        assert own <= set(fields), name


def test_everything_that_is_referred_to_is_there() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in BUNDLE.rglob("*.yml"))
    declared = set(bundle()["variables"])
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) <= declared
    for kind, name in re.findall(r"\$\{resources\.(\w+)\.(\w+)\.", text):
        assert name in resources()[kind]
    for path in ("../agent.py", "../../../requirements-agent.lock"):
        assert (BUNDLE / "resources" / path).resolve().is_file()


def test_every_role_has_a_principal_of_its_own() -> None:
    wanted = {f"principal_{service}" for service in ROLES}
    assert {name for name in bundle()["variables"] if name.startswith("principal_")} == wanted
    logins = {fields["postgres_role"] for _, fields in named("postgres_roles")}
    assert logins == {f"${{var.{name}}}" for name in wanted}


def test_the_agents_job_is_the_one_that_the_local_stack_has() -> None:
    """It gets ids only, never queues, and runs under its own principal without retries of the platform."""
    ((_, job),) = named("jobs")
    local = job_settings("document-agent", "document-agent")
    assert job["max_concurrent_runs"] == local["max_concurrent_runs"]
    assert job["queue"] == local["queue"]
    assert job["parameters"] == local["parameters"]
    assert job["run_as"] == {"service_principal_name": "${var.principal_document_agent}"}
    (task,) = job["tasks"]
    assert task["max_retries"] == 0
    assert not [each for each in task["spark_python_task"]["parameters"] if "KEY=" in each], "a secret in the open"


def test_the_agents_settings_are_ones_that_it_knows() -> None:
    settings = pytest.importorskip("shared.agent_kit.settings")
    known = {f"LOCKKEEPER_{name}".upper() for name in settings.AgentSettings.model_fields} | {"MLFLOW_TRACKING_URI"}
    ((_, job),) = named("jobs")
    parameters = job["tasks"][0]["spark_python_task"]["parameters"]
    given = {each.removeprefix("--set=").partition("=")[0] for each in parameters if each.startswith("--set=")}
    assert given <= known


def test_a_run_gets_its_settings_and_hands_over_its_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "standing_in.py").write_text(
        "import json, os, pathlib, sys\n"
        f"def main():\n    seen = json.dumps([sys.argv[1:], os.environ['LOCKKEEPER_X']])\n    pathlib.Path({str(tmp_path / 'seen')!r}).write_text(seen)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("deploy.databricks.agent.ENTRY_POINT", "standing_in:main")
    monkeypatch.setenv("LOCKKEEPER_X", "before")
    monkeypatch.setattr(sys, "argv", ["agent.py"])
    start_agent(["--task_id=1", "--attempt_id=2", "--set=LOCKKEEPER_X=a=b"])
    assert json.loads((tmp_path / "seen").read_text()) == [["--task_id=1", "--attempt_id=2"], "a=b"]


def test_the_app_says_what_it_misses() -> None:
    with pytest.raises(MisconfiguredError, match="LAKEBASE_ENDPOINT, DATABRICKS_APP_PORT not set"):
        adopt_platform({"PGHOST": "h", "PGUSER": "u", "PGDATABASE": "d"})


def test_the_app_takes_what_the_platform_tells() -> None:
    told = {"PGHOST": "h", "PGUSER": "a-b", "PGDATABASE": "databricks_postgres", "DATABRICKS_APP_PORT": "8000",
            "LAKEBASE_ENDPOINT": "projects/p/branches/b/endpoints/e", "DOCUMENTS_VOLUME": "main.lockkeeper.documents"}  # fmt: skip
    adopt_platform(told)
    assert told["LOCKKEEPER_DATABASE_URL"] == "postgresql://a-b@h:5432/databricks_postgres?sslmode=verify-full"
    assert told["LOCKKEEPER_CONSOLE_VOLUME"] == "/Volumes/main/lockkeeper/documents"
    assert told["LOCKKEEPER_PORT"] == "8000"


def test_the_names_of_the_apps_resources_are_those_that_it_asks_for() -> None:
    ((_, app),) = named("apps")
    asked = yaml.safe_load((BUNDLE / "app" / "app.yaml").read_text(encoding="utf-8"))
    assert {each["valueFrom"] for each in asked["env"]} == {each["name"] for each in app["resources"]}
    assert asked["command"] == ["python", "main.py"]


def test_what_is_staged_is_all_that_the_app_needs(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("deploy", "shared", "services", "lockkeeper", "requirements-services.lock"):
        (copy / name).symlink_to(ROOT / name)
    script = (BUNDLE / "stage.sh").read_text(encoding="utf-8").replace('cd "$(dirname "$0")/../.."', f"cd {copy}")
    subprocess.run(["sh", "-c", script.replace("cp -R", "cp -RL")], check=True, cwd=copy)
    staged = copy / "build" / "app"
    assert {"main.py", "app.yaml", "requirements.txt", "shared", "services", "lockkeeper"} == {
        each.name for each in staged.iterdir()
    }
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(staged)!r}]; import main"],
                          capture_output=True, text=True, check=False, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def app(database: TestDatabase, tmp_path: Path) -> Iterator[httpx.Client]:
    """The app as a process, with rotating credentials of the workspace double."""
    principal = "app-principal"
    with ThreadPoolExecutor(1) as beside:
        beside.submit(asyncio.run, database.server.adopt(database.name, "projects/p/branches/b")).result()
    double = WorkspaceDouble(tmp_path / "double", database_admin_url=database.url(), principals={principal: "s" * 32})
    port = free_port()
    server = httpx.URL(database.url())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKKEEPER_", "PG"))} | {
        "PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": principal, "PGDATABASE": database.name,
        "PGSSLMODE": "disable", "LAKEBASE_ENDPOINT": "projects/p/branches/b/endpoints/e",
        "DATABRICKS_APP_PORT": str(port), "DATABRICKS_HOST": double.url, "DATABRICKS_CLIENT_ID": principal,
        "DATABRICKS_CLIENT_SECRET": "s" * 32, "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({"k": KEY}),
        "DOCUMENTS_VOLUME": "main.lockkeeper.documents", "LOCKKEEPER_HEARTBEAT_SECONDS": "0.5", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(BUNDLE / "app" / "main.py")], env=environment, stdout=log, stderr=log
        )
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10, headers={"X-Forwarded-User": "watcher"}
    )
    try:
        yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        client.close()
        process.kill()
        process.wait()
        double.stop()


async def test_the_app_is_three_services_at_one_address(database: TestDatabase, request: pytest.FixtureRequest) -> None:
    groups = ", ".join(role_of(name) for name in ("console", "notifier", "callback_receiver"))
    await database.owner.execute(f'CREATE ROLE "app-principal" LOGIN IN ROLE {groups}')
    client = request.getfixturevalue("app")
    end = time.monotonic() + 40
    while not await asyncio.to_thread(answers, client):
        assert time.monotonic() < end
        await asyncio.sleep(0.2)
    await make_agent(database.owner)
    await make_tasks(database.owner, 1)
    await asyncio.to_thread(look, client)
    rows = await database.owner.fetch(
        "SELECT service, info ->> 'listener' AS hears FROM lockkeeper.replicas ORDER BY 1"
    )
    assert [row["service"] for row in rows] == ["callback_receiver", "console", "notifier"]


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/api/v1/agents").status_code == 200
    except httpx.TransportError:
        return False


def look(client: httpx.Client) -> None:
    assert [each["name"] for each in client.get("/api/v1/agents").json()["agents"]] == ["parser"]
    with client.stream("GET", "/events") as stream:
        assert next(line for line in stream.iter_lines() if line == "event: snapshot")
    body, now = b"{}", str(int(time.time()))
    headers = {TIMESTAMP_HEADER: now, KEY_ID_HEADER: "k", SIGNATURE_HEADER: sign(KEY.encode(), now, body)}
    path = "/callbacks/v1/attempts/01900000-0000-7000-8000-000000000000/heartbeat"
    end = time.monotonic() + 20
    while (answer := client.post(path, content=body, headers=headers)).status_code == 503:
        assert time.monotonic() < end, answer.text  # it has not asked the database's clock yet
    assert answer.status_code == 404, answer.text
    assert client.post(path, content=body).status_code == 401


async def test_the_migration_logs_in_with_a_fresh_credential(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.owner.execute('CREATE ROLE "owner-principal" LOGIN')
    double = WorkspaceDouble(
        tmp_path / "double", database_admin_url=database.url(), principals={"owner-principal": "s" * 32}
    )
    told = {"DATABRICKS_HOST": double.url, "DATABRICKS_CLIENT_ID": "owner-principal", "DATABRICKS_CLIENT_SECRET": "s" * 32,
            "LOCKKEEPER_DATABASE_INSTANCE": "projects/p/branches/b/endpoints/e", "PGUSER": "owner-principal"}  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shared.vendors.lakebase._workspace", None)
    try:
        server = httpx.URL(database.url())
        url = await with_credential(f"postgresql://127.0.0.1:{server.port}/{database.name}?sslmode=disable")
        found = httpx.URL(url)
        assert (found.username, len(found.password) > 16) == ("owner-principal", True)
        life = await database.owner.fetchval(
            "SELECT rolvaliduntil > now() FROM pg_roles WHERE rolname = 'owner-principal'"
        )
        assert life is True
    finally:
        double.stop()
