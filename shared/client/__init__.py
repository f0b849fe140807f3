"""Enqueue tasks inside your own database transaction: the task exists exactly if your change does.

    from shared.client import enqueue

    async with connection.transaction():
        order = await connection.fetchval("INSERT INTO orders … RETURNING id")
        await enqueue(connection, agent="invoice-parser", input={"order": order}, idempotency_key=f"order-{order}")

A family is a parent without work of its own and its children; it ends by its rule when they have ended:

    parent = NewTask(agent="invoice-parser", gather="all_completed")
    await enqueue_family(connection, parent, [NewTask(agent="invoice-parser", input={"page": 1}), …])

The login needs SELECT on `lockkeeper.agents`, `lockkeeper.documents` and `lockkeeper.tasks`, and INSERT on
`lockkeeper.tasks`; who adds children also needs UPDATE on a column of it, because the parent is locked.
Nothing is sent before you commit; a rollback leaves nothing behind.
"""

from __future__ import annotations

from shared.client.enqueueing import Gather, NewTask, enqueue, enqueue_family, enqueue_many

__all__ = ["Gather", "NewTask", "enqueue", "enqueue_family", "enqueue_many"]
