"""`./dev bench [NAME…]`: runs the named benches, or all, each in a process of its own; one JSON line each.

A bench that fails says why on standard error, the others go on, and the exit status is 1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
BENCHES: dict[str, tuple[str, ...]] = {
    "main_job": ("bench.main_job",),
    "callbacks": ("bench.callbacks",),
    "attribution": ("bench.attribution",),
    "underwriting": ("bench.underwriting",),
    "overview_10m": ("bench.overview",),
    "sse": ("bench.sse",),
    "scale": ("bench.scale",),
    **{
        name: ("bench.drain", name)
        for name in (
            "drain_1",
            "drain_2",
            "dirty",
            "backlog",
            "limited_1",
            "limited_2",
            "limited_8",
            "tokens_2",
            "hot",
            "snapshot",
        )
    },
    **{name: ("bench.enqueueing", name) for name in ("enqueue_bulk", "enqueue_single")},
    **{name: ("bench.resting", name) for name in ("latency", "idle")},
}
"""The module that measures each name, and what it is called with."""


def main(names: list[str]) -> int:
    """Run the benches; the exit status."""
    if unknown := [name for name in names if name not in BENCHES]:
        print(f"dev bench: no such bench: {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or list(BENCHES):
        status = subprocess.run([sys.executable, "-m", *BENCHES[name]], cwd=CHECKOUT, check=False).returncode
        if status:
            print(f"dev bench: {name} ended with status {status}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
