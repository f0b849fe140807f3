"""Traces of a real MLflow tracking server, read by the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.folder import free_port
from shared.contract.errors import TransientError
from shared.vendors.mlflow_traces import TraceReader
from tests.integration.cost_attributor.conftest import Attributor, Ended
from tests.support.mlflow_server import MlflowServer

pytestmark = pytest.mark.timeout(400)

MakeAttributor = Callable[..., Attributor]
USAGE = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107, "cache_read_input_tokens": 60}


@pytest.fixture
def experiment(tracking_server: MlflowServer) -> tuple[str, str]:
    """Name and id of an experiment of its own."""
    name = f"experiment-{uuid4()}"
    return name, tracking_server.experiment(name)


async def test_m05_good_traces_are_stored_beside_malformed_late_and_missing_ones(
    tracking_server: MlflowServer, experiment: tuple[str, str], make_attributor: MakeAttributor, ended: Ended
) -> None:
    name, place = experiment
    good = [await ended.attempt() for _ in range(20)]
    text, malformed, running, silent, late, lost = [await ended.attempt() for _ in range(6)]
    joined = await ended.attempt()
    for attempt in good:
        tracking_server.trace(place, attempt, usage=USAGE, cost={"total_cost": 0.25})
    tracking_server.trace(place, text, usage={"input_tokens": "100", "output_tokens": "7"})
    tracking_server.trace(place, malformed, usage="{not json", cost="[]")
    tracking_server.trace(place, running, state="IN_PROGRESS", usage=USAGE)
    tracking_server.trace(place, silent)
    # M-09: a trace that never learned of its attempt is found by the id that the agent reported.
    trace_id = tracking_server.trace(place, None, usage=USAGE)
    await ended.owner.execute("UPDATE lockkeeper.task_attempts SET trace_id = $2 WHERE id = $1", joined, trace_id)
    tracking_server.trace(place, uuid4(), usage=USAGE)  # somebody else's
    it = make_attributor(tracking_uri=tracking_server.url, experiments=[name, "does-not-exist-yet"])
    await it.traces.run_once()
    for attempt in good:
        row = await ended.row(attempt)
        assert (row["input_tokens"], row["output_tokens"], row["cache_read_tokens"], row["cache_write_tokens"]) == (
            40,
            7,
            60,
            0,
        )
        assert (row["llm_cost"], row["llm_cost_source"], row["cost_status"]) == (Decimal("0.25"), "trace", "final")
    row = await ended.row(text)
    assert (row["input_tokens"], row["llm_cost"], row["cost_status"]) == (100, None, "partial")
    assert (await ended.row(joined))["input_tokens"] == 40
    for attempt in (malformed, running, silent, late, lost):
        assert ((await ended.row(attempt))["cost_status"], await ended.lines(attempt)) == ("pending", [])
    # One comes late, one never; what was running is taken as far as it got.
    tracking_server.trace(place, late, usage=USAGE)
    await ended.owner.execute(
        "UPDATE lockkeeper.task_attempts SET finished_at = finished_at - interval '20 minutes' WHERE cost_status = 'pending'"
    )
    await ended.look_again()
    await it.traces.run_once()
    found = {each: (await ended.row(each))["cost_status"] for each in (malformed, running, silent, late, lost)}
    assert found == {malformed: "unknown", running: "partial", silent: "unknown", late: "partial", lost: "unknown"}


async def test_m06_everything_beyond_a_page_is_counted_once(
    tracking_server: MlflowServer, experiment: tuple[str, str], make_attributor: MakeAttributor, ended: Ended
) -> None:
    """Three traces for each of 120 attempts: more attempts than one search takes, more traces than one page."""
    name, place = experiment
    attempts = [await ended.attempt() for _ in range(120)]
    post = asyncio.to_thread
    for attempt in attempts:
        await asyncio.gather(
            *(post(tracking_server.trace, place, attempt, usage=USAGE, cost={"total_cost": 0.1}) for _ in range(3))
        )
    it = make_attributor(tracking_uri=tracking_server.url, experiments=[name])
    await it.traces.run_once()
    rows = [await ended.row(attempt) for attempt in attempts]
    assert {(row["input_tokens"], row["llm_cost"]) for row in rows} == {(120, Decimal("0.3"))}
    assert await ended.owner.fetchval("SELECT count(*) FROM lockkeeper.cost_entries") == 360


async def test_m02_a_parent_that_repeats_its_children_is_not_counted_again(
    tracking_server: MlflowServer, experiment: tuple[str, str], make_attributor: MakeAttributor, ended: Ended
) -> None:
    name, place = experiment
    attempt = await ended.attempt()
    usage = [{"model": "rule-based-stand-in", "input_tokens": 30, "output_tokens": 12, "calls": 2}]
    await ended.owner.execute("UPDATE lockkeeper.task_attempts SET usage = $2 WHERE id = $1", attempt, usage)
    await asyncio.to_thread(_trace_with_repeating_parents, tracking_server.url, place, str(attempt))
    it = make_attributor(tracking_uri=tracking_server.url, experiments=[name])
    await it.traces.run_once()
    row = await ended.row(attempt)
    assert (row["input_tokens"], row["output_tokens"], row["cost_status"]) == (30, 12, "final")
    assert row["llm_cost"] == (30 * Decimal("0.15") + 12 * Decimal("0.6")) / 1_000_000


def _trace_with_repeating_parents(url: str, experiment: str, attempt: str) -> None:
    """The wrapper and the agent's span both carry the sum of the two model calls below them."""
    import mlflow
    from mlflow.tracing.trace_manager import InMemoryTraceManager

    mlflow.set_tracking_uri(url)
    whole = {"mlflow.chat.tokenUsage": {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}}
    part = {"mlflow.chat.tokenUsage": {"input_tokens": 15, "output_tokens": 6, "total_tokens": 21}}
    wrapper = mlflow.start_span_no_context("wrapper", experiment_id=experiment, attributes=whole)
    with InMemoryTraceManager.get_instance().get_trace(wrapper.trace_id) as trace:
        trace.info.client_request_id = attempt
    agent = mlflow.start_span_no_context("agent", parent_span=wrapper, attributes=whole)
    for number in range(2):
        call = mlflow.start_span_no_context(f"call-{number}", span_type="LLM", parent_span=agent, attributes=part)
        call.end()
    agent.end()
    wrapper.end()
    mlflow.flush_trace_async_logging()


