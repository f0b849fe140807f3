"""A wheel entry point whose arguments say what becomes of it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    options = argparse.ArgumentParser()
    for name in ("mode", "wait_for", "touch", "task_id", "attempt_id"):
        options.add_argument(f"--{name}", default="")
    given = options.parse_args()
    print(f"greeting={os.environ.get('GREETING')} task={given.task_id} attempt={given.attempt_id} pid={os.getpid()}")
    os.environ["LEFT_BEHIND"] = "yes"
    if given.touch:
        Path(given.touch).write_text(f"{os.getpid()} {time.time()}")
    while given.wait_for and not Path(given.wait_for).exists():
        time.sleep(0.01)
    match given.mode:
        case "fail":
            raise ValueError("no such document")
        case "exit":
            sys.exit(3)
        case "exit_well":
            sys.exit(0)
        case "vanish":
            os._exit(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave_child":
            child = subprocess.Popen(["/bin/sleep", "60"])
            Path(given.touch).write_text(f"{child.pid}")
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(60)
        case _:
            return
