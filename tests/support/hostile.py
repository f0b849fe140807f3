"""Text that tries to become something else: a statement, a page, a path, an address, a format."""

from __future__ import annotations

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
