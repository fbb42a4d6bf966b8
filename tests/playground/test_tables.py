"""The playground's tables are those of the library, and the page stays small and by itself."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "playground"


def test_tables_are_up_to_date() -> None:
    """Write them anew with `python docs/playground/export.py`."""
    tables = runpy.run_path(str(PAGE / "export.py"))["tables"]
    assert (PAGE / "tables.js").read_text(encoding="utf-8") == tables()


def test_page_is_small_and_asks_no_other_host() -> None:
    files = [path for path in PAGE.iterdir() if path.suffix in (".html", ".css", ".js")]
    assert sum(path.stat().st_size for path in files) < 400_000
    for path in files:
        addresses = re.findall(r"https?://[^\s\"']+", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path.name
