"""Nothing that a file, a document or a model says becomes a part of a page: looked at in a real Chromium."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

from tests.support import hostile
from tests.support.pages import Pages

pytestmark = pytest.mark.timeout(180)

_PLANTED = 'document.querySelectorAll(\'img[src="x"], script:not([src]):not([type]), [onload], [onerror], a[href^="javascript:" i]\').length'


async def _plant(pages: Pages, text: str) -> str:
    """A completed and a failed task that say it in every place; the id of the first."""
    owner = pages.owner
    document = await owner.fetchval(
        "INSERT INTO lockkeeper.documents (name, volume_path, sha256, bytes, pages, uploaded_by, customer) "
        "VALUES ($1, '/' || lockkeeper.uuid7(), 'x', 1, 1, $1, $1) RETURNING id",
        text,
    )
    said = {"text": text, text: [text], "pages": [{"page": 1, "text": text}], "fields": {text: {"value": text}}}
    row = (
        "INSERT INTO lockkeeper.tasks (agent, document_id, customer, labels, input, status, finished_at, verb, error, "
        "result, created_by, step, reason) VALUES ('reader', $1, $2, $3, $4, $5, now(), $6, $7, $8, $2, $2, $2) RETURNING id"
    )
    done = await owner.fetchval(row, document, text, {"batch": text}, said, "completed", "complete", None, said)
    error = {"reason": "model_failed", "message": text}
    await owner.fetchval(row, document, text, {"batch": text}, said, "failed", "fail", error, None)
    await owner.execute(
        "INSERT INTO lockkeeper.operator_audit (actor, action, target, before, after, note) "
        "VALUES ($1, 'set_agent', 'agent/' || $1, $2, $2, $1)",
        text, said,
    )  # fmt: skip
    return str(done)


async def test_what_files_documents_and_models_say_stays_text(pages: Pages, context: BrowserContext) -> None:
    """The context fails for every script error and every blocked script: none may even be tried."""
    shown = [await _plant(pages, text) for text in hostile.MARKUP]
    page = await context.new_page()
    for path in ["/", "/tasks", *(f"/tasks/{each}" for each in shown[:4]), "/agents", "/costs", "/audit", "/upload"]:
        await page.goto(pages.url + path)
        await page.wait_for_load_state("load")
        if path == "/tasks":
            await expect(page.locator("#rows tr")).to_have_count(2 * len(hostile.MARKUP), timeout=20_000)
        if path.startswith("/tasks/"):
            await expect(page.locator("main")).to_contain_text(hostile.MARKUP[shown.index(path[7:])], timeout=20_000)
        if path == "/audit":
            await expect(page.locator("main")).to_contain_text(hostile.MARKUP[0], timeout=20_000)
        assert await page.title() not in {"owned", "1"}, path
        assert await page.evaluate(_PLANTED) == 0, path
