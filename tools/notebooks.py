"""Run notebooks and store what they print: `python tools/notebooks.py [NAME ...]`, else all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def run_cells(book: dict[str, Any]) -> list[list[str]]:
    """Run the code cells in order in one fresh namespace; return the lines that each prints."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in code_cells(book):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        printed.append(out.getvalue().splitlines(keepends=True))
    return printed


def code_cells(book: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def stored(cell: dict[str, Any]) -> list[str]:
    """Return the lines that a cell printed when it was last stored."""
    return [line for output in cell["outputs"] for line in output["text"]]


def main() -> None:
    for path in sorted(FOLDER / f"{name}.ipynb" for name in sys.argv[1:]) or sorted(
        FOLDER.glob("*.ipynb")
    ):
        book = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            printed = run_cells(book)
            os.chdir(FOLDER)
        for number, (cell, lines) in enumerate(zip(code_cells(book), printed, strict=True), 1):
            output = {"name": "stdout", "output_type": "stream", "text": lines}
            cell |= {"execution_count": number, "outputs": [output] if lines else []}
        text = json.dumps(book, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
