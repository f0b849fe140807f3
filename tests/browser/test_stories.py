"""Longer stories of the pages: what breaks underneath them, acting on many, and who may."""

from __future__ import annotations

import io
import json
import uuid

import fpdf
import httpx
import pytest
from playwright.async_api import BrowserContext, expect

from shared.testing.wait import until
from tests.support.pages import SECONDS, Pages, add_task, fail

pytestmark = pytest.mark.timeout(240)


def written(words: str) -> bytes:
    document = fpdf.FPDF()
    document.add_page()
    document.set_font("helvetica", size=14)
    document.cell(text="Nothing here")
    document.add_page()
    document.set_y(120)
    document.cell(text=words)
    return bytes(document.output())


async def store(pages: Pages, name: str, content: bytes) -> str:
    async with httpx.AsyncClient(base_url=pages.url, timeout=60, trust_env=False) as http:
        answer = await http.post("/api/v1/documents", files={"files": (name, io.BytesIO(content), "application/pdf")})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["documents"][0]["id"])


async def test_many_are_acted_on_after_a_dry_run_and_taken_back(pages: Pages, context: BrowserContext) -> None:
    for n in range(3):
        await add_task(pages, f"{n}.pdf", priority=40 + n)
    await fail(pages, await add_task(pages, "ended.pdf"))
    page = await context.new_page()
    await page.goto(f"{pages.url}/tasks")
    await expect(page.locator("#rows tr")).to_have_count(4, timeout=10 * SECONDS)
    await page.locator("#pick-all").check()
    await expect(page.locator("#bulk-what")).to_have_text("4 chosen")
    await page.get_by_role("button", name="Priority…").click()
    await expect(page.locator("#confirm")).to_contain_text("3 tasks would change")
    await page.locator("#confirm .primary").click()
    await expect(page.locator("#notice")).to_contain_text("3 tasks given another priority.")
    owner = pages.owner
    waiting = "SELECT array_agg(priority ORDER BY priority) FROM lockkeeper.tasks WHERE status = 'enqueued'"
    assert await owner.fetchval(waiting) == [75, 75, 75]
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator("#notice")).to_have_text("It was undone.")
    assert await owner.fetchval(waiting) == [40, 41, 42]
    await page.get_by_role("button", name="Cancel…").click()
    await expect(page.locator("#confirm-title")).to_have_text("Cancel: all that fit the filters")
    await expect(page.locator("#confirm [role=status]")).to_contain_text("3 tasks would change")
    await page.get_by_role("button", name="Leave it").click()
    assert await owner.fetchval("SELECT count(*) FROM lockkeeper.tasks WHERE status = 'enqueued'") == 3
    await page.goto(f"{pages.url}/audit")
    await expect(page.locator("#audit-rows tr")).to_have_count(6)
    await expect(page.locator("#audit-rows")).to_contain_text("reprioritise")


async def test_a_field_leads_to_its_place_in_the_document(pages: Pages, context: BrowserContext) -> None:
    document = await store(pages, "offer.pdf", written("Total amount 1,234.50 EUR"))
    result = {
        "fields": {"totals": [{"value": "1,234.50 EUR", "confidence": 0.97, "page": 2, "evidence": "amount 1,234.50"}]}
    }
    task_id = await pages.owner.fetchval(
        "INSERT INTO lockkeeper.tasks (agent, document_id, status, finished_at, confidence, result) "
        "VALUES ('reader', $1, 'completed', now(), 0.97, $2) RETURNING id",
        uuid.UUID(document), result,
    )  # fmt: skip
    page = await context.new_page()
    await page.goto(f"{pages.url}/tasks/{task_id}")
    await expect(page.locator("#page-which")).to_have_text("1 of 2")
    await expect(page.locator("#page-image")).to_be_visible(timeout=30 * SECONDS)
    await page.get_by_role("button", name="1,234.50 EUR").click()
    await expect(page.locator("#page-which")).to_have_text("2 of 2")
    mark = page.locator("#page-marks .mark")
    await expect(mark).to_have_count(1, timeout=15 * SECONDS)
    place = await mark.bounding_box()
    frame = await page.locator("#page").bounding_box()
    assert place and frame and 0.35 < (place["y"] - frame["y"]) / frame["height"] < 0.5


async def test_an_agent_is_edited_with_its_effect_said_before(pages: Pages, context: BrowserContext) -> None:
    await add_task(pages, "waits.pdf")
    page = await context.new_page()
    await page.goto(f"{pages.url}/agents#reader")
    await expect(page.locator("#editor-title")).to_contain_text("reader")
    await page.locator("[name=max_concurrent_tasks]").fill("0")
    await expect(page.locator("#effect")).to_contain_text("Nothing new starts; 0 tasks that run go on.")
    await page.locator("[name=note]").fill("quarter end")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice")).to_contain_text("reader is changed")
    await expect(page.locator("#changes")).to_contain_text("max concurrent tasks: 4 → 0")
    await expect(page.locator("#changes")).to_contain_text("“quarter end”")
    await expect(page.locator("#changes")).to_contain_text("local")
    # Somebody else was quicker: their change is not overwritten.
    await pages.owner.execute("UPDATE lockkeeper.agents SET version = version + 1")
    await page.locator("[name=max_attempts]").fill("5")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice")).to_contain_text("Somebody else changed reader meanwhile.")


async def test_without_the_right_verbs_are_shown_with_the_reason(pages: Pages, context: BrowserContext) -> None:
    await add_task(pages, "waits.pdf")
    who = {
        "LOCKKEEPER_IDENTITY_MODE": "forwarded",
        "LOCKKEEPER_IDENTITY_TRUSTED_PROXIES": json.dumps(["127.0.0.0/8"]),
    }
    for service in ("console", "notifier"):
        pages.stack.end(service)
        pages.stack.start(service, **who)
    await context.set_extra_http_headers({"X-Forwarded-User": "vera"})
    page = await context.new_page()

    async def answers() -> bool:
        answer = await page.request.get(f"{pages.url}/api/v1/me", headers={"X-Forwarded-User": "vera"})
        return answer.status == 200

    await until(answers, seconds=60, every=0.3)
    await page.goto(f"{pages.url}/tasks")
    await expect(page.locator("#rows tr")).to_have_count(1, timeout=15 * SECONDS)
    cancel = page.get_by_role("button", name="Cancel…")
    await expect(cancel).to_be_disabled()
    assert await cancel.get_attribute("title") == "vera may not do this: it needs the right to operate."
    await page.goto(f"{pages.url}/agents#reader")
    await expect(page.get_by_role("button", name="pause reader")).to_be_disabled()
    await expect(page.locator("[name=max_attempts]")).to_be_disabled()
    refused = await page.request.post(f"{pages.url}/api/v1/agents/reader/pause", headers={"X-Forwarded-User": "vera"})
    assert refused.status == 403
