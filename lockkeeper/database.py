"""`lockkeeper migrate` and `lockkeeper doctor`: the two commands that talk to the database themselves."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from lockkeeper import show
from lockkeeper.address import database_url, with_credential
from lockkeeper.failure import CommandError
from lockkeeper.options import json_option
from shared.contract.errors import LockkeeperError

url_option = click.option(
    "--url", metavar="URL", help="Database (default: LOCKKEEPER_DATABASE_URL or the local stack)."
)


@click.command()
@url_option
@json_option
def migrate(url: str | None, *, as_json: bool) -> None:
    """Bring the database to this version's schema and set every role's grants."""
    from shared.db.deployment import branch_of
    from shared.db.migrate import migrate as bring_up_to_date

    applied: list[str] = []

    def say(line: str) -> None:
        applied.append(line.removeprefix("applying "))
        if not as_json:
            click.echo(line)

    async def work() -> None:
        branch = branch_of(os.environ.get("LOCKKEEPER_DATABASE_INSTANCE"))
        await bring_up_to_date(await with_credential(database_url(url)), branch=branch, say=say)

    try:
        asyncio.run(work())
    except LockkeeperError as error:
        raise CommandError(error.message) from None
    if as_json:
        show.as_json({"applied": applied})
    else:
        click.echo(f"{len(applied)} applied; the schema is current")


@click.command()
@url_option
@json_option
def doctor(url: str | None, *, as_json: bool) -> None:
    """Check the database, the schema, the replicas and the invariants of the queue; fails when one is broken."""
    from lockkeeper.checks import Finding, examine

    async def look() -> list[Finding]:
        return await examine(await with_credential(database_url(url)))

    findings = asyncio.run(look())
    if as_json:
        show.as_json({"ok": all(finding.ok for finding in findings), "findings": [f.as_dict() for f in findings]})
    else:
        for finding in findings:
            mark = {"ok": "ok  ", "note": "note", "broken": "FAIL"}[finding.state]
            click.echo(f"{mark}  {finding.name}: {finding.detail}")
    if not all(finding.ok for finding in findings):
        sys.exit(1)
