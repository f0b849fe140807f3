"""From the task of a job to the order a warm process executes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.local.workspace.operation import JsonObject, invalid_parameter
from deploy.local.workspace.run_record import Run
from deploy.local.workspace.worker import Order

_REFERENCE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
_VOLUMES = "/Volumes/"


def only_task(settings: JsonObject) -> JsonObject:
    """The one task of a job or submitted run; the double executes Python wheels and Python files only."""
    tasks = settings.get("tasks") or []
    if len(tasks) != 1 or not isinstance(tasks[0], dict):
        raise invalid_parameter("the workspace double runs jobs of exactly one task")
    task: JsonObject = {"task_key": "main", **tasks[0]}
    wheel, file = task.get("python_wheel_task"), task.get("spark_python_task")
    if isinstance(wheel, dict) and wheel.get("entry_point"):
        return task
    if isinstance(file, dict) and file.get("python_file"):
        return task
    raise invalid_parameter("the workspace double runs python_wheel_task and spark_python_task only")


def order_for(run: Run, resolve_volume: Callable[[str], Path], code_dir: Path, log: Path) -> Order:
    """What a warm process needs to execute the run."""
    values = _references(run)
    wheel, file = run.task.get("python_wheel_task"), run.task.get("spark_python_task")
    variables = {str(one["name"]): str(one["value"]) for one in run.task.get("environment_variables", [])}
    if wheel:
        return Order(
            entry_point=str(wheel["entry_point"]),
            python_file=None,
            argv=_wheel_arguments(wheel, run.parameters, values),
            environment=variables,
            log=str(log),
        )
    assert file is not None  # noqa: S101 - only_task has checked it when the run was accepted
    return Order(
        entry_point=None,
        python_file=str(_python_file(str(file["python_file"]), resolve_volume, code_dir)),
        argv=[_filled(str(one), values) for one in file.get("parameters") or []],
        environment=variables,
        log=str(log),
    )


def _wheel_arguments(wheel: Mapping[str, Any], parameters: Mapping[str, str], values: Mapping[str, str]) -> list[str]:
    """Positional parameters as given; otherwise named ones, with the job's parameters pushed down to them."""
    positional: Sequence[object] = wheel.get("parameters") or []
    if positional:
        return [_filled(str(one), values) for one in positional]
    named = {name: _filled(str(value), values) for name, value in (wheel.get("named_parameters") or {}).items()}
    return [f"--{name}={value}" for name, value in {**named, **parameters}.items()]


def _references(run: Run) -> dict[str, str]:
    known = {
        "job.id": str(run.job_id),
        "job.run_id": str(run.run_id),
        "job.name": run.run_name,
        "task.run_id": str(run.task_run_id),
        "task.name": str(run.task["task_key"]),
    }
    return known | {f"job.parameters.{name}": value for name, value in run.parameters.items()}


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: values.get(found[1], found[0]), text)


def _python_file(path: str, resolve_volume: Callable[[str], Path], code_dir: Path) -> Path:
    plain = path.removeprefix("dbfs:")
    return resolve_volume(plain) if plain.startswith(_VOLUMES) else code_dir / plain
