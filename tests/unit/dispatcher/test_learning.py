"""The circuit breaker and the averages, decided without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from services.dispatcher.policy.learning import (
    MEMORY,
    SAMPLES_PER_AGENT,
    SAMPLING_SECONDS,
    Average,
    Circuit,
    Outcome,
    Sampling,
    next_circuit,
)
from shared.contract.rows import LeasedAttempt

NOW = datetime(2030, 1, 1, tzinfo=UTC)
outcomes = st.lists(
    st.builds(Outcome, st.integers(1, 6).map(lambda n: UUID(int=n)), st.sampled_from([True, False, None]))
)


def failures(*tasks: int) -> list[Outcome]:
    return [Outcome(UUID(int=task), works=False) for task in tasks]


@settings(deadline=None)
@given(outcomes, st.integers(1, 5))
def test_it_opens_exactly_when_so_many_different_tasks_failed_in_a_row(found: list[Outcome], limit: int) -> None:
    circuit = next_circuit(Circuit(), found, NOW, limit, 60)
    since = max((n for n, each in enumerate(found, 1) if each.works), default=0)
    failed = {each.task_id for each in found[since:] if each.works is False}
    assert (circuit.open_until is not None) == (len(failed) >= limit)
    assert len(circuit.failed_tasks) == min(len(failed), limit)


def test_one_task_that_fails_often_opens_nothing_and_a_cancelled_one_says_nothing() -> None:
    assert next_circuit(Circuit(), failures(1, 1, 1), NOW, 2, 60).open_until is None
    found = [*failures(1), Outcome(UUID(int=9), works=None), *failures(2)]
    assert next_circuit(Circuit(), found, NOW, 2, 60).open_until == NOW + timedelta(seconds=60)


def test_the_task_that_is_tried_decides() -> None:
    circuit = next_circuit(Circuit(), failures(1, 2), NOW, 2, 60)
    assert next_circuit(circuit, failures(3), NOW + timedelta(seconds=30), 2, 60).open_until == circuit.open_until
    later = NOW + timedelta(seconds=60)
    assert next_circuit(circuit, failures(3), later, 2, 60).open_until == later + timedelta(seconds=60)
    assert next_circuit(circuit, [Outcome(UUID(int=3), works=True)], later, 2, 60) == Circuit()


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e6), max_size=9), max_size=30))
def test_an_average_lies_between_its_samples_and_follows_what_changed(rounds: list[list[float]]) -> None:
    average = Average()
    for values in rounds:
        average = average.with_samples(values)
    seen = [value for values in rounds for value in values]
    assert average.samples == len(seen)
    if seen:
        assert min(seen) - 1e-6 <= average.mean <= max(seen) + 1e-6
    for _ in range(10):
        average = average.with_samples([50.0] * MEMORY)
    assert abs(average.mean - 50.0) < 1e6 / 2**9


def test_samples_are_few_but_all_of_an_agent_with_a_breaker() -> None:
    def leased(agent: str, *, has_breaker: bool) -> LeasedAttempt:
        return LeasedAttempt(uuid4(), uuid4(), 1, agent, agent, 0.0, has_breaker=has_breaker, learn_estimates=True)

    sampling = Sampling()
    many = [leased("plain", has_breaker=False) for _ in range(50)]
    guarded = [leased("guarded", has_breaker=True) for _ in range(50)]
    assert len(sampling.choose([*many, *guarded], 0.0)) == SAMPLES_PER_AGENT + 50
    assert sampling.choose(many, 1.0) == []
    assert len(sampling.choose(many, SAMPLING_SECONDS)) == SAMPLES_PER_AGENT
