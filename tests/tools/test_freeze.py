"""The record of numbers that a change of structure must not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FREEZE = Path(__file__).resolve().parents[2] / "tools" / "freeze.py"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--check",)])
def test_without_a_record_it_says_how_it_is_used(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """`--help` wrote a record of that name after twenty minutes."""
    done = subprocess.run(
        [sys.executable, str(FREEZE), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "python tools/freeze.py RECORD.json" in done.stderr
    assert not list(tmp_path.iterdir())
