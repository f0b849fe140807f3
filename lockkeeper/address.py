"""Where the API and the database are: told by the environment, else by a local stack that runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from lockkeeper.failure import CommandError

DEFAULT_URL = "http://127.0.0.1:8700"


def api_url() -> str:
    """LOCKKEEPER_URL, else the local stack's address, else the local default."""
    return os.environ.get("LOCKKEEPER_URL") or str(_local_stack().get("url", DEFAULT_URL))


def database_url(given: str | None) -> str:
    """The given address, else LOCKKEEPER_DATABASE_URL, else the local stack's database as its owner."""
    url = given or os.environ.get("LOCKKEEPER_DATABASE_URL") or _local_stack().get("database_url")
    if not url:
        raise CommandError("no database: give --url, set LOCKKEEPER_DATABASE_URL, or start a local stack", 2)
    return str(url)


async def with_credential(url: str, instance: str | None = None) -> str:
    """The address with a fresh Lakebase password in it when an instance is named, here or by the environment."""
    instance = instance or os.environ.get("LOCKKEEPER_DATABASE_INSTANCE")
    if not instance:
        return url
    from shared.vendors.lakebase import mint_password

    password, _ = await mint_password(instance)
    parts = urlsplit(url)
    user = parts.username or quote(os.environ.get("PGUSER", ""), safe="")
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def _local_stack() -> dict[str, Any]:
    """stack.json of the stack in this folder or in the checkout of this program; empty without one."""
    checkout = Path(__file__).resolve().parents[1]
    for folder in (Path.cwd(), checkout):
        file = folder / ".lockkeeper" / "stack.json"
        if file.is_file():
            stack: dict[str, Any] = json.loads(file.read_text())
            return stack
    return {}
