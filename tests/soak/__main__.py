"""Long proofs, each a command: `python -m tests.soak credentials|attack [--minutes 30]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description="Long proofs; each ends with one JSON line.")
    parser.add_argument("name", choices=["credentials", "attack"])
    parser.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    report = importlib.import_module(f"tests.soak.{given.name}").run(given.minutes)
    print(json.dumps(report, default=str))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
