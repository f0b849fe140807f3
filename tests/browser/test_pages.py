"""The stories that people live with the pages, in a real Chromium."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from playwright.async_api import BrowserContext, expect

from shared.testing.wait import until
from tests.support.pages import SECONDS, Pages, add_task, fail, is_live, pdf

pytestmark = pytest.mark.timeout(180)


async def test_the_page_follows_what_happens(pages: Pages, context: BrowserContext) -> None:
    page = await context.new_page()
    await page.goto(pages.url)
    await is_live(page)
    await expect(page.locator("#tasks-empty")).to_contain_text("Drop a PDF")
    hostile = '<img src=x onerror="document.title=1">.pdf'
    task_id = await add_task(pages, hostile, customer="Nordlicht GmbH")
    row = page.locator("#rows tr")
    await expect(row).to_have_count(1, timeout=2 * SECONDS)
    await expect(row.locator(".doc a")).to_have_text(hostile)
    await expect(row).to_contain_text("starts next")
    await expect(row).to_contain_text("pending")
    await expect(page.locator(".tone-enqueued b").first).to_have_text("1", timeout=3 * SECONDS)
    await fail(pages, task_id)
    await expect(row.locator(".chip")).to_have_text("Failed", timeout=2 * SECONDS)
    await expect(row).to_contain_text("The document needs a password.")
    await expect(page.locator(".tile.tone-failed b")).to_have_text("1", timeout=3 * SECONDS)
    await expect(page.locator("#agents")).to_contain_text("0 of 4 running")


async def test_files_are_uploaded_by_choice_and_refusals_named(pages: Pages, context: BrowserContext) -> None:
    page = await context.new_page()
    await page.goto(pages.url)
    await is_live(page)
    await expect(page.locator("#upload-agent")).to_have_value("reader")
    files: list[Any] = [
        {"name": "good one.pdf", "mimeType": "application/pdf", "buffer": pdf()},
        {"name": "empty.pdf", "mimeType": "application/pdf", "buffer": b""},
        {"name": "letter.pdf", "mimeType": "application/pdf", "buffer": b"Dear Sir"},
    ]
    await page.locator("#upload-files").set_input_files(files)
    await expect(page.locator("#uploads-total")).to_have_text("1 of 3 submitted, 2 refused", timeout=90 * SECONDS)
    listed = page.locator("#uploads-list")
    await expect(listed).to_contain_text("The file is empty.")
    await expect(listed).to_contain_text("The file is not a PDF.")
    await expect(page.locator("#rows .doc a")).to_have_text("good one.pdf", timeout=5 * SECONDS)
    await page.locator("#uploads-list a").click()
    await expect(page.locator("#task-head h1")).to_have_text("good one.pdf")


async def test_filters_are_shared_by_link(pages: Pages, context: BrowserContext) -> None:
    await add_task(pages, "one.pdf", customer="A")
    await fail(pages, await add_task(pages, "two.pdf", customer="B"))
    page = await context.new_page()
    await page.goto(pages.url)
    await expect(page.locator("#rows tr")).to_have_count(2, timeout=10 * SECONDS)
    await page.locator(".tile.tone-failed").click()
    await expect(page.locator("#rows tr")).to_have_count(1)
    await expect(page.locator("#rows .doc a")).to_have_text("two.pdf")
    assert page.url.endswith("?status=failed")
    other = await context.new_page()
    await other.goto(page.url)
    await expect(other.locator("#rows tr")).to_have_count(1)
    await expect(other.locator("#rows .doc a")).to_have_text("two.pdf")
    await expect(other.locator(".tile.tone-failed")).to_have_attribute("aria-pressed", "true")
    await other.locator("input[type=search]").fill("one")
    await expect(other.locator("#tasks-empty")).to_have_text("No task fits these filters.")
    await other.get_by_role("button", name="Clear filters").click()
    await expect(other.locator("#rows tr")).to_have_count(2)


async def test_a_task_is_explained_cancelled_and_retried(pages: Pages, context: BrowserContext) -> None:
    task_id = await add_task(pages, "offer.pdf")
    page = await context.new_page()
    await page.goto(f"{pages.url}/tasks/{task_id}")
    await expect(page.locator("#task-error")).to_contain_text("It waits: starts next")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#task-head .chip")).to_have_text("Cancelled")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.locator("#task-input")).to_contain_text("Redoes")
    assert str(task_id) not in page.url
    new_id = uuid.UUID(page.url.rpartition("/")[2])
    await is_live(page)
    await fail(pages, new_id)
    await expect(page.locator("#task-error")).to_contain_text("Remove the password", timeout=3 * SECONDS)
    await page.goto(f"{pages.url}/tasks/{uuid.uuid4()}")
    await expect(page.locator("#notice")).to_have_text("There is no such task.")


async def test_it_fits_a_telephone_and_the_keyboard(pages: Pages, context: BrowserContext) -> None:
    task_id = await add_task(pages, "n" * 300 + ".pdf", customer="c" * 200)
    page = await context.new_page()
    await page.set_viewport_size({"width": 380, "height": 800})
    async with httpx.AsyncClient(base_url=pages.url, trust_env=False) as http:
        (await http.post(f"/api/v1/tasks/{task_id}/cancel")).raise_for_status()
    for path in ("/", "/tasks", f"/tasks/{task_id}", "/costs", "/audit", "/api/v1/docs"):
        await page.goto(pages.url + path)
        if path in {"/", "/tasks", f"/tasks/{task_id}"}:
            await is_live(page)
        frames = page.locator(".table-frame")
        if await frames.count():
            await expect(frames.locator("tbody tr").first).to_be_visible(timeout=10 * SECONDS)
            assert await frames.first.evaluate("frame => frame.scrollWidth <= frame.clientWidth"), path
        assert await page.evaluate("document.documentElement.scrollWidth") <= 380, path
    await page.goto(pages.url)
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    focused = []
    for _ in range(20):
        await page.keyboard.press("Tab")
        focused.append(await page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"upload-agent", "upload-files"} <= set(focused)


async def test_s02_the_seventh_tab_works_too(pages: Pages, context: BrowserContext) -> None:
    """Six connections to a place, and every stream keeps one."""
    tabs = [await context.new_page() for _ in range(7)]
    for tab in tabs:
        await tab.goto(pages.url, timeout=20 * SECONDS)
    await add_task(pages, "everywhere.pdf")
    for tab in tabs:
        await expect(tab.locator("#rows")).to_contain_text("everywhere.pdf", timeout=15 * SECONDS)
    modes = await asyncio.gather(*(tab.locator("#freshness").get_attribute("data-mode") for tab in tabs))
    assert 1 <= modes.count("live") <= 4
    assert set(modes) <= {"live", "polling"}


async def test_the_bill_is_asked_for_on_a_click_and_arrives(pages: Pages, context: BrowserContext) -> None:
    task_id = await add_task(pages, "billed.pdf")
    await pages.owner.execute(
        "INSERT INTO lockkeeper.task_attempts (id, task_id, agent, attempt, status, leased_at, finished_at, llm_cost, "
        "cost_status) VALUES (gen_random_uuid(), $1, 'reader', 1, 'completed', now(), now(), 0.01, 'partial')",
        task_id,
    )
    page = await context.new_page()
    await page.goto(pages.url)
    await is_live(page)
    row = page.locator("#rows tr")
    await expect(row).to_contain_text("pending")
    await page.locator("#bill").click()
    await expect(page.locator("#bill")).to_be_disabled()
    owner = pages.owner
    await until(lambda: owner.fetchval("SELECT count(*) FROM lockkeeper.cost_requests"))
    await owner.execute("UPDATE lockkeeper.task_attempts SET compute_cost = 0.25, cost_status = 'final'")
    await owner.execute("SELECT pg_notify('lockkeeper_cost_changed', jsonb_build_array($1::text)::text)", str(task_id))
    await expect(row).to_contain_text("$0.25", timeout=3 * SECONDS)
    await owner.execute("UPDATE lockkeeper.cost_requests SET status = 'done', attempts_billed = 1, finished_at = now()")
    await expect(page.locator("#notice")).to_have_text("The billing tables priced 1 attempt.", timeout=10 * SECONDS)
    await expect(page.locator("#bill")).to_be_enabled()
