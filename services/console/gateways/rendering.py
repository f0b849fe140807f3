"""Draws pages in a process of its own: a request a line in, an answer a line out, both JSON; `{}` for none.

A file may crash or hang the reader; then only this process ends. Started by its path, so it imports nothing of ours.
"""

from __future__ import annotations

import base64
import io
import json
import resource
import sys
from typing import Any

_MEMORY_BYTES = 4 * 2**30
_LARGEST_SCALE = 4.0


def squeezed(text: str) -> tuple[str, list[int]]:
    """The text without its white space and in one case, and where each of its characters stood."""
    kept = [(each.casefold()[:1], index) for index, each in enumerate(text) if not each.isspace()]
    return "".join(each for each, _ in kept), [index for _, index in kept]


def marks(page: Any, wanted: str) -> list[list[float]]:
    """Where the words stand: left, top, width and height as parts of the page. Empty when they are not there."""
    needle, _ = squeezed(wanted)
    if not needle:
        return []
    words = page.get_textpage()
    haystack, places = squeezed(words.get_text_range())
    at = haystack.find(needle)
    if at < 0:
        return []
    first, last = places[at], places[at + len(needle) - 1]
    width, height = page.get_size()
    found = []
    for number in range(words.count_rects(first, last - first + 1)):
        left, bottom, right, top = words.get_rect(number)
        found.append([left / width, 1 - top / height, (right - left) / width, (top - bottom) / height])
    return found


def draw(path: str, number: int, width: int, wanted: str) -> dict[str, Any]:
    """One page as JPEG, and the marks of what is looked for on it."""
    import pypdfium2

    with pypdfium2.PdfDocument(path) as document:
        page = document[number - 1]
        across, down = page.get_size()
        image = page.render(scale=min(_LARGEST_SCALE, width / max(across, down * 0.4))).to_pil()
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=82)
        return {
            "pages": len(document),
            "width": image.width,
            "height": image.height,
            "marks": marks(page, wanted) if wanted and page.get_rotation() == 0 else [],
            "image": base64.b64encode(buffer.getvalue()).decode(),
        }


def main() -> None:
    """Answer until the other side closes its end."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        try:
            answer = draw(**json.loads(line))
        except Exception:  # noqa: BLE001 - whatever a hostile file provokes, the answer is that there is none
            answer = {}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
