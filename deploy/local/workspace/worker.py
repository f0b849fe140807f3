"""A warm process: imports the agents' code once, then executes one run after the other.

Started by ``processes.py`` as ``python -m deploy.local.workspace.worker FD OPTIONS``. The socket FD carries
JSON lines: an order in, an end out. It runs code the way a serverless Python task does: a wheel entry point is
called without arguments and reads ``sys.argv``, its return value is ignored, an exception or a non-zero
``SystemExit`` fails the run. Closing the socket ends the process; so does the death of the double.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import io
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from deploy.local.process import tie_to_parent


class Options(TypedDict):
    """What a process is told once, at its start."""

    parent: int
    nice: int
    code_dir: str
    entry_points: dict[str, str]


class Order(TypedDict):
    """One run: a wheel entry point or a Python file, its arguments, environment and log file."""

    entry_point: str | None
    python_file: str | None
    argv: list[str]
    environment: dict[str, str]
    log: str


class Ended(TypedDict):
    """How it went: no error is success."""

    error: str | None
    error_trace: str | None


def main() -> None:
    """Serve orders until the socket closes."""
    descriptor, options = int(sys.argv[1]), json.loads(sys.argv[2])
    tie_to_parent(options["parent"], signal.SIGKILL)
    os.nice(options["nice"])
    os.set_inheritable(descriptor, False)  # what a run starts must not hold the line open
    channel = socket.socket(fileno=descriptor)
    sys.path.insert(0, options["code_dir"])
    for target in options["entry_points"].values():
        preload(target)
    lines = channel.makefile("r", encoding="utf-8")
    answer(channel, {"ready": True})
    for line in lines:
        # Said before the code is touched: a process that dies without this word has run nothing.
        answer(channel, {"started": True})
        answer(channel, perform(json.loads(line), options["entry_points"]))


def answer(channel: socket.socket, message: object) -> None:
    """Send one line."""
    channel.sendall(json.dumps(message).encode() + b"\n")


def preload(target: str) -> None:
    """Import the module behind an entry point now, and call its ``warm_up`` if it has one.

    If that fails, the run that needs it will say why.
    """
    try:
        module = importlib.import_module(target.partition(":")[0])
        warm_up = getattr(module, "warm_up", None)
        if callable(warm_up):
            warm_up()
    except Exception:  # noqa: BLE001 - any failure of foreign code belongs to the run, not to the warm-up
        traceback.print_exc()


def perform(order: Order, entry_points: dict[str, str]) -> Ended:
    """Execute one run in this process and say how it ended."""
    with captured(order["log"]), environment(order["environment"]), arguments(order):
        try:
            execute(order, entry_points)
        except SystemExit as leaving:
            if leaving.code in (None, 0):
                return {"error": None, "error_trace": None}
            return failure(leaving)
        except BaseException as error:  # noqa: BLE001 - whatever a run raises is its end, not ours
            traceback.print_exc()
            return failure(error)
        return {"error": None, "error_trace": None}


def failure(error: BaseException) -> Ended:
    """The end of a run that raised."""
    return {
        "error": f"{type(error).__name__}: {error}",
        "error_trace": "".join(traceback.format_exception(error)),
    }


def execute(order: Order, entry_points: dict[str, str]) -> None:
    """Call the code of the run."""
    if order["python_file"] is not None:
        runpy.run_path(order["python_file"], run_name="__main__")
        return
    function = resolve(order["entry_point"] or "", entry_points)
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    function(order["argv"]) if needed else function()


def resolve(name: str, entry_points: dict[str, str]) -> Callable[..., Any]:
    """The function behind an entry point: configured, else a script of an installed package."""
    if name in entry_points:
        module, _, attribute = entry_points[name].partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute or "main")
        return function
    for script in importlib.metadata.entry_points(group="console_scripts", name=name):
        loaded: Callable[..., Any] = script.load()
        return loaded
    msg = f"no entry point is named {name!r}"
    raise LookupError(msg)


@contextmanager
def captured(path: str) -> Iterator[None]:
    """Write everything the run prints, from native code too, into its log file."""
    kept = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.closed:
                stream.flush()
        for descriptor, original in enumerate(kept, start=1):
            os.dup2(original, descriptor)
            os.close(original)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Give the run its own variables and take every change back afterwards."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def arguments(order: Order) -> Iterator[None]:
    """Set ``sys.argv`` for the run, and restore it, the path and the working directory."""
    argv, path, directory = sys.argv, list(sys.path), os.getcwd()  # noqa: PTH109 - nothing is done with it
    sys.argv = [order["python_file"] or order["entry_point"] or "", *order["argv"]]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        os.chdir(directory)


if __name__ == "__main__":
    main()
