from __future__ import annotations

import asyncio
import csv
import io
import uuid
from typing import Any

from services.console.messages.agents import Agent, AgentHistory, AgentList, Customer, CustomerList
from services.console.messages.answers import (
    AuditPage,
    State,
    Summary,
)
from services.console.messages.costs import CostPage, CostRequest
from tests.integration.console.conftest import API, Console


async def test_an_agent_is_made_changed_and_its_history_kept(console: Console) -> None:
    made = await console.make_agent(max_concurrent_tasks=5, max_tpm=60_000)
    Agent.model_validate(made)
    assert (made["version"], made["state"]["slots"], made["state"]["tokens_left"]) == (1, 5, 60_000)
    changed = await console.call("PUT", "/agents/reader", json={"max_concurrent_tasks": 2, "version": 1})
    assert (changed["max_concurrent_tasks"], changed["max_tpm"], changed["version"]) == (2, 60_000, 2)
    stale = await console.call("PUT", "/agents/reader", 409, json={"max_concurrent_tasks": 9, "version": 1})
    assert stale["state"] == {"version": 2}
    free = await console.call("PUT", "/agents/reader", json={"max_concurrent_tasks": None})
    assert (free["max_concurrent_tasks"], free["state"]["slots"]) == (None, None)
    same = await console.call("PUT", "/agents/reader", json={"max_tpm": 60_000})
    assert same["version"] == 3
    history = await console.get("/agents/reader/changes")
    AgentHistory.model_validate(history)
    assert [change["version"] for change in history["changes"]] == [3, 2, 1]
    AgentList.model_validate(await console.get("/agents"))
    AuditPage.model_validate(audit := await console.get("/audit", params={"target": "agent/reader"}))
    assert [entry["action"] for entry in audit["entries"]] == ["set_agent", "set_agent", "create_agent"]
    assert audit["entries"][1]["before"] == {"max_concurrent_tasks": 5}


