"""Addresses and secrets of one stack, and the environments made of them.

Only here is decided who may know what: a service gets its own database login and its own service
principal, the code of a run gets what an agent may know, and nobody gets another's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from deploy.local import postgres
from deploy.local.folder import LOOPBACK, StackFolder
from shared.contract.ownership import ROLES, role_of

CHECKOUT = Path(__file__).resolve().parents[2]
SERVICES = (
    "console", "callback_receiver", "notifier", "dispatcher", "sweeper", "cost_attributor",
    "underwriting_api", "underwriting_worker",
)  # fmt: skip
ADMINISTRATOR = "lockkeeper"
"""The service principal that sets the workspace up."""
CALLBACK_KEY_ID = "local-1"
AGENT_SETTINGS = ("LOCKKEEPER_AGENT_", "LOCKKEEPER_MODEL", "LOCKKEEPER_EXPERIMENT", "OTEL_")
"""Settings that a person may give to `./dev up` for the agents: a real model endpoint, say."""

Environment = dict[str, str]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Where everything of one stack is."""

    folder: StackFolder
    ports: Mapping[str, int]
    external_database: str | None = None
    rotating: bool = False
    """Services log in with expiring credentials of the workspace instead of a password of their own."""

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
        parts = urlsplit(self.owner_url)
        login = quote(role_of(service))
        if not self.rotating:
            login += ":" + quote(self.folder.secret(role_of(service)), safe="")
        return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()

    def database(self, service: str) -> Environment:
        """How one service logs in."""
        given = {"LOCKKEEPER_DATABASE_URL": self.role_url(service)}
        return given | ({"LOCKKEEPER_DATABASE_INSTANCE": "local"} if self.rotating else {})

    def databricks(self, principal: str) -> Environment:
        """How the SDK finds the double and who it is there."""
        return {
            "DATABRICKS_HOST": self.http("workspace"),
            "DATABRICKS_CLIENT_ID": principal,
            "DATABRICKS_CLIENT_SECRET": self._principal_secret(principal),
        }

    def service(self, name: str) -> Environment:
        """Everything that one service is told."""
        own = {"LOCKKEEPER_PORT": str(self.ports[name]), "LOCKKEEPER_OPS_PORT": str(self.ports[f"{name}_ops"])}
        if name == "console":
            # A page of elsewhere whose name is made to lead here is not answered.
            own["LOCKKEEPER_CONSOLE_ALLOWED_HOSTS"] = json.dumps([LOOPBACK, "localhost"])
            own["MLFLOW_TRACKING_URI"] = self.http("mlflow")
        if name == "callback_receiver":
            keys = {CALLBACK_KEY_ID: self.folder.secret("callback_key")}
            own["LOCKKEEPER_CALLBACK_RECEIVER_KEYS"] = json.dumps(keys)
        if name == "cost_attributor":
            own |= {"MLFLOW_TRACKING_URI": self.http("mlflow"), "DATABRICKS_WAREHOUSE_ID": "local"}
        if name in ("underwriting_worker", "underwriting_api"):
            own |= {
                "TEMPORAL_ADDRESS": os.environ.get("TEMPORAL_ADDRESS") or f"{LOOPBACK}:{self.ports['temporal']}",
                f"LOCKKEEPER_{name.upper()}_PAYLOAD_KEYS": json.dumps({"local-1": self._payload_key()}),
            }
        if name == "underwriting_worker":
            own["MLFLOW_TRACKING_URI"] = self.http("mlflow")
        return own | self.database(name) | self.databricks(role_of(name))

    def agent(self) -> Environment:
        """What the code of a run sees."""
        chosen = {name: value for name, value in os.environ.items() if name.startswith(AGENT_SETTINGS)}
        return {
            **chosen,
            **self.database("document_agent"),
            **self.databricks(role_of("document_agent")),
            "LOCKKEEPER_CALLBACK_URL": f"{self.http('front_door')}/callbacks/v1",
            "LOCKKEEPER_CALLBACK_KEY_ID": CALLBACK_KEY_ID,
            "LOCKKEEPER_CALLBACK_KEY": self.folder.secret("callback_key"),
            "MLFLOW_TRACKING_URI": self.http("mlflow"),
        }

    def workspace(self) -> Environment:
        """What the double is told; the workspace's own folder survives restarts."""
        principals = {role_of(name): self._principal_secret(role_of(name)) for name in ROLES}
        return {
            "LOCKKEEPER_WORKSPACE_PORT": str(self.ports["workspace"]),
            "LOCKKEEPER_WORKSPACE_DATA_DIR": str(self.folder.path / "workspace"),
            "LOCKKEEPER_WORKSPACE_CODE_DIR": str(CHECKOUT),
            "LOCKKEEPER_WORKSPACE_CLIENT_ID": ADMINISTRATOR,
            "LOCKKEEPER_WORKSPACE_CLIENT_SECRET": self._principal_secret(ADMINISTRATOR),
            "LOCKKEEPER_WORKSPACE_PRINCIPALS": json.dumps(principals),
            "LOCKKEEPER_WORKSPACE_DATABASE_ADMIN_URL": self.owner_url,
            "LOCKKEEPER_WORKSPACE_AGENT_ENVIRONMENT": json.dumps(self.agent()),
        }

    def schema(self) -> Environment:
        """What the migration step is told."""
        given = {"LOCKKEEPER_DATABASE_URL": self.owner_url, "LOCKKEEPER_LOCAL_FOLDER": str(self.folder.path)}
        if self.rotating:
            given["LOCKKEEPER_DATABASE_INSTANCE"] = "local"
        if self.external_database is None:
            given["LOCKKEEPER_LOCAL_SUPERUSER_URL"] = self.superuser_url
        return given

    def policy_sync(self) -> Environment:
        """What the stand-in for the policy's sync is told."""
        return {
            "LOCKKEEPER_DATABASE_URL": self.owner_url,
            "LOCKKEEPER_LOCAL_POLICY_FILE": str(self.folder.path / "underwriting_policy.yaml"),
            "LOCKKEEPER_LOCAL_POLICY_PORT": str(self.ports["policy_sync"]),
        }

    def setup(self) -> Environment:
        """What the set-up step is told."""
        return {"LOCKKEEPER_DATABASE_URL": self.owner_url, **self.databricks(ADMINISTRATOR)}

    def _principal_secret(self, principal: str) -> str:
        return self.folder.secret(f"principal_{principal}")

    def _payload_key(self) -> str:
        """The key that Temporal's payloads are encrypted with."""
        return base64.b64encode(hashlib.sha256(self.folder.secret("payload_key").encode()).digest()).decode()
