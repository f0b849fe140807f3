"""The parts of the local stack, as data: what runs, after what, with which environment.

`needs` is what a part cannot work without: it starts later and stops earlier. `after` only orders
the start, so that the dear imports of MLflow and of the SDK do not delay the console.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from deploy.local import front_door, postgres
from deploy.local.folder import LOOPBACK, StackFolder
from deploy.local.process import Command

CHECKOUT = Path(__file__).resolve().parents[2]
CLIENT_ID = "lockkeeper"
CALLBACK_KEY_ID = "local-1"
AGENT_SETTINGS = ("LOCKKEEPER_AGENT_", "LOCKKEEPER_MODEL", "LOCKKEEPER_EXPERIMENT")
"""Settings that a person may give to `./dev up` for the agents: a real model endpoint, say."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Addresses and secrets of one stack, from which every part's environment is made."""

    folder: StackFolder
    ports: Mapping[str, int]
    external_database: str | None

    def http(self, name: str) -> str:
        """The base address of a part."""
        return f"http://{LOOPBACK}:{self.ports[name]}"

    @property
    def owner_url(self) -> str:
        """The database as its owner."""
        if self.external_database:
            return self.external_database
        return postgres.url(postgres.OWNER, self.folder.secret("owner"), self.ports["postgres"])

    @property
    def superuser_url(self) -> str:
        """The stack's own Postgres as the superuser that only makes the owner and the database."""
        return postgres.url(postgres.SUPERUSER, self.folder.secret("postgres"), self.ports["postgres"], "postgres")

    def role_url(self, service: str) -> str:
        """The database as one service."""
        role = f"lockkeeper_{service}"
        if self.external_database:
            return with_login(self.external_database, role, self.folder.secret(role))
        return postgres.url(role, self.folder.secret(role), self.ports["postgres"])


def with_login(url: str, role: str, password: str) -> str:
    """The same database under another login."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(role)}:{quote(password, safe='')}@{host}").geturl()


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the stack.

    `probe` says when it is ready: when it accepts connections, answers 2xx under `path`, or has
    ended with status 0 (`done`, for work that is done once per start). A `vital` part that cannot
    start ends the stack; any other is tried again and again.
    """

    name: str
    command: Callable[[Wiring], Command]
    probe: Literal["connect", "http", "postgres", "done"]
    path: str = "/"
    port: str | None = None
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    vital: bool = False
    grace_seconds: float = 15
    metrics_path: str | None = None

    @property
    def probed(self) -> str:
        """The name of the port that says whether the part is ready, and has its metrics."""
        return self.port or self.name


def base_environment() -> dict[str, str]:
    """What every part inherits: a person's own settings, unless the stack gives its own."""
    return dict(os.environ) | {"PYTHONUNBUFFERED": "1", "NO_PROXY": f"{LOOPBACK},localhost"}


def program(name: str) -> str:
    """A program that a wheel put beside the interpreter."""
    return str(Path(sys.executable).with_name(name))


def _schema(wiring: Wiring) -> Command:
    environment = base_environment() | {
        "LOCKKEEPER_DATABASE_URL": wiring.owner_url,
        "LOCKKEEPER_LOCAL_FOLDER": str(wiring.folder.path),
    }
    if not wiring.external_database:
        environment["LOCKKEEPER_LOCAL_SUPERUSER_URL"] = wiring.superuser_url
    return Command([sys.executable, "-m", "deploy.local.schema"], environment)


def _databricks(wiring: Wiring) -> dict[str, str]:
    """How the SDK finds the double."""
    return {
        "DATABRICKS_HOST": wiring.http("workspace"),
        "DATABRICKS_CLIENT_ID": CLIENT_ID,
        "DATABRICKS_CLIENT_SECRET": wiring.folder.secret("workspace_client"),
    }


def _callback_keys(wiring: Wiring) -> dict[str, str]:
    return {CALLBACK_KEY_ID: wiring.folder.secret("callback_key")}


def _agent_environment(wiring: Wiring) -> dict[str, str]:
    """What the code of a run sees: everything an agent may know, and nothing of a service."""
    given = {name: value for name, value in os.environ.items() if name.startswith(AGENT_SETTINGS)}
    return given | _databricks(wiring) | {
        "LOCKKEEPER_DATABASE_URL": wiring.role_url("document_agent"),
        "LOCKKEEPER_CALLBACK_URL": f"{wiring.http('front_door')}/callbacks/v1",
        "LOCKKEEPER_CALLBACK_KEY_ID": CALLBACK_KEY_ID,
        "LOCKKEEPER_CALLBACK_KEY": wiring.folder.secret("callback_key"),
        "MLFLOW_TRACKING_URI": wiring.http("mlflow"),
    }  # fmt: skip


