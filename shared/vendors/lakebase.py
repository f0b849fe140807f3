"""Lakebase credentials: the platform's one-hour database passwords."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from shared.contract.errors import TransientError
from shared.vendors.workspace import Workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_workspace: Workspace | None = None


def _shared_workspace() -> Workspace:
    global _workspace  # noqa: PLW0603 - one client for the process's life
    if _workspace is None:
        _workspace = Workspace(threads=1)
    return _workspace


async def create_branch(endpoint: str, name: str, days: int) -> tuple[str, str]:
    """Copy the branch of this endpoint; the copy's endpoint path and host. It ends by itself after so many days."""
    project, source = endpoint.partition("/branches/")[0], endpoint.partition("/endpoints/")[0]

    def work(client: WorkspaceClient) -> tuple[str, str]:
        from databricks.sdk.service import postgres
        from google.protobuf.duration_pb2 import Duration

        spec = postgres.BranchSpec(source_branch=source, ttl=Duration(seconds=days * 86_400))
        client.postgres.create_branch(project, postgres.Branch(spec=spec), name).wait()
        path = f"{project}/branches/{name}"
        kind = postgres.EndpointType.ENDPOINT_TYPE_READ_WRITE
        wanted = postgres.Endpoint(spec=postgres.EndpointSpec(endpoint_type=kind))
        made = client.postgres.create_endpoint(path, wanted, "primary").wait()
        host = made.status.hosts.host if made.status and made.status.hosts else None
        if not made.name or not host:
            raise TransientError("the branch has no address yet; ask again", reason="no_address")
        return made.name, host

    return await _shared_workspace().call(work)


async def delete_branch(endpoint: str, name: str) -> None:
    """Delete a branch of this endpoint's project."""
    project = endpoint.partition("/branches/")[0]
    await _shared_workspace().call(lambda client: client.postgres.delete_branch(f"{project}/branches/{name}").wait())


async def mint_password(instance: str) -> tuple[str, float]:
    """A fresh database password and its life in seconds.

    `instance` is a provisioned instance's name, or the path of an autoscaling endpoint
    (`projects/…/branches/…/endpoints/…`). The life is counted from the two instants in the
    answer's own clock, so that a skewed host does not shorten it.
    """
    return await _shared_workspace().call(lambda client: _mint(client, instance))


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
