"""The processes of a chaos run: replicas of the services, a Postgres that is stopped hard, a workspace double."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from deploy.local.folder import free_port
from shared.contract.ownership import role_of
from tests.support.chaos.acts import AGENTS, REPLICAS
from tests.support.chaos.nursery import Nursery
from tests.support.postgres import PostgresServer
from tests.support.workspace import WorkspaceDouble

KEY_ID, KEY = "chaos", "c" * 32
DATABASE = "chaos"
_SERVICES = {"dispatcher": "dispatcher", "sweeper": "sweeper", "receiver": "callback_receiver"}
_QUICK = {
    # A second here is ten in production, so that short runs see what takes long.
    "LOCKKEEPER_DISPATCHER_POLL_SECONDS": "0.5",
    "LOCKKEEPER_DISPATCHER_RETRY_SECONDS": "1",
    "LOCKKEEPER_DISPATCHER_HTTP_SECONDS": "2",
    "LOCKKEEPER_DISPATCHER_SUBMIT_LEASE_SECONDS": "9",
    "LOCKKEEPER_DISPATCHER_CLAIM_BATCH": "10",
    "LOCKKEEPER_DISPATCHER_TAKE_OVER_POLL_SECONDS": "1",
    "LOCKKEEPER_DISPATCHER_CANCEL_POLL_SECONDS": "1",
    "LOCKKEEPER_SWEEPER_POLL_SECONDS": "0.5",
    "LOCKKEEPER_SWEEPER_DUTY_SECONDS": "3",
    "LOCKKEEPER_SWEEPER_DOUBT_SECONDS": "2",
    "LOCKKEEPER_SWEEPER_RESULT_SECONDS": "3",
    "LOCKKEEPER_SWEEPER_RETRY_SECONDS": "1",
    "LOCKKEEPER_SWEEPER_HTTP_SECONDS": "2",
    "LOCKKEEPER_CALLBACK_RECEIVER_KEYS": json.dumps({KEY_ID: KEY}),
    "LOCKKEEPER_CALLBACK_RECEIVER_SETTLE_SECONDS": "2",
    "LOCKKEEPER_CALLBACK_RECEIVER_RECOVERED_POLL_SECONDS": "0.5",
    "LOCKKEEPER_DATABASE_CONNECTIONS": "3",
    "LOCKKEEPER_HEARTBEAT_SECONDS": "2",
    "LOCKKEEPER_GRACE_SECONDS": "5",
}


def service_of(replica: str) -> str:
    """The service that this one is a replica of."""
    return _SERVICES[replica.partition("-")[0]]


@dataclass
class Replica:
    """One replica of a service through all its lives."""

    name: str
    nursery: Nursery
    environment: dict[str, str]
    log: Path
    port: int = field(default_factory=free_port)
    lives: int = 0
    process: psutil.Process | None = None

    @property
    def service(self) -> str:
        return service_of(self.name)

    def start(self, *, renamed: bool = False, shift: float = 0) -> None:
        self.lives += 1
        own = {
            "LOCKKEEPER_REPLICA": f"{self.name}.{self.lives}" if renamed else self.name,
            "LOCKKEEPER_PORT": str(self.port),
        }
        self.process = psutil.Process(self.nursery.start(self.service, self.environment | own, str(self.log), shift))

    def signal(self, number: signal.Signals) -> None:
        """A frozen process receives it when it is thawed."""
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):
                self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Gone when this returns; one that is told to stop gets its grace time."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            _, alive = psutil.wait_procs([process], 15)
            for each in alive:
                each.kill()
                each.wait(5)

    @property
    def ended_by_itself(self) -> str | None:
        """What nobody asked of it."""
        if self.process is None or self.process.is_running():
            return None
        return f"{self.name} ended by itself:\n{self.log.read_text()[-3000:]}"


class Machine:
    """Everything that runs; `start` returns once it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = PostgresServer.create(synchronous_commit="on", fsync="off")
        self.nursery = Nursery()
        self.replicas: dict[str, Replica] = {}
        self.double: WorkspaceDouble | None = None
        self._postgres = asyncio.Lock()

    def url(self, service: str | None = None) -> str:
        return self.server.url(database=DATABASE) if service is None else self.server.url(role_of(service), DATABASE)

    def receivers(self) -> list[str]:
        return [
            f"http://127.0.0.1:{each.port}" for each in self.replicas.values() if each.service == "callback_receiver"
        ]

    async def prepare(self) -> None:
        """The database, and the replicas' ports."""
        await self.server.make_template()
        await self.server.clone(DATABASE)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
        for name in REPLICAS:
            given = {**clean, **_QUICK, "LOCKKEEPER_DATABASE_URL": self.url(service_of(name))}
            self.replicas[name] = Replica(name, self.nursery, given, self.folder / f"{name}.log")

    def start(self, callback_url: str) -> None:
        self.double = WorkspaceDouble(
            self.folder / "workspace",
            processes=4, nice=1, warm_up_delay_seconds=0,
            run_entry_points={"chaos-agent": "tests.support.chaos.agent:main"},
            agent_environment={
                "LOCKKEEPER_DATABASE_URL": self.url("document_agent"),
                "LOCKKEEPER_CALLBACK_URL": callback_url,
                "LOCKKEEPER_CALLBACK_KEY_ID": KEY_ID,
                "LOCKKEEPER_CALLBACK_KEY": KEY,
                "LOCKKEEPER_CALLBACK_DEADLINE_SECONDS": "4",
                "LOCKKEEPER_AGENT_HEARTBEAT_SECONDS": "1",
                "LOCKKEEPER_AGENT_PROGRESS_SECONDS": "0.3",
            },
        )  # fmt: skip
        for agent in AGENTS:
            self.double.make_job(agent, "chaos-agent")
        for replica in self.replicas.values():
            replica.environment |= self.double.environment()
            replica.start()

    async def restart_postgres(self, ending: signal.Signals, seconds: float) -> None:
        """Stop it, hard or soft, and bring it back after a while."""
        async with self._postgres:
            await asyncio.to_thread(self.server.stop, ending)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.server.start)

    def stop(self) -> None:
        for replica in self.replicas.values():
            replica.end(signal.SIGKILL)
        self.nursery.close()
        if self.double is not None:
            self.double.stop()
        self.server.destroy()

    def ended_by_themselves(self) -> list[str]:
        return [said for each in self.replicas.values() if (said := each.ended_by_itself)]
