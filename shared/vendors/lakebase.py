"""Lakebase credentials: the platform's one-hour database passwords."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_workspace: Workspace | None = None


async def mint_password(instance: str) -> tuple[str, float]:
    """A fresh database password and its life in seconds.

    `instance` is a provisioned instance's name, or the path of an autoscaling endpoint
    (`projects/…/branches/…/endpoints/…`). The life is counted from the two instants in the
    answer's own clock, so that a skewed host does not shorten it.
    """
    global _workspace  # noqa: PLW0603 - one client for the process's life
    if _workspace is None:
        _workspace = Workspace(threads=1)
    return await _workspace.call(lambda client: _mint(client, instance))


def _mint(client: WorkspaceClient, instance: str) -> tuple[str, float]:
    now = dt.datetime.now(dt.UTC)
    if instance.startswith("projects/"):
        autoscaling = client.postgres.generate_database_credential(endpoint=instance)
        expires = autoscaling.expire_time.ToDatetime(tzinfo=dt.UTC) if autoscaling.expire_time else None
        token = autoscaling.token
    else:
        provisioned = client.database.generate_database_credential(
            instance_names=[instance], request_id=str(uuid.uuid4())
        )
        expires = dt.datetime.fromisoformat(provisioned.expiration_time) if provisioned.expiration_time else None
        token = provisioned.token
    life = (expires - now).total_seconds() if expires else 3600.0
    return str(token), max(1.0, life)