def _workspace(wiring: Wiring) -> Command:
    environment = base_environment() | {
        "LOCKKEEPER_WORKSPACE_PORT": str(wiring.ports["workspace"]),
        "LOCKKEEPER_WORKSPACE_DATA_DIR": str(wiring.folder.path / "workspace"),
        "LOCKKEEPER_WORKSPACE_CODE_DIR": str(CHECKOUT),
        "LOCKKEEPER_WORKSPACE_CLIENT_ID": CLIENT_ID,
        "LOCKKEEPER_WORKSPACE_CLIENT_SECRET": wiring.folder.secret("workspace_client"),
        "LOCKKEEPER_WORKSPACE_DATABASE_ADMIN_URL": wiring.owner_url,
        "LOCKKEEPER_WORKSPACE_AGENT_ENVIRONMENT": json.dumps(_agent_environment(wiring)),
    }
    return Command([sys.executable, "-m", "deploy.local.workspace"], environment)


def _front_door(wiring: Wiring) -> Command:
    upstreams = {name: wiring.ports[name] for name in ("console", "notifier", "callback_receiver")}
    file = wiring.folder.path / "front_door.json"
    file.write_text(json.dumps(front_door.configuration(wiring.ports["front_door"], upstreams), indent=1))
    environment = base_environment() | {"XDG_DATA_HOME": str(wiring.folder.path / "caddy")}
    return Command([program("caddy"), "run", "--config", str(file)], environment)


def _mlflow(wiring: Wiring) -> Command:
    home = wiring.folder.path / "mlflow"
    home.mkdir(exist_ok=True)
    arguments = [
        program("mlflow"),
        "server",
        f"--backend-store-uri=sqlite:///{home / 'mlflow.db'}",
        f"--artifacts-destination={home / 'artifacts'}",
        f"--host={LOOPBACK}",
        f"--port={wiring.ports['mlflow']}",
        "--workers=1",
        "--uvicorn-opts=--no-access-log",
    ]
    # Job execution would start eight more processes for features that nobody here uses.
    environment = base_environment() | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return Command(arguments, environment, niceness=5)


def _temporal(wiring: Wiring) -> Command:
    home = wiring.folder.path / "temporal"
    home.mkdir(exist_ok=True)
    arguments = [
        program("temporal"),
        "server",
        "start-dev",
        "--headless",
        f"--ip={LOOPBACK}",
        f"--port={wiring.ports['temporal']}",
        f"--db-filename={home / 'temporal.db'}",
        # The default journal mode is two to three times slower.
        "--sqlite-pragma=journal_mode=wal",
        "--sqlite-pragma=synchronous=normal",
        "--log-level=warn",
    ]
    return Command(arguments, base_environment(), niceness=5)


def _setup(wiring: Wiring) -> Command:
    environment = base_environment() | _databricks(wiring) | {"LOCKKEEPER_DATABASE_URL": wiring.owner_url}
    return Command([sys.executable, "-m", "deploy.local.setup"], environment)


def _service(name: str) -> Callable[[Wiring], Command]:
    def command(wiring: Wiring) -> Command:
        environment = base_environment() | {
            "LOCKKEEPER_DATABASE_URL": wiring.role_url(name),
            "LOCKKEEPER_PORT": str(wiring.ports[name]),
            "LOCKKEEPER_OPS_PORT": str(wiring.ports[f"{name}_ops"]),
        }
        return Command([sys.executable, "-m", f"services.{name}"], environment | SERVICE_SETTINGS[name](wiring))

    return command


def _no_settings(_: Wiring) -> dict[str, str]:
    return {}


SERVICE_SETTINGS: dict[str, Callable[[Wiring], dict[str, str]]] = {
    "console": _databricks,
    "notifier": _no_settings,
    "callback_receiver": lambda wiring: {"LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps(_callback_keys(wiring))},
    "dispatcher": _databricks,
    "sweeper": _databricks,
    "cost_attributor": lambda wiring: _databricks(wiring) | {"MLFLOW_TRACKING_URI": wiring.http("mlflow")},
}
"""What each service needs besides its database role and its ports."""


def _service_part(name: str) -> Part:
    return Part(
        name,
        _service(name),
        "http",
        path="/readyz",
        port=f"{name}_ops",
        metrics_path="/metrics",
        needs=("schema",),
        after=() if name == "console" else ("console",),
        vital=name == "console",
        grace_seconds=25,
    )


PARTS: tuple[Part, ...] = (
    Part(
        "postgres",
        lambda wiring: postgres.command(wiring.folder, wiring.ports["postgres"]),
        "postgres",
        vital=True,
        grace_seconds=30,
    ),
    Part("front_door", _front_door, "connect", vital=True, grace_seconds=5),
    Part("schema", _schema, "done", needs=("postgres",), vital=True),
    Part("workspace", _workspace, "http", path="/health", needs=("schema",)),
    Part("setup", _setup, "done", needs=("schema", "workspace")),
    *(_service_part(name) for name in SERVICE_SETTINGS if find_spec(f"services.{name}.__main__")),
    Part("mlflow", _mlflow, "http", path="/health", after=("console",), grace_seconds=5),
    Part("temporal", _temporal, "connect", after=("mlflow",)),
)


def port_names() -> list[str]:
    """Every port of the stack, also of parts that are not started: addresses name each other."""
    names = [part.name for part in PARTS] + list(SERVICE_SETTINGS)
    return list(dict.fromkeys([*names, *(f"{name}_ops" for name in SERVICE_SETTINGS)]))
