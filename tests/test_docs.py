"""The documents: links lead somewhere, tables are those of the kept results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.keys_page import KEYS, keys_page

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs/assets").rglob("*.md")))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCUMENTS]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_an_editor(page: Path) -> None:
    """At most 120 characters, tables and code (fenced or indented) excepted."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > 120] == []


def test_design_names_files_that_exist() -> None:
    """Each file that docs/design.md leads a reader to, by the end of its path."""
    files = [path.as_posix() for path in ROOT.glob("*.py")]
    files += [path.as_posix() for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")]
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/.]+\.py)`", page))
    assert named
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
    assert len(page.splitlines()) <= 150


def test_keys_are_those_of_the_schema() -> None:
    """Write it anew with `python -m tools.keys_page`, as CONTRIBUTING.md says."""
    assert KEYS.read_text(encoding="utf-8") == keys_page()


def test_every_key_is_explained() -> None:
    rows = [line.split(" | ") for line in keys_page().splitlines() if line.startswith("| `")]
    keys = {row[0]: row[-1] for row in rows if len(row) == 4}
    assert {
        "| `train.optimizer`",
        "| `train.weight_decay`",
        "| `evaluate.attacks.TITLE.steps`",
    } <= (keys.keys())
    assert [key for key, meaning in keys.items() if not meaning.rstrip(" |")] == []


def test_tables_are_those_of_the_results() -> None:
    command = [sys.executable, "tools/evidence", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
