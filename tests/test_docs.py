"""The documents: links lead somewhere, tables are those of the kept results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.study.catalogue import names_table

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_an_editor(page: Path) -> None:
    """At most 120 characters, tables and code (fenced or indented) excepted."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > 120] == []


def with_names(text: str) -> str:
    """The page with the table of what a study can name as it is now."""
    begin, end = "<!-- names of the table of parts -->\n", "<!-- end -->\n"
    before, _, rest = text.partition(begin)
    return before + begin + names_table() + end + rest.partition(end)[2]


def write_names() -> None:
    page = ROOT / "docs/studies.md"
    page.write_text(with_names(page.read_text(encoding="utf-8")), encoding="utf-8")


def test_names_are_those_of_the_table_of_parts() -> None:
    """Write it anew with `write_names`, as CONTRIBUTING.md says."""
    text = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
    assert with_names(text) == text


def test_tables_are_those_of_the_results() -> None:
    command = [sys.executable, "studies/evidence", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
