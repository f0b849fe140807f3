"""Every order of the statements of two or three verbs leaves what some serial order leaves; broken ones do not.

See docs/adr/0013-explorer-over-real-sql.md. `-s` prints how many orders each scenario has. An older Postgres sees fewer
(tests/support/arena.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.arena import Arena
from tests.support.postgres import PostgresServer
from tests.support.scenarios import SCENARIOS
from tests.support.variants import EXPLORER_VARIANTS, Variant

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def arena(postgres: PostgresServer) -> Iterator[Arena]:
    with Arena(postgres, "interleavings") as found:
        yield found


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_is_as_good_as_a_serial_one(arena: Arena, name: str) -> None:
    judged = arena.run(arena.explore(SCENARIOS[name]))
    print(f"{judged.orders} orders: {name}")
    assert not judged.faults, f"{len(judged.faults)} faults in {judged.orders} orders, the first:\n{judged.faults[0]}"


@pytest.mark.parametrize("variant", EXPLORER_VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_statement_is_found(arena: Arena, variant: Variant) -> None:
    judged = arena.run(arena.explore(SCENARIOS[variant.scenario], variant.rewrite(), until_fault=True))
    assert judged.faults, f"not found in {judged.orders} orders"
    assert "LookupError" not in judged.faults[0], judged.faults[0]
    print(f"found in order {judged.orders}: {judged.faults[0]}")
