"""Counts pages in a process of its own: a path a line in, a number a line out, nothing when it cannot be had.

A file may crash or hang the reader; then only this process ends. Started by its path, so it imports
nothing of ours.
"""

from __future__ import annotations

import contextlib
import resource
import sys

_MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answer until the other side closes its end."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pypdfium2

    for line in sys.stdin:
        pages = ""
        with contextlib.suppress(Exception), pypdfium2.PdfDocument(line.rstrip("\n")) as document:
            pages = str(len(document))
        sys.stdout.write(f"{pages}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
