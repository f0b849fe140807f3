from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.folder import StackFolder
from deploy.local.front_door import configuration
from deploy.local.parts import PARTS, port_names
from deploy.local.stack import UnknownPartError, select
from deploy.local.wiring import SERVICES, Wiring
from shared.contract.ownership import ROLES


@pytest.fixture
def wiring(tmp_path: Path) -> Wiring:
    folder = StackFolder(tmp_path)
    folder.make()
    return Wiring(folder, {name: 20_000 + index for index, name in enumerate(port_names())})


def test_every_service_is_a_part_and_has_its_role() -> None:
    assert set(SERVICES) <= {part.name for part in PARTS}
    assert set(SERVICES) <= set(ROLES)


def test_parts_need_and_follow_parts_that_stand_before_them() -> None:
    seen: set[str] = set()
    for part in PARTS:
        assert set(part.needs) | set(part.after) <= seen, part.name
        seen.add(part.name)


def test_a_service_knows_its_own_login_and_nobody_elses(wiring: Wiring) -> None:
    told = {name: " ".join(wiring.service(name).values()) for name in SERVICES}
    for name in SERVICES:
        for other in SERVICES:
            secret = wiring.folder.secret(f"lockkeeper_{other}")
            assert (secret in told[name]) == (name == other)
        assert wiring.folder.secret("owner") not in told[name]


def test_an_agent_gets_no_service_secret(wiring: Wiring) -> None:
    told = " ".join(wiring.agent().values())
    for name in SERVICES:
        assert wiring.folder.secret(f"lockkeeper_{name}") not in told
    assert wiring.folder.secret("callback_key") in told


def test_agents_get_what_a_person_chose_for_them(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_MODEL_URL", "https://models.example/v1")
    monkeypatch.setenv("LOCKKEEPER_MODEL", "some-model")
    assert wiring.agent()["LOCKKEEPER_MODEL_URL"] == "https://models.example/v1"
    assert wiring.agent()["LOCKKEEPER_MODEL"] == "some-model"


def test_rotating_credentials_leave_no_password_in_the_address(wiring: Wiring) -> None:
    rotating = Wiring(wiring.folder, wiring.ports, rotating=True)
    given = rotating.service("dispatcher")
    assert given["LOCKKEEPER_DATABASE_INSTANCE"] == "local"
    assert given["LOCKKEEPER_DATABASE_URL"].startswith("postgresql://lockkeeper_dispatcher@127.0.0.1:")


def test_an_external_database_keeps_its_host_and_options(wiring: Wiring) -> None:
    external = Wiring(wiring.folder, wiring.ports, "postgresql://me:secret@db.example:6543/queue?sslmode=require")
    url = external.role_url("console")
    assert url.startswith("postgresql://lockkeeper_console:")
    assert url.endswith("@db.example:6543/queue?sslmode=require")
    assert "secret@" not in url


def test_what_is_needed_comes_along() -> None:
    chosen = [part.name for part in select(["dispatcher"], own_database=True)]
    assert {"postgres", "schema", "workspace", "dispatcher"} <= set(chosen)
    assert "mlflow" not in chosen
    assert "postgres" not in {part.name for part in select([], own_database=False)}
    with pytest.raises(UnknownPartError, match="no such part: x; there are: postgres"):
        select(["x"], own_database=True)


def test_events_are_never_held_back() -> None:
    routes = configuration(8700, {"console": 1, "notifier": 2, "callback_receiver": 3})["apps"]["http"]["servers"][
        "front_door"
    ]["routes"]
    events = next(route for route in routes if route.get("match") == [{"path": ["/events"]}])
    assert events["handle"][0]["flush_interval"] == -1
    assert "match" not in routes[-1]
