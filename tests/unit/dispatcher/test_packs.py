"""Which attempts share a run."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from services.dispatcher.policy.submitting import in_packs
from shared.contract.rows import LeasedAttempt

MOST = {"alone": 1, "pairs": 2, "fives": 5}
attempts = st.lists(st.tuples(st.sampled_from(list(MOST)), st.none() | st.integers(1, 3)), max_size=30).map(
    lambda rows: [
        LeasedAttempt(
            UUID(int=n), UUID(int=n), 1, agent, agent, 0.0, MOST[agent], pack and UUID(int=1000 * pack + MOST[agent])
        )
        for n, (agent, pack) in enumerate(rows, 1)
    ]
)


@settings(deadline=None)
@given(attempts)
def test_a_pack_is_of_one_agent_no_larger_than_allowed_and_old_packs_stay_whole(leased: list[LeasedAttempt]) -> None:
    packs = in_packs(leased)
    assert sorted(each.attempt_id for pack in packs for each in pack) == [each.attempt_id for each in leased]
    olds = [pack[0].pack_id for pack in packs if pack[0].pack_id]
    assert len(olds) == len(set(olds))
    for pack in packs:
        assert len({(each.agent, each.pack_id) for each in pack}) == 1
        assert pack[0].pack_id or len(pack) <= MOST[pack[0].agent]
