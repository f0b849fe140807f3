"""`python -m deploy.local COMMAND`: the commands of `./dev` that need more than a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click

from deploy.local.folder import PortTakenError, StackFolder, StackRunningError

CHECKOUT = Path(__file__).resolve().parents[2]
FRONT_DOOR_PORT = 8700

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=CHECKOUT / ".lockkeeper",
    show_default=".lockkeeper/",
    help="Folder of the stack: database, logs, secrets.",
)


@click.group()
def main() -> None:
    """The local stack of Lockkeeper."""


def refuse(reason: str, status: int = 1) -> NoReturn:
    """End with one clear line."""
    click.echo(f"dev: {reason}", err=True)
    sys.exit(status)


@main.command()
@data_option
@click.option("--port", default=FRONT_DOOR_PORT, show_default=True, help="Port of the console and front door.")
@click.option("--only", "only", default="", metavar="NAMES", help="Start these parts (and what they need), by comma.")
@click.option("--detach", is_flag=True, help="Return when the console serves; `down` stops the stack.")
def up(data: Path, port: int, only: str, *, detach: bool) -> None:
    """Start the whole local stack."""
    from deploy.local import stack

    folder = StackFolder(data)
    names = [name for name in only.replace(",", " ").split() if name]
    try:
        folder.make()
        if detach:
            status = stack.start_detached(folder, port, names)
            if status == 0:
                click.echo(f"dev: the stack goes on in the background (pid {folder.holder()}); ./dev down stops it")
            sys.exit(status)
        folder.lock()
        sys.exit(stack.run(folder, port, names))
    except StackRunningError as error:
        running = folder.read_stack() or {}
        refuse(f"{error}: {running.get('url', folder.path)}; `./dev down` stops it", 2)
    except (PortTakenError, stack.UnknownPartError, OSError) as error:
        refuse(str(error))


@main.command()
@data_option
def down(data: Path) -> None:
    """Stop the stack that runs in this folder."""
    from deploy.local import stack

    if not stack.stop_running(StackFolder(data)):
        refuse(f"no stack runs in {data}")
    click.echo("dev: stopped")


@main.command()
@data_option
@click.option("--port", default=FRONT_DOOR_PORT, show_default=True, help="Port of a stack that has to be started.")
@click.option(
    "--documents",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of PDFs (default: samples made by the generator).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON line only.")
def demo(data: Path, port: int, documents: Path | None, *, as_json: bool) -> None:
    """Parse sample PDFs, show the results, and fail unless each task reached the end that it should."""
    from deploy.local.demo_story import tell

    sys.exit(tell(StackFolder(data), port, documents, as_json=as_json))


@main.command("crash-demo")
@data_option
def crash_demo(data: Path) -> None:
    """Kill underwriting workers where it hurts, and prove that nothing was lost or done twice."""
    from deploy.local.crash_demo import main as exercise

    exercise(data)


@main.command(context_settings={"ignore_unknown_options": True})
@data_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(data: Path, arguments: tuple[str, ...]) -> None:
    """Open the stack's database as its owner; further arguments are psql's."""
    from deploy.local import postgres

    running = StackFolder(data).read_stack()
    if running is None:
        refuse("no stack runs; start one with `./dev up`")
    program = postgres.binary("psql")
    os.execv(program, [str(program), f"--dbname={running['database_url']}", *arguments])  # noqa: S606 - psql replaces us


@main.command()
@data_option
@click.argument("names", nargs=-1)
@click.option("--follow", "-f", is_flag=True, help="Go on as lines are written.")
@click.option("--lines", "-n", default=50, show_default=True, help="Last lines of each file.")
def logs(data: Path, names: tuple[str, ...], lines: int, *, follow: bool) -> None:
    """Show the last lines of the parts' log files."""
    folder = StackFolder(data).logs
    files = [folder / f"{name}.log" for name in names] or sorted(folder.glob("*.log"))
    missing = [file.stem for file in files if not file.exists()]
    if missing or not files:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.log"))) or "none yet"
        refuse(f"no log of {', '.join(missing) or 'any part'}; there are: {known}")
    options = ["-F"] if follow else []
    tail = shutil.which("tail") or refuse("this machine has no `tail`")
    sys.exit(subprocess.run([tail, *options, "-n", str(lines), *files], check=False).returncode)


if __name__ == "__main__":
    main()
