"""What breaks underneath the pages, told in a real Chromium: silence, cuts, restarts, floods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from shared.testing.wait import until
from tests.support.bad_proxy import BadProxy
from tests.support.pages import SECONDS, Pages, add_task, is_live, note, pdf

pytestmark = pytest.mark.timeout(180)

NO_STREAM = {"refused": 401, "away": 503, "nothing": 204, "elsewhere": 301, "over at once": 200}


async def test_s01_a_stream_that_dies_without_a_word_is_noticed_within_20_seconds(
    pages: Pages, context: BrowserContext
) -> None:
    """Bytes are dropped on every connection that is open; the page's own clock is put on."""
    async with BadProxy(pages.stack.ports["front_door"]) as proxy:
        page = await context.new_page()
        await page.clock.install()
        await page.goto(proxy.url)
        await is_live(page)
        await add_task(pages, "before.pdf")
        await expect(page.locator("#rows")).to_contain_text("before.pdf", timeout=5 * SECONDS)
        proxy.silence()
        await add_task(pages, "in-the-silence.pdf")
        await page.clock.fast_forward(21 * SECONDS)
        await expect(page.locator("#freshness")).not_to_have_attribute("data-mode", "live")

        async def is_back() -> bool:
            await page.clock.fast_forward(3 * SECONDS)
            return await page.locator("#freshness").get_attribute("data-mode") == "live"

        await until(is_back, seconds=60, every=0.3)
        await expect(page.locator("#rows")).to_contain_text("in-the-silence.pdf")
        await add_task(pages, "after.pdf")
        await expect(page.locator("#rows")).to_contain_text("after.pdf", timeout=5 * SECONDS)
        await expect(page.locator("#rows tr")).to_have_count(3)


async def test_s10_a_network_that_comes_and_goes_is_met_with_one_stream_that_goes_on(
    pages: Pages, context: BrowserContext
) -> None:
    async with BadProxy(pages.stack.ports["front_door"]) as proxy:
        page = await context.new_page()
        await page.goto(proxy.url)
        await is_live(page)
        await add_task(pages, "before.pdf")
        await expect(page.locator("#rows")).to_contain_text("before.pdf", timeout=5 * SECONDS)
        for _ in range(20):
            proxy.cut()
            await asyncio.sleep(0.1)
        await add_task(pages, "meanwhile.pdf")
        await expect(page.locator("#rows")).to_contain_text("meanwhile.pdf", timeout=20 * SECONDS)
        await is_live(page)
        first, *again = proxy.streams
        assert "last-event-id:" not in first.lower()
        assert again and all("last-event-id:" in each.lower() for each in again), "it began anew"
        assert len(again) <= 5, "twenty cuts within two seconds made it hammer the server"


@pytest.mark.parametrize("status", NO_STREAM.values(), ids=NO_STREAM)
async def test_s09_an_answer_that_is_no_stream_means_polling_and_another_try_later(
    pages: Pages, context: BrowserContext, status: int
) -> None:
    page = await context.new_page()
    asked: list[str] = []

    async def refuse(route: Any) -> None:
        asked.append(route.request.url)
        await route.fulfill(
            status=status, content_type="text/event-stream", headers={"Location": "/nowhere"} if status == 301 else {}
        )

    await page.route("**/events?*", refuse)
    await page.clock.install()
    await page.goto(pages.url)
    await is_live(page, "polling")
    await add_task(pages, "by-polling.pdf")
    await page.clock.fast_forward(10 * SECONDS)
    await expect(page.locator("#rows")).to_contain_text("by-polling.pdf")
    assert 1 <= len(asked) <= 8
    await page.unroute("**/events?*")
    await page.clock.fast_forward(50 * SECONDS)
    await is_live(page)


async def test_a_killed_notifier_leaves_a_page_that_polls_until_another_comes(
    pages: Pages, context: BrowserContext
) -> None:
    page = await context.new_page()
    await page.goto(pages.url)
    await is_live(page)
    pages.stack.kill("notifier")
    await is_live(page, "polling")
    await add_task(pages, "while-polling.pdf")
    await expect(page.locator("#rows")).to_contain_text("while-polling.pdf", timeout=15 * SECONDS)
    pages.stack.start("notifier")
    await is_live(page, seconds=60)
    await add_task(pages, "live-again.pdf")
    await expect(page.locator("#rows")).to_contain_text("live-again.pdf", timeout=5 * SECONDS)
    await expect(page.locator("#rows tr")).to_have_count(2)


async def open_upload(pages: Pages, context: BrowserContext) -> Page:
    page = await context.new_page()
    await page.goto(f"{pages.url}/upload")
    await expect(page.locator("#upload-agent")).to_have_value("reader")
    return page


