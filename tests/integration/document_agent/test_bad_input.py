"""Files that are broken, hostile or odd: each has one right end, and the next document is none the worse."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
import pytest

from services.document_agent.__main__ import main
from services.document_agent.pages import sandbox
from shared.testing import pdfs
from shared.testing.wait import until
from tests.support.agents import AgentWorld

pytestmark = pytest.mark.timeout(180)
GOOD = pdfs.text_pdf(["Invoice", "Invoice date: 2026-02-03", "Total due: USD 25.00"])


async def completed(world: AgentWorld, data: bytes, **task: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    attempt_id = await world.attempt(data, **task)
    end = await world.run(main, attempt_id)
    assert end.verb == "result", end.body
    result: dict[str, Any] = (await world.stored(attempt_id))["result"]
    return result, end.body


async def refused(world: AgentWorld, data: bytes) -> dict[str, Any]:
    end = await world.run(main, await world.attempt(data))
    assert end.verb == "failure", end.body
    assert "Traceback" not in end.body["message"]
    return end.body


async def test_p01_nul_in_the_text_layer_is_dropped_counted_and_completed(world: AgentWorld) -> None:
    result, body = await completed(world, pdfs.nul_ligature(), name="nul.pdf")
    assert "\x00" not in str(result)
    assert "for a specic delivery" in result["text"]
    assert body["cleaned_characters"] == 1
    assert result["fields"]["totals"][0]["value"]["value"] == "25.00"


async def test_p02_half_a_surrogate_pair_is_dropped_and_counted(world: AgentWorld) -> None:
    result, body = await completed(world, pdfs.lone_surrogate())
    assert result["text"].encode() == b"Total: USD 25.00 paid  in full"
    assert body["cleaned_characters"] == 1


async def test_p02_a_split_pair_is_joined(world: AgentWorld) -> None:
    result, body = await completed(world, pdfs.split_pair())
    assert result["text"] == "Total: USD 25.00 paid 😀 in full"
    assert body["cleaned_characters"] == 0


@pytest.mark.parametrize("revision", [3, 4, 6])
async def test_p03_encryption_that_only_forbids_copying_is_read(world: AgentWorld, revision: Any) -> None:
    result, _ = await completed(world, pdfs.encrypted(revision=revision))
    assert "Total: USD 25.00" in result["text"]
    assert result["document"]["is_encrypted"] is True


@pytest.mark.parametrize("revision", [3, 6])
async def test_p03_a_password_fails_once(world: AgentWorld, revision: Any) -> None:
    body = await refused(world, pdfs.encrypted(user="secret", revision=revision))
    assert (body["reason"], body["retryable"]) == ("password_required", False)


@pytest.mark.parametrize("kind", sorted(pdfs.not_pdfs()))
async def test_p15_what_is_no_pdf_is_told_apart_by_its_content(world: AgentWorld, kind: str) -> None:
    body = await refused(world, pdfs.not_pdfs()[kind])
    assert (body["reason"], body["retryable"]) == ("not_a_pdf", False)


async def test_p15_zero_pages(world: AgentWorld) -> None:
    body = await refused(world, pdfs.zero_pages())
    assert (body["reason"], body["retryable"]) == ("no_pages", False)


@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
async def test_p15_a_truncated_file_is_repaired_and_says_so(world: AgentWorld, share: float) -> None:
    result, body = await completed(world, pdfs.truncated(share))
    assert "Total: USD 25.00" in result["text"]
    assert body["damage"]


async def test_p15_a_broken_startxref_is_read(world: AgentWorld) -> None:
    result, _ = await completed(world, pdfs.broken_startxref())
    assert "Total: USD 25.00" in result["text"]


async def test_p15_garbage_after_the_header_is_damaged_beyond_repair(world: AgentWorld) -> None:
    body = await refused(world, b"%PDF-1.7\n" + bytes(range(256)) * 20)
    assert (body["reason"], body["retryable"]) in (("document_damaged", False), ("no_pages", False))


async def test_p07_empty_pages_of_any_size_are_blank_and_the_document_completes(world: AgentWorld) -> None:
    result, body = await completed(world, pdfs.blank_pages("0 0 595 842", "0 0 0 0", "0 0 1 1"))
    assert [page["method"] for page in result["pages"]] == ["blank"] * 3
    assert result["document"]["is_empty"] is True
    assert body["confidence"] == 0


async def test_p07_one_dot_is_a_blank_page(world: AgentWorld) -> None:
    result, _ = await completed(world, pdfs.one_dot())
    assert result["pages"][0]["method"] in ("blank", "ocr")
    assert result["document"]["is_empty"] is True


async def test_p08_a_page_tree_that_contains_itself_ends(world: AgentWorld) -> None:
    result, body = await completed(world, pdfs.page_tree_cycle())
    assert "round and round" in result["text"]
    assert body["damage"]


async def test_p08_an_inline_image_without_end_ends(world: AgentWorld) -> None:
    result, _ = await completed(world, pdfs.inline_image_without_end())
    assert "before the picture" in result["text"]


async def test_p08_a_stream_that_unfolds_to_megabytes_ends(world: AgentWorld) -> None:
    result, _ = await completed(world, pdfs.nested_flate())
    assert result["document"]["is_empty"] is True


async def test_p08_a_file_that_works_for_days_fails_once_and_the_next_is_read(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PAGE_SECONDS=1)
    body = await refused(world, pdfs.nested_forms())
    assert (body["reason"], body["retryable"]) == ("parse_timeout", False)
    world.configure(LOCKKEEPER_AGENT_PAGE_SECONDS=60)
    result, _ = await completed(world, GOOD)
    assert "Total due" in result["text"]


async def test_p08_the_kernel_ends_a_page_that_burns_the_processor(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PAGE_SECONDS=0.5, LOCKKEEPER_AGENT_DOCUMENT_SECONDS=60)
    body = await refused(world, pdfs.nested_forms())
    assert body["reason"] == "parse_timeout"


async def test_p10_memory_beyond_the_limit_fails_the_document_not_the_machine(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PARSER_MEMORY_BYTES=300_000_000)
    body = await refused(world, pdfs.nested_forms())
    assert (body["reason"], body["retryable"]) == ("document_too_heavy", False)


async def test_p15_a_native_crash_is_one_failed_task_and_the_process_lives(world: AgentWorld) -> None:
    attempt_id = await world.attempt(pdfs.nested_forms())
    sandbox.pool.close()
    run = asyncio.create_task(world.run(main, attempt_id))
    me = psutil.Process()

    def reader() -> psutil.Process | None:
        mine = [each for each in me.children() if "services.document_agent.pages.child" in " ".join(each.cmdline())]
        return next((each for each in mine if each.memory_info().rss > 200_000_000), None)

    child = await until(reader, seconds=30)
    assert child is not None
    os.kill(child.pid, signal.SIGSEGV)
    body = (await run).body
    assert (body["reason"], body["retryable"]) == ("document_crashed_parser", False)
    result, _ = await completed(world, GOOD)
    assert "Total due" in result["text"]


async def test_p10_a_page_limit_gives_a_clear_refusal(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PAGE_LIMIT=10)
    body = await refused(world, pdfs.many_pages(11, lines=1))
    assert (body["reason"], body["retryable"]) == ("too_many_pages", False)
    assert "11 pages" in body["message"]


async def test_p10_two_thousand_pages_with_progress_and_bounded_memory(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PROGRESS_SECONDS=0.2)
    attempt_id = await world.attempt(pdfs.many_pages(2_000))
    sandbox.pool.close()
    end = await world.run(main, attempt_id)
    assert (end.verb, end.body["pages"]) == ("result", 2_000)
    assert end.body["result_stored"] is True
    assert "result" not in end.body
    beats = world.recorder.beats(attempt_id)
    assert len({beat.get("pages_done") for beat in beats if beat.get("pages_total") == 2_000}) > 3
    (child,) = sandbox.pool.idle()
    assert child.resident_bytes < 400_000_000
    assert len((await world.stored(attempt_id))["result"]["pages"]) == 2_000


async def test_p10_a_reader_is_replaced_after_its_number_of_files(world: AgentWorld) -> None:
    world.configure(LOCKKEEPER_AGENT_PARSER_DOCUMENTS=2)
    sandbox.pool.close()
    pids = []
    for _ in range(3):
        await completed(world, GOOD)
        pids.append([child.pid for child in sandbox.pool.idle()])
    assert pids[1] == []
    assert pids[0] != pids[2]


@pytest.mark.parametrize("name", ["emoji 😀.pdf", "x" * 300, "../../etc/passwd", "a%20b#1?.pdf", "\u202efdp.exe"])
async def test_p11_p12_a_file_name_is_data(world: AgentWorld, name: str) -> None:
    result, _ = await completed(world, GOOD, name=name)
    assert "Total due" in result["text"]


async def test_half_a_file_is_asked_for_again(world: AgentWorld) -> None:
    attempt_id = await world.attempt(GOOD)
    await world.database.owner.execute("UPDATE lockkeeper.documents SET bytes = bytes + 1")
    body = (await world.run(main, attempt_id)).body
    assert (body["reason"], body["retryable"]) == ("document_incomplete", True)


async def test_a_document_that_left_its_volume_is_missing_for_good(world: AgentWorld) -> None:
    attempt_id = await world.attempt(GOOD)
    await world.database.owner.execute(
        "UPDATE lockkeeper.documents SET volume_path = '/Volumes/main/lockkeeper/gone.pdf'"
    )
    body = (await world.run(main, attempt_id)).body
    assert (body["reason"], body["retryable"]) == ("document_missing", False)


async def test_a_task_without_a_document_says_so(world: AgentWorld) -> None:
    body = (await world.run(main, await world.attempt(input={"question": 1}))).body
    assert (body["reason"], body["retryable"]) == ("document_missing", False)


async def test_a_schema_that_is_none_says_so(world: AgentWorld) -> None:
    body = (await world.run(main, await world.attempt(GOOD, options={"schema": {"type": "banana"}}))).body
    assert (body["reason"], body["retryable"]) == ("schema_invalid", False)