async def test_of_ten_changes_to_one_version_one_is_made(console: Console) -> None:
    await console.make_agent(max_concurrent_tasks=1)
    answers = await asyncio.gather(
        *(
            console.http.put(f"{API}/agents/reader", json={"max_concurrent_tasks": n, "version": 1})
            for n in range(10, 20)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 9
    made = await asyncio.gather(*(console.http.put(f"{API}/agents/new", json={"target": "x"}) for _ in range(10)))
    assert {answer.status_code for answer in made} <= {200, 201, 409}
    assert [answer.status_code for answer in made].count(201) == 1


async def test_pause_and_resume_say_so_once(console: Console) -> None:
    await console.make_agent()
    assert (await console.post("/agents/reader/pause"))["paused"]
    assert (await console.post("/agents/reader/pause"))["version"] == 2
    resumed = await console.post("/agents/reader/resume")
    assert (resumed["paused"], resumed["version"]) == (False, 3)
    await console.post("/agents/nobody/pause", 404)
    await console.get("/agents/nobody", 404)
    assert (await console.call("PUT", "/agents/nobody", 422, json={}))["detail"].startswith("target")
    for wrong in ({"max_tpm": -1}, {"max_concurrent_tasks": 1.5}, {"lease_seconds": 1}, {"colour": 1}):
        await console.call("PUT", "/agents/reader", 422, json=wrong)


async def spend(console: Console, agent: str, status: str, customer: str | None, *attempts: dict[str, Any]) -> str:
    owner = console.database.owner
    task_id = await owner.fetchval(
        "INSERT INTO lockkeeper.tasks (agent, status, customer, finished_at) VALUES ($1, $2, $3, now()) RETURNING id",
        agent, status, customer,
    )  # fmt: skip
    for number, attempt in enumerate(attempts, 1):
        await owner.execute(
            "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, pages, "
            "input_tokens, output_tokens, llm_cost, compute_cost, cost_status) VALUES "
            "($1, $2, $3, $4, $5, now(), now(), $6, 100, 10, $7::text::numeric, $8::text::numeric, $9)",
            uuid.uuid4(), task_id, agent, number, attempt["status"], attempt.get("pages"), attempt.get("llm"),
            attempt.get("compute"), "final" if attempt.get("compute") else "partial" if attempt.get("llm") else "pending",
        )  # fmt: skip
    return str(task_id)


async def test_costs_by_group_leave_pending_out_and_never_show_it_as_nothing(console: Console) -> None:
    """B-02."""
    lost = {"status": "lost", "llm": "0.10", "compute": "0.05"}
    good = {"status": "completed", "llm": "0.20", "compute": "0.05", "pages": 5}
    await spend(console, "x", "completed", "A", lost, good)
    await spend(console, "x", "completed", "A", {"status": "completed", "llm": "0.30"})
    pending = await spend(console, "x", "failed", None, {"status": "failed"})
    await spend(console, "y", "cancelled", "=cmd|' /C calc'!A0")
    answer = await console.get("/costs", params={"group_by": "agent"})
    CostPage.model_validate(answer)
    x, y = answer["costs"]
    assert (x["key"], x["tasks"], x["attempts"], x["pending_tasks"], x["cost_status"]) == ("x", 3, 4, 2, "pending")
    assert (x["llm_cost"], x["compute_cost"], x["total_cost"], x["retry_cost"]) == ("0.60", "0.10", "0.70", "0.15")
    assert (float(x["median_cost"]), float(x["cost_per_page"])) == (0.4, 0.08)
    assert (y["llm_cost"], y["total_cost"], y["cost_status"]) == ("0", "0", "final")
    failed = await console.get("/costs", params={"group_by": "status", "status": "failed"})
    assert [(row["key"], row["llm_cost"], row["total_cost"]) for row in failed["costs"]] == [
        ("failed", "pending", "pending")
    ]
    tasks = await console.get("/costs", params={"group_by": "task"})
    CostPage.model_validate(tasks)
    by_key = {row["key"]: row for row in tasks["costs"]}
    assert by_key[pending]["llm_cost"] == "pending"
    text = await console.http.get(f"{API}/costs", params={"group_by": "customer", "format": "csv"})
    assert text.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(text.text)))
    assert {line["customer"] for line in lines} == {"A", "", "'=cmd|' /C calc'!A0"}
    summary = await console.get("/summary")
    Summary.model_validate(summary)
    assert (summary["llm_cost"], summary["compute_cost"], summary["compute_cost_pending"]) == ("0.60", "0.10", 2)


async def test_a_long_csv_streams_every_task_once(console: Console) -> None:
    await console.database.owner.execute(
        "INSERT INTO lockkeeper.tasks (agent, created_at) SELECT 'x', now() - (n / 7) * interval '1 second' "
        "FROM generate_series(1, 1203) n"
    )
    text = (await console.http.get(f"{API}/costs", params={"group_by": "task", "format": "csv"})).text
    keys = [line["task"] for line in csv.DictReader(io.StringIO(text))]
    assert len(keys) == len(set(keys)) == 1203


async def test_an_open_refresh_of_the_same_range_is_reused(console: Console) -> None:
    answers = await asyncio.gather(*(console.http.post(f"{API}/costs/refresh") for _ in range(10)))
    assert {answer.status_code for answer in answers} == {202}
    (request_id,) = {answer.json()["request_id"] for answer in answers}
    request = await console.get(f"/costs/requests/{request_id}")
    CostRequest.model_validate(request)
    assert (request["status"], request["requested_by"]) == ("pending", "local")
    other = {"from": "2026-01-01T00:00:00+01:00", "to": "2026-02-01T00:00:00+01:00", "status": "failed"}
    assert (await console.post("/costs/refresh", 202, json=other))["request_id"] != request_id
    await console.post("/costs/refresh", 422, json={"from": other["to"], "to": other["from"]})
    await console.post("/costs/refresh", 422, json={"from": "2026-01-01"})
    await console.get(f"/costs/requests/{uuid.uuid4()}", 404)


