"""The parts of the local stack, as data: what runs, after what, and when it is ready.

`needs` is what a part cannot work without: it starts later and stops earlier. `after` only orders
the start, so that the dear imports of MLflow and of the SDK do not delay the console.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.local import front_door, postgres, tracking
from deploy.local.folder import LOOPBACK
from deploy.local.process import Command
from deploy.local.wiring import SERVICES, Environment, Wiring
from shared.contract.underwriting import PURPOSE_ATTRIBUTE, STATE_ATTRIBUTE, TURN_ATTRIBUTE


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
    scheme: str = "http://"
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    vital: bool = False
    grace_seconds: float = 15
    metrics_path: str | None = None

    @property
    def probed(self) -> str:
        """The name of the port that says whether the part is ready, and has its metrics."""
        return self.port or self.name


def _environment(own: Environment) -> Environment:
    """A part inherits a person's own settings, unless the stack gives its own."""
    ours = {"PYTHONUNBUFFERED": "1", "NO_PROXY": f"{LOOPBACK},localhost", "DO_NOT_TRACK": "true"}
    return dict(os.environ) | ours | own


def _program(name: str) -> str:
    """A program that a wheel put beside the interpreter, else one of the machine."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or str(beside)


def temporal_source() -> str | None:
    """Where this stack's Temporal comes from: `cluster` or `program`; None when this machine has none."""
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "cluster"
    return "program" if Path(_program("temporal")).exists() else None


def _module(name: str, environment: Callable[[Wiring], Environment]) -> Callable[[Wiring], Command]:
    return lambda wiring: Command([sys.executable, "-m", name], _environment(environment(wiring)))


def _postgres(wiring: Wiring) -> Command:
    return postgres.command(wiring.folder, wiring.ports["postgres"])


def _front_door(wiring: Wiring) -> Command:
    upstreams = {name: wiring.ports[name] for name in ("console", "notifier", "callback_receiver", "underwriting_api")}
    file = wiring.folder.path / "front_door.json"
    file.write_text(json.dumps(front_door.configuration(wiring.ports["front_door"], upstreams), indent=1))
    environment = {"XDG_DATA_HOME": str(wiring.folder.path / "caddy")}
    return Command([_program("caddy"), "run", "--config", str(file)], _environment(environment))


def _mlflow(wiring: Wiring) -> Command:
    return tracking.command(wiring.folder.path / "mlflow", wiring.ports["mlflow"], _environment({}))


def _temporal(wiring: Wiring) -> Command:
    home = wiring.folder.path / "temporal"
    home.mkdir(exist_ok=True)
    arguments = [
        _program("temporal"),
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
        f"--search-attribute={STATE_ATTRIBUTE}=Keyword",
        f"--search-attribute={PURPOSE_ATTRIBUTE}=Keyword",
        f"--search-attribute={TURN_ATTRIBUTE}=Int",
    ]
    return Command(arguments, _environment({}), niceness=5)


def _service(name: str, *, needs: tuple[str, ...] = (), after: tuple[str, ...] = (), vital: bool = False) -> Part:
    return Part(
        name,
        _module(f"services.{name}", lambda wiring: wiring.service(name)),
        "http",
        path="/readyz",
        port=f"{name}_ops",
        metrics_path="/metrics",
        needs=("schema", *needs),
        after=after,
        vital=vital,
        grace_seconds=25,
    )


PARTS: tuple[Part, ...] = (
    Part("postgres", _postgres, "postgres", scheme="postgresql://", vital=True, grace_seconds=30),
    Part("front_door", _front_door, "connect", vital=True, grace_seconds=5),
    Part("schema", _module("deploy.local.schema", Wiring.schema), "done", needs=("postgres",), vital=True),
    _service("console", needs=("front_door",), vital=True),
    Part(
        "workspace",
        _module("deploy.local.workspace", Wiring.workspace),
        "http",
        path="/health",
        needs=("schema", "front_door"),
    ),
    _service("callback_receiver", after=("console",)),
    _service("notifier", after=("console",)),
    Part("setup", _module("deploy.local.setup", Wiring.setup), "done", needs=("schema", "workspace")),
    _service("dispatcher", needs=("workspace",), after=("console",)),
    _service("sweeper", needs=("workspace",), after=("console",)),
    _service("cost_attributor", needs=("workspace",), after=("console",)),
    Part("mlflow", _mlflow, "http", path="/health", after=("console",), grace_seconds=5),
    Part("temporal", _temporal, "connect", scheme="", after=("dispatcher", "callback_receiver")),
    Part(
        "policy_sync",
        _module("deploy.local.policy_sync", Wiring.policy_sync),
        "http",
        path="/health",
        needs=("schema",),
        after=("dispatcher",),
        grace_seconds=5,
    ),
    _service("underwriting_api", after=("dispatcher", "callback_receiver")),
    _service("underwriting_worker", needs=("workspace",), after=("dispatcher", "callback_receiver")),
)


def port_names() -> list[str]:
    """Every port of the stack, also of parts that are not started: addresses name each other."""
    return [*(part.name for part in PARTS if part.probe != "done"), *(f"{name}_ops" for name in SERVICES)]
