"""The record of numbers that a change of structure must not change."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FREEZE = Path(__file__).resolve().parents[2] / "tools" / "freeze.py"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--check",)])
def test_without_a_record_it_says_how_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """`--help` wrote a record of that name after twenty minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(FREEZE), *arguments])
    with pytest.raises(SystemExit, match=r"python tools/freeze\.py RECORD\.json"):
        runpy.run_path(str(FREEZE), run_name="__main__")
    assert not list(tmp_path.iterdir())