async def test_the_state_names_who_lives_and_how_it_hears(console: Console) -> None:
    await console.make_agent()
    await console.database.owner.execute(
        "INSERT INTO lockkeeper.replicas (id, service, heartbeat_at, info, stopped_at) VALUES "
        "('a', 'dispatcher', now(), '{\"listener\": \"live\"}', NULL), "
        "('b', 'dispatcher', now(), '{\"listener\": \"polling\"}', NULL), "
        "('c', 'dispatcher', now() - interval '1 minute', '{}', NULL), ('d', 'sweeper', now(), '{}', now())"
    )
    state = await console.get("/state")
    State.model_validate(state)
    assert state["services"] == [
        {"service": "dispatcher", "alive": 2, "listener": "polling"},
        {"service": "sweeper", "alive": 0, "listener": None},
    ]
    assert state["agents"][0]["agent"] == "reader"


async def test_an_agents_options_are_set_kept_and_told(console: Console) -> None:
    options: dict[str, Any] = {
        "backfill": True, "backfill_limit": 3, "fair_share": True, "customer_weights": {"big": 2.5},
        "daily_budget": "12.50", "monthly_budget": 100, "expected_cost": "0.2", "circuit_failures": 5,
        "circuit_seconds": 30, "learn_estimates": False, "tasks_per_run": 8,
    }  # fmt: skip
    made = await console.make_agent(**options)
    Agent.model_validate(made)
    wanted = {**options, "monthly_budget": "100", "customer_weights": {"big": 2.5}}
    assert {name: made[name] for name in options} == wanted
    assert made["circuit"] == {"state": "closed", "open_until": None, "failed_in_a_row": 0}
    assert (made["budget"]["cost_left"], made["budget"]["spent_today"], made["estimates"]) == ("12.50", "0", None)
    free = await console.call("PUT", "/agents/reader", json={"daily_budget": None, "circuit_failures": None})
    assert (free["daily_budget"], free["circuit_failures"], free["version"]) == (None, None, 2)
    history = await console.get("/agents/reader/changes")
    assert history["changes"][1]["settings"]["daily_budget"] == 12.5
    for wrong, where in (
        ({"customer_weights": {"big": 0}}, "customer_weights"), ({"daily_budget": -1}, "daily_budget"),
        ({"daily_budget": "ten"}, "daily_budget"), ({"circuit_failures": 0}, "circuit_failures"),
        ({"backfill_limit": 0}, "backfill_limit"), ({"tasks_per_run": 101}, "tasks_per_run"),
    ):  # fmt: skip
        refused = await console.call("PUT", "/agents/reader", 422, json=wrong)
        assert refused["detail"].startswith(where), refused


async def test_a_customers_budgets_are_set_and_concern_every_agent(console: Console) -> None:
    await console.make_agent()
    made = await console.call("PUT", "/customers/Acme%2FNorth", json={"daily_budget": "2.5"})
    Customer.model_validate(made)
    assert (made["name"], made["daily_budget"], made["monthly_budget"]) == ("Acme/North", "2.5", None)
    assert made["budget"]["cost_left"] == "2.5"
    by_policy = "SELECT by_policy FROM lockkeeper.agents"
    assert await console.database.owner.fetchval(by_policy)
    stale = await console.call("PUT", "/customers/Acme%2FNorth", 409, json={"daily_budget": 1, "version": 0})
    assert stale["state"] == {"version": 1}
    none = await console.call("PUT", "/customers/Acme%2FNorth", json={"daily_budget": None, "version": 1})
    assert (none["daily_budget"], none["version"], none["budget"]) == (None, 2, None)
    assert not await console.database.owner.fetchval(by_policy)
    CustomerList.model_validate(await console.get("/customers"))
    audit = await console.get("/audit", params={"target": "customer/Acme/North"})
    assert [entry["action"] for entry in audit["entries"]] == ["set_customer", "set_customer"]
    await console.call("PUT", "/customers/x", 422, json={"weekly_budget": 1})
