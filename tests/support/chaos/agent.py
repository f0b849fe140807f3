"""An agent that does what its task's input says, attempt by attempt, on the real kit."""

from __future__ import annotations

import asyncio
import os

from shared.agent_kit import AgentContext, AgentResult, run_agent
from shared.contract.errors import RejectedError, TransientError

WORK = ("work", 0.1)


async def play(context: AgentContext) -> AgentResult:
    """The handler: `plays` has one entry per attempt, a word and its seconds."""
    plays = context.input["plays"]
    number = context.task.attempt - 1
    word, seconds = plays[number] if number < len(plays) else WORK
    context.heartbeat(0, 1, word)
    await asyncio.sleep(seconds * 10 if word == "linger" else seconds)
    match word:
        case "fail":
            raise TransientError("the model is busy", reason="model_throttled", retry_after_seconds=0.5)
        case "refuse":
            raise RejectedError("there is nothing to read", reason="no_text")
        case "vanish":
            os._exit(0)
        case _:
            return AgentResult({"number": context.input["number"]}, confidence=0.9, pages=1)


def main(argv: list[str] | None = None) -> int:
    """The entry point of the job's wheel task."""
    return run_agent(play, argv)