async def test_a_server_that_is_away_postpones_the_round_and_gives_nothing_up(
    make_attributor: MakeAttributor, ended: Ended
) -> None:
    attempt = await ended.attempt(seconds_ago=100_000, trace_state=None)
    it = make_attributor(tracking_uri=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match="tracking server"):
        await it.traces.run_once()
    assert (await ended.row(attempt))["cost_status"] == "pending"


async def test_ids_that_are_no_ids_are_never_put_into_a_search(tracking_server: MlflowServer) -> None:
    reader = TraceReader(tracking_server.url, ["Default"])
    strange: list[Any] = ["x' OR trace.name LIKE '%", "ü", ""]
    assert await reader.find(strange, strange) == []
    reader.close()


async def test_our_list_prices_are_those_of_the_tracing_clients_catalogue(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lists made by different people: a slip in ours shows."""
    from mlflow.utils.providers import cost_per_token

    monkeypatch.setenv("MLFLOW_MODEL_CATALOG_URI", "")  # the one in the package, not the one of the day
    rows = await ended.owner.fetch("SELECT * FROM lockkeeper.model_prices WHERE note = 'list price'")
    assert len(rows) > 10
    for row in rows:
        provider = "anthropic" if row["model"].startswith("claude") else "openai"
        found = cost_per_token(row["model"], 3_000_000, 1_000_000, provider, cache_read_input_tokens=1_000_000)
        assert found is not None, row["model"]
        ours = (2 * row["input_price"] + row["cache_read_price"], row["output_price"])
        assert [round(each, 6) for each in found] == [round(float(each), 6) for each in ours], row["model"]
