"""`lockkeeper` and `python -m lockkeeper`."""

from __future__ import annotations

import sys

from lockkeeper.cli import lockkeeper
from lockkeeper.failure import CommandError


def main() -> None:
    """Run the command; every failure is one line on stderr and a non-zero status."""
    try:
        lockkeeper.main(prog_name="lockkeeper", standalone_mode=True)
    except CommandError as error:
        print(f"lockkeeper: {error}", file=sys.stderr)
        sys.exit(error.status)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nothing is wrong
        sys.exit(1)


if __name__ == "__main__":
    main()