def files(*names: str) -> list[Any]:
    return [
        {"name": name, "mimeType": "application/pdf", "buffer": pdf() + b"%" * (n + 1)} for n, name in enumerate(names)
    ]


async def test_p16_a_restart_in_the_middle_of_an_upload_loses_and_doubles_nothing(
    pages: Pages, context: BrowserContext
) -> None:
    page = await open_upload(pages, context)
    sent: list[str] = []

    async def restart_at_the_third(route: Any) -> None:
        sent.append(route.request.url)
        if len(sent) == 3:
            pages.stack.kill("console")
            pages.stack.start("console")
        await route.continue_()

    await page.route("**/api/v1/documents", restart_at_the_third)
    await page.locator("#upload-files").set_input_files(files(*(f"{n}.pdf" for n in range(6))))
    await expect(page.locator("#uploads-total")).to_have_text("6 of 6 submitted", timeout=100 * SECONDS)
    assert len(sent) > 6, "nothing had to be sent again"
    tasks = "SELECT count(*), count(DISTINCT document_id) AS documents FROM lockkeeper.tasks"
    assert dict(await pages.owner.fetchrow(tasks) or {}) == {"count": 6, "documents": 6}
    await page.locator("#uploads-batch").click()
    await expect(page.locator("#batch-says")).to_contain_text("uploaded 6, 0 done", timeout=10 * SECONDS)
    await expect(page.locator("#rows tr")).to_have_count(6)


async def test_an_interrupted_batch_goes_on_where_it_was(pages: Pages, context: BrowserContext) -> None:
    """The tab is closed while its second file is on its way."""
    page = await open_upload(pages, context)
    both = files("one.pdf", "two.pdf")
    await page.route(
        "**/api/v1/documents",
        lambda route: route.abort() if b"two.pdf" in (route.request.post_data_buffer or b"") else route.continue_(),
    )
    await page.locator("#upload-files").set_input_files(both)
    await expect(page.locator("#uploads-total")).to_have_text("1 of 2 submitted", timeout=60 * SECONDS)
    await page.close(run_before_unload=False)
    page = await open_upload(pages, context)
    await expect(page.locator("#resume")).to_contain_text("1 of 2 files are submitted")
    await page.locator("#upload-files").set_input_files(both)
    await expect(page.locator("#uploads-total")).to_have_text("2 of 2 submitted", timeout=60 * SECONDS)
    assert await pages.owner.fetchval("SELECT count(DISTINCT labels ->> 'batch') FROM lockkeeper.tasks") == 1
    assert await pages.owner.fetchval("SELECT count(*) FROM lockkeeper.tasks") == 2


async def flood(pages: Pages, ids: list[Any]) -> None:
    """Ten thousand changes in ten seconds, told as the services tell them: a note for every hundred."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    for tick in range(1, 51):
        await pages.owner.execute(
            "UPDATE lockkeeper.tasks SET pages_done = $2, pages_total = 50, version = version + 1, verb = 'progress', "
            "reason = NULL WHERE id = ANY ($1::uuid[])",
            ids, tick,
        )  # fmt: skip
        for start in range(0, len(ids), 100):
            await note(pages, *ids[start : start + 100])
        await asyncio.sleep(max(0.0, started + tick * 0.2 - loop.time()))


async def test_ten_thousand_events_in_ten_seconds_freeze_no_page_and_a_slow_line_gets_the_last_state(
    pages: Pages, context: BrowserContext
) -> None:
    ids = [row["id"] for row in await pages.owner.fetch(
        "INSERT INTO lockkeeper.tasks (agent, status, started_at, lease_expires_at) "
        "SELECT 'reader', 'processing', now(), now() + interval '1 hour' FROM generate_series(1, 200) RETURNING id"
    )]  # fmt: skip
    async with BadProxy(pages.stack.ports["front_door"]) as proxy:
        page, slow = await context.new_page(), await context.new_page()
        await page.goto(pages.url)
        await slow.goto(proxy.url)
        await is_live(page)
        await is_live(slow)
        await page.evaluate(
            "() => { window.longest = 0; let last = performance.now(); setInterval(() => { const now = performance.now();"
            " window.longest = Math.max(window.longest, now - last - 50); last = now; }, 50); }"
        )
        await page.bring_to_front()
        proxy.bytes_per_second = 50_000
        await flood(pages, ids)
        await expect(page.locator("#rows tr").first).to_contain_text("page 50 of 50", timeout=10 * SECONDS)
        longest = await page.evaluate("window.longest")
        print(f"longest pause of the page: {longest:.0f} ms")
        assert longest < 2000
        await is_live(page)
        proxy.bytes_per_second = None
        await slow.bring_to_front()
        await expect(slow.locator("#rows tr").first).to_contain_text("page 50 of 50", timeout=30 * SECONDS)
        await is_live(slow)
