"""What every page is held to: its weight, its rest while it fills, and what axe finds."""

from __future__ import annotations

import asyncio

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.support.pages import SECONDS, Pages, add_task, fail, is_live

pytestmark = pytest.mark.timeout(180)

READY = {
    "/": "#rows tr:nth-child(2)",
    "/tasks": "#rows tr:nth-child(2)",
    "/tasks/{failed}": "#task-error .trouble",
    "/batches/b1": "#tasks-empty:not([hidden])",
    "/upload": "#upload-agent option[value=reader]",
    "/agents#reader": "#editor:not([hidden])",
    "/costs": "#costs-rows tr",
    "/audit": "#audit-empty:not([hidden])",
    "/api/v1/docs": "details",
}
"""What each page shows once it has what it asked for."""
LIVE = ("/", "/tasks", "/batches")
MOST_BYTES = 150_000
MOST_SHIFT = 0.1
_WATCH = (
    "window.shifted = 0; new PerformanceObserver((list) => { for (const each of list.getEntries()) "
    "window.shifted += each.value; }).observe({ type: 'layout-shift', buffered: true });"
)
_FACTS = """() => [
  [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')].reduce((sum, each) => sum + each.transferSize, 0),
  performance.getEntriesByName('first-contentful-paint')[0]?.startTime, window.shifted]"""


async def stage(pages: Pages) -> dict[str, str]:
    """A failed and a waiting task; every page's path, with what it shows once it is there."""
    failed = await add_task(pages, "failed.pdf", customer="Nordlicht GmbH")
    await add_task(pages, "waits.pdf")
    await fail(pages, failed)
    return {path.format(failed=failed): ready for path, ready in READY.items()}


async def is_there(page: Page, address: str, path: str, ready: str) -> None:
    await page.goto(address + path)
    await expect(page.locator(ready).first).to_be_attached(timeout=20 * SECONDS)
    if path == "/" or path.startswith(LIVE[1:]):
        await is_live(page)
    if path == "/":
        await expect(page.locator("#charts svg").first).to_be_attached(timeout=20 * SECONDS)


async def test_pages_are_light_and_keep_still_while_they_fill(pages: Pages, context: BrowserContext) -> None:
    """The first paint is reported; it is the machine's as much as the page's."""
    paths = await stage(pages)
    assert context.browser is not None
    for path, ready in paths.items():
        reader = await context.browser.new_context(viewport={"width": 1280, "height": 900})
        await reader.add_init_script(_WATCH)
        page = await reader.new_page()
        await is_there(page, pages.url, path, ready)
        weight, paint, shift = await page.evaluate(_FACTS)
        await reader.close()
        print(f"{path}: {weight / 1000:.0f} kB, first paint {paint:.0f} ms, layout shift {shift:.3f}")
        assert weight < MOST_BYTES, path
        assert shift < MOST_SHIFT, path


async def test_a_document_that_is_shown_late_or_not_at_all_moves_nothing(pages: Pages, context: BrowserContext) -> None:
    paths = await stage(pages)
    path, ready = next((path, ready) for path, ready in paths.items() if path.startswith("/tasks/"))
    page = await context.new_page()
    await page.add_init_script(_WATCH)
    read = asyncio.Event()

    async def when_read(route: Route) -> None:
        await read.wait()
        await route.continue_()

    await page.route("**/documents/*/pages/*", when_read)
    await is_there(page, pages.url, path, ready)
    await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    read.set()
    await expect(page.locator("#page-says")).to_be_visible(timeout=20 * SECONDS)
    await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert (await page.evaluate(_FACTS))[2] < 0.01


async def serious(page: Page) -> list[str]:
    """What axe finds serious or worse."""
    found = await Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]}"
        for each in found.response["violations"]
        if each["impact"] in {"serious", "critical"}
    ]


async def test_axe_finds_nothing_serious_in_light_and_in_dark(pages: Pages, context: BrowserContext) -> None:
    """Contrast, names, roles, order."""
    page = await context.new_page()
    for path, ready in (await stage(pages)).items():
        await page.emulate_media(color_scheme="light", reduced_motion="reduce")
        await is_there(page, pages.url, path, ready)
        assert await serious(page) == [], f"{path}, light"
        await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        assert await serious(page) == [], f"{path}, dark"
