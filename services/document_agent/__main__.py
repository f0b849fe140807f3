"""Entry of the Lakeflow Job: `document-agent --task_id=… --attempt_id=…`."""

from __future__ import annotations

import sys

from services.document_agent import app
from shared.agent_kit import run_agent
from shared.agent_kit import warm_up as warm_up_kit


def main(argv: list[str] | None = None) -> int:
    """Carry one attempt and return 0 when its end is settled. May be called many times in one process."""
    return run_agent(app.read_document, argv)


def warm_up() -> None:
    """Do once what takes seconds: a warm process calls this before its first run."""
    app.warm_up()
    warm_up_kit()


if __name__ == "__main__":
    sys.exit(main())
