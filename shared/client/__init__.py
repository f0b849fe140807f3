"""Enqueue tasks inside your own database transaction: the task exists exactly if your change does.

    from shared.client import enqueue

    async with connection.transaction():
        order = await connection.fetchval("INSERT INTO orders … RETURNING id")
        await enqueue(connection, agent="invoice-parser", input={"order": order}, idempotency_key=f"order-{order}")

The login needs SELECT on `lockkeeper.agents`, `lockkeeper.documents` and `lockkeeper.tasks`, and INSERT on
`lockkeeper.tasks`. Nothing is sent before you commit; a rollback leaves nothing behind.
"""

from __future__ import annotations

from shared.client.enqueueing import NewTask, enqueue, enqueue_many

__all__ = ["NewTask", "enqueue", "enqueue_many"]
