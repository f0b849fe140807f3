"""Several attempts in one run, one after another, so that the start of a run is paid once.

Each is carried as if it were alone: its own lease, trace, result, callback and failure. Before an attempt's turn it
was not begun, and whoever finds the run dead gives it back unspent; that its turn has come is told, and heard, first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.storage import AttemptStorage
from shared.contract.errors import LockkeeperError

log = structlog.get_logger()


def carry_pack(settings: AgentSettings, pack_id: UUID, carry: Callable[[UUID], bool]) -> LockkeeperError | None:
    """Carry what is wanted of the pack with `carry`, which says whether to go on; the first error, if any.

    What is wanted is asked anew before each turn: an attempt that was cancelled meanwhile has none, and one that was
    put back and leased again has its turn after all. An attempt that cannot be settled keeps nobody else from theirs.
    """
    storage = AttemptStorage(settings)
    done: set[UUID] = set()
    first_error: LockkeeperError | None = None
    while True:
        waiting = [each for each in asyncio.run(storage.read_pack(pack_id)) if each not in done]
        if not waiting:
            return first_error
        done.add(waiting[0])
        try:
            if not carry(waiting[0]):
                return first_error
        except LockkeeperError as error:
            log.warning("attempt_not_settled", attempt_id=str(waiting[0]), error=error.message)
            first_error = first_error or error
