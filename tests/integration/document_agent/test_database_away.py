"""An outage of the database is no failure of the attempt: the agent asks again, as long as a result would be offered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from services.document_agent.__main__ import main
from shared.contract.callback import RESULT_INLINE_BYTES
from shared.testing import pdfs
from shared.testing.proxy import TcpProxy
from tests.support.agents import AgentWorld

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def line(world: AgentWorld) -> AsyncIterator[TcpProxy]:
    """The agent's way to its database."""
    address = urlsplit(world.database.url("document_agent"))
    line = TcpProxy(address.hostname or "", address.port or 0)
    await line.open()
    login = address.netloc.rpartition("@")[0]
    url = address._replace(netloc=f"{login}@127.0.0.1:{line.port}").geturl()
    world.configure(LOCKKEEPER_DATABASE_URL=url, LOCKKEEPER_CALLBACK_DEADLINE_SECONDS=60)
    yield line
    await line.close()


async def test_k01_the_input_is_asked_for_again(world: AgentWorld, line: TcpProxy) -> None:
    attempt_id = await world.attempt(pdfs.text_pdf(["Total due: USD 25.00"]))
    line.refuse(4)
    end = await world.run(main, attempt_id)
    assert (end.verb, line.refusals) == ("result", 0)


async def test_k01_a_large_result_is_stored_again(world: AgentWorld, line: TcpProxy) -> None:
    attempt_id = await world.attempt(pdfs.many_pages(120))
    line.refuse(4, after=1)
    end = await world.run(main, attempt_id)
    assert (end.verb, line.refusals) == ("result", 0)
    assert len(str((await world.stored(attempt_id))["result"])) > RESULT_INLINE_BYTES


async def test_k01_a_small_result_travels_without_its_row(world: AgentWorld, line: TcpProxy) -> None:
    attempt_id = await world.attempt(pdfs.text_pdf(["Total due: USD 25.00"]))
    line.refuse(1_000, after=1)
    end = await world.run(main, attempt_id)
    assert (end.verb, end.body["result_stored"]) == ("result", False)
    assert end.body["result"]["fields"]["totals"]
