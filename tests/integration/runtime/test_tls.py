"""TLS to a Debian Postgres with a test authority: only the server that can prove its name is talked to."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from deploy.local.folder import free_port
from deploy.local.postgres import as_server_user
from shared.contract.errors import MisconfiguredError, TransientError
from shared.db.connecting import connect, tls_for
from shared.db.listener import Listener
from shared.db.pool import Database
from shared.testing.wait import until
from tests.support.certificates import Authority

DEBIAN = Path("/usr/lib/postgresql/15/bin")
pytestmark = pytest.mark.skipif(not DEBIAN.exists(), reason="needs Debian's postgresql-15 (./dev test installs it)")


def own_address() -> str:
    """An address of this machine that is no loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])
    pytest.skip("this machine has no address but the loopback")


@dataclass
class SecureServer:
    """Debian's Postgres with TLS; `wear` gives it another certificate."""

    data: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, home: Path) -> SecureServer:
        home.chmod(0o755)
        for folder in home.parents:
            if str(folder).startswith("/tmp/"):  # noqa: S108 - pytest's folders are closed to others
                folder.chmod(folder.stat().st_mode | 0o055)
        data = home / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
        initdb = DEBIAN / "initdb"
        subprocess.run(
            [*as_server_user(data, initdb), str(initdb), f"--pgdata={data}", "--username=postgres", "--auth=trust",
             "--encoding=UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True,
        )  # fmt: skip
        (data / "pg_hba.conf").write_text("hostssl all all all trust\nhostnossl all all all reject\n")
        return cls(data, free_port())

    def wear(self, certificate: tuple[Path, Path]) -> None:
        """Start anew with this certificate."""
        self.stop()
        for source, name in zip(certificate, ("server.crt", "server.key"), strict=True):
            target = self.data / name
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
            os.chown(target, self.data.stat().st_uid, self.data.stat().st_gid)
        program = DEBIAN / "postgres"
        settings = {"listen_addresses": "*", "unix_socket_directories": "", "ssl": "on", "fsync": "off"}
        arguments = [*as_server_user(self.data, program), str(program), "-D", str(self.data), "-p", str(self.port)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._takes_logins():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def _takes_logins(self) -> bool:
        """An open port is not enough: it refuses logins while the server is starting up."""
        with suppress(FileNotFoundError):
            return "ready" in (self.data / "postmaster.pid").read_text(encoding="utf-8")
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(2)
            self.process.wait(20)
            self.process = None

    def url(self, host: str, options: str = "") -> str:
        return f"postgresql://postgres@{host}:{self.port}/postgres{options}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    home = tmp_path_factory.mktemp("tls")
    made = SecureServer.create(home)
    yield made
    made.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


async def test_the_right_server_is_talked_to_by_pool_listener_and_script(server: SecureServer, ours: Authority) -> None:
    host = own_address()
    server.wear(ours.issue(host))
    url = server.url(host, f"?sslrootcert={ours.bundle}")
    script = await connect(url, name="tls")
    assert await script.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    await script.close()
    pool = Database(url, name="tls")
    await pool.open()
    assert await pool.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    await pool.close()
    listener = Listener(url, None, {}, name="tls-listen")
    await listener.open()
    await until(lambda: listener.is_live)
    await listener.close()


@pytest.mark.parametrize("case", ["another host", "another authority", "expired"])
async def test_a_server_that_cannot_prove_its_name_is_refused(
    server: SecureServer, ours: Authority, tmp_path: Path, case: str
) -> None:
    host = own_address()
    certificate = {
        "another host": lambda: ours.issue("database.example"),
        "another authority": lambda: Authority(tmp_path, "theirs").issue(host),
        "expired": lambda: ours.issue(host, days=-1),
    }[case]()
    server.wear(certificate)
    url = server.url(host, f"?sslrootcert={ours.bundle}")
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(url, name="tls")
    pool = Database(url, name="tls", acquire_seconds=0.5)
    await pool.open()
    with pytest.raises(TransientError):
        await pool.fetchval("SELECT 1")
    await pool.close()


async def test_a_server_without_tls_or_of_an_unknown_authority_is_refused_by_default(
    server: SecureServer, ours: Authority
) -> None:
    host = own_address()
    server.wear(ours.issue(host))
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(server.url(host), name="tls")  # nobody said to trust this authority
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await connect(server.url(host, "?sslmode=disable"), name="tls")  # the server's own rule


def test_only_this_machine_is_talked_to_without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    for local in ("postgresql://u@localhost/d", "postgresql://u@127.0.0.1:1/d", "postgresql://u@[::1]/d",
                  "postgresql:///d?host=/run/postgresql"):  # fmt: skip
        assert tls_for(local) is None
    for remote in ("postgresql://u@db.example/d", "postgresql://u@10.0.0.1/d", "postgresql://u@127.0.0.1,db.example/d",
                   "postgresql:///d?host=db.example", "postgresql://u@localhost.example/d"):  # fmt: skip
        context = tls_for(remote)
        assert context is not None
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(MisconfiguredError, match="sslrootcert /nowhere"):
        tls_for("postgresql://u@db.example/d?sslrootcert=/nowhere")
