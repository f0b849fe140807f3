"""A long document is cut at pages and lines; nothing is lost and nothing is too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.document_agent.fields.chunks import Chunk, chunks_of, halves_of, selected

TEXT = st.text(alphabet="ab \n", max_size=300)


@given(texts=st.lists(TEXT, max_size=8), budget=st.integers(20, 200))
def test_every_letter_is_in_some_chunk_and_no_chunk_is_too_long(texts: list[str], budget: int) -> None:
    chunks = chunks_of(list(enumerate(texts, start=1)), budget)
    assert all(len(chunk.text) <= budget for chunk in chunks)
    whole = "".join("".join(text for text in texts if text.strip()).split())
    assert "".join("".join(chunk.text.split()) for chunk in chunks) == whole


def test_pages_are_kept_apart_by_form_feeds() -> None:
    (chunk,) = chunks_of([(1, "one"), (2, ""), (3, "three")], 100)
    assert chunk == Chunk("one\fthree", (1, 3))


def test_a_cut_answer_is_asked_for_again_in_halves() -> None:
    pages = [(1, "a" * 300), (2, "b" * 300)]
    (chunk,) = chunks_of(pages, 1000)
    first, second = halves_of(chunk)
    assert (first.text, first.pages) == ("a" * 300, (1,))
    assert second.text == "b" * 300
    assert 2 in second.pages
    assert halves_of(Chunk("short", (1,))) == [Chunk("short", (1,))]


def test_of_too_many_chunks_the_front_and_the_back_are_read() -> None:
    chunks = [Chunk(str(number), (number,)) for number in range(1, 11)]
    kept, left_out = selected(chunks, 6)
    assert [chunk.pages[0] for chunk in kept] == [1, 2, 3, 4, 9, 10]
    assert left_out == [5, 6, 7, 8]
    assert selected(chunks[:6], 6) == (chunks[:6], [])
