"""The plain Temporal sample that the underwriter is held against: one workflow, one activity, no database.

`python -m bench.underwriting_plain ADDRESS QUEUE` is one worker of it; READY, then work until it is ended.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


@activity.defn
async def greet(name: str) -> str:
    """The sample's activity."""
    return f"Hello, {name}!"


@workflow.defn
class PlainWorkflow:
    """The sample's workflow."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Greet."""
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=30))


async def main(address: str, queue: str) -> None:
    """Work until ended."""
    client = await Client.connect(address)
    async with Worker(client, task_queue=queue, workflows=[PlainWorkflow], activities=[greet], build_id="plain"):
        print("READY", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
