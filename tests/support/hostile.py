"""Text that tries to become something else: a statement, a page, a path, an address, a format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

SQL = (
    "'", '"', "';--", "' OR '1'='1", "'); DROP TABLE lockkeeper.tasks; --", "$$", "$1", "$tag$ $tag$", "/*", "\\", "%", "_%",
    "%s", "{0}", "\\'; SELECT pg_sleep(9); --", "E'\\x00'", "::regclass", "||pg_sleep(9)||",
)  # fmt: skip
MARKUP = (
    "<script>document.title='owned'</script>", "\"><img src=x onerror=document.title='owned'>", "<svg/onload=alert(1)>",
    "javascript:alert(1)", "{{7*7}}", "{% for x in y %}", "</script><script>alert(1)</script>", "&lt;script&gt;",
)  # fmt: skip
PATHS = (
    "../../../../etc/passwd", "..\\..\\windows\\win.ini", "/etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "....//....//x",
    "/Volumes/main/lockkeeper/documents/../../../other", "file.pdf/..", "~root", "CON", "a\r\nSet-Cookie: x=y",
)  # fmt: skip
ADDRESSES = (
    "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/", "file:///etc/passwd", "gopher://127.0.0.1:5432/_x",
    "//127.0.0.1", "http://[::1]/", "postgresql://127.0.0.1/lockkeeper", "dbfs:/secret",
)  # fmt: skip
STRANGE = (
    "\x00",
    "a\x00b",
    "\u202egnp.fdp",
    "\ufeff",
    "\U0001f4a3" * 50,
    "x" * 5_000,
    "\ud7ff",
    "0",
    "-1",
    "NaN",
    "null",
    " ",
)
"""What no statement, name or number should stumble over."""
ALL = SQL + MARKUP + PATHS + ADDRESSES + STRANGE

FEW = (
    "'", "\"'); DROP TABLE lockkeeper.tasks; --", "$$ $1 $tag$ /* \\", "100% _ %s {0}", "E'\\x00'::regclass || pg_sleep(9)",
    "\x00", "a\x00b", PATHS[0], MARKUP[1],
)  # fmt: skip
"""For what goes to every place; the long attack has them all."""
LEAKS = ("Traceback", "asyncpg", "syntax error", 'relation "', "/site-packages/", "root:x:0")
Call = tuple[str, str, dict[str, Any]]


def is_fault(status: int, text: str) -> bool:
    """Whether an answer is an error of ours, or a refusal that tells of our insides."""
    return status >= 500 or (status >= 400 and any(leak in text for leak in LEAKS))


@dataclass(frozen=True)
class Places:
    """Every place where an API takes text, found in its own OpenAPI document."""

    document: Mapping[str, Any]
    prefix: str
    bodies: Mapping[str, dict[str, Any]]
    """A body that fits, for every operation that takes JSON, by `POST /path`."""
    names: Mapping[str, str]
    """What stands in a path's parameter where another place is tried."""
    inside: tuple[str, ...] = ()
    """Fields of bodies that are objects: the text goes into them, as key and in a list."""

    def with_bodies(self) -> set[str]:
        """Operations that take JSON."""
        return {place for _, _, place, each in self._operations() if _schema(each) is not None}

    def that_change_something(self) -> set[str]:
        """Operations that are more than reading."""
        return {place for verb, _, place, _ in self._operations() if verb not in {"get", "head"}}

    def calls(self, text: str) -> Iterator[Call]:
        """Method, path and options of one call for every place, with the text in it."""
        for verb, path, place, operation in self._operations():
            for each in operation.get("parameters", []):
                if each["in"] == "query":
                    yield verb, self._filled(path), {"params": {each["name"]: text}, "json": self.bodies.get(place)}
                elif each["in"] == "path":
                    yield verb, self._filled(path.replace("{" + each["name"] + "}", quote(text, safe=""))), {}
            for body in self._bodies(place, operation, text):
                yield verb, self._filled(path), {"json": body}

    def _operations(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        for path, item in self.document["paths"].items():
            for verb, operation in item.items():
                yield verb, path, f"{verb.upper()} {path.removeprefix(self.prefix)}", operation

    def _filled(self, path: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self.names[found[1]], path)

    def _bodies(self, place: str, operation: dict[str, Any], text: str) -> Iterator[dict[str, Any]]:
        schema, body = _schema(operation), self.bodies.get(place)
        if schema is None or body is None:
            return
        for field in self.document["components"]["schemas"][schema]["properties"]:
            yield {**body, field: {text: text, "n": [text]} if field in self.inside else text}
        for name, rows in body.items():
            if isinstance(rows, list) and rows and isinstance(rows[0], dict):
                yield from ({name: [{**rows[0], field: text}]} for field in rows[0])


def _schema(operation: Mapping[str, Any]) -> str | None:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return None
    schema = content["application/json"]["schema"]
    name: str = schema.get("$ref") or schema["anyOf"][0]["$ref"]
    return name.rpartition("/")[2]
