"""docs/papers.md: every file is in it, every file in it exists, and nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 6]
VERDICTS = (
    *("reproduced", "refuted", "inconclusive", "outside the claim's condition", "not run here"),
    *("holds", "Eq. 13 has the least ECE", "as Table 1"),
)
NUMBERED = {
    "ACLS": [
        *(f"Table {number}" for number in (1, 2, 3, 4, 5, 6, "A", "B")),
        *("Fig. 1", "Fig. 2", "Fig. 3", "Fig. A"),
    ],
    "MbLS": ["Table 1", "Table 2", "Fig. 1", "Fig. 2", "Fig. 3"],
    "Adaptive": [f"Table {number}" for number in range(1, 8)]
    + [f"Fig. {number}" for number in range(1, 9)],
    "Data mollification": [f"Table {number}" for number in range(1, 6)]
    + [f"Fig. {number}" for number in range(1, 12)],
    "Spatial": ["Table 1", "Table 2", "Table B.1", "Table B.2", "Table C.1", "Table C.2"]
    + [f"Table E.{number}" for number in range(1, 5)]
    + [f"Fig. {number}" for number in range(1, 10)]
    + ["Fig. A.1", "Fig. B.1", "Fig. B.2", "Fig. C.1", "Fig. C.2", "Fig. C.3", "Fig. D.1"]
    + ["Fig. D.2", "Fig. D.3", "Fig. E.1", "Fig. E.2", "Fig. E.3", "Fig. F.1"],
}


def test_files_and_map_agree() -> None:
    named = set(re.findall(r"\(\.\./(studies/[\w./-]+\.yaml)\)", PAGE))
    assert [name for name in named if not (ROOT / name).is_file()] == []
    written = {f"studies/papers/{path.name}" for path in (ROOT / "studies/papers").glob("*.yaml")}
    assert written <= named


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_table_and_figure_has_a_line(paper: str) -> None:
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = (each for each in section if each.startswith(paper))
    firsts = " | ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| "))
    firsts = re.sub(r"(Fig\.|Table) ([\w.]+), ([\d.]+)(?=[,\s])", r"\1 \2 \1 \3", firsts)
    firsts = re.sub(r"(Fig\. [\d.]+ Fig\. [\d.]+), ([\d.]+)", r"\1 Fig. \2", firsts)
    missing = [each for each in NUMBERED[paper] if not re.search(re.escape(each) + r"\b", firsts)]
    assert missing == []


@pytest.mark.parametrize(
    "page", ["README.md", "docs/results.md", "docs/papers.md", "docs/honest.md"]
)
def test_the_form_of_acls_is_said(page: str) -> None:
    """Its paper's numbers come from the released form, our verdicts from Eq. 13."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert "Eq. 13" in text
    assert re.search(r"numbers (of the ACLS paper )?come from (its|the) released (form|code)", text)


def test_every_line_has_a_verdict() -> None:
    rows = [row for row in ROWS if not row.startswith(("| table", "|---"))]
    assert len(rows) > 70
    bad = [row for row in rows if not any(word in row.split("|")[5] for word in VERDICTS)]
    assert bad == []
    assert "absent" not in PAGE
