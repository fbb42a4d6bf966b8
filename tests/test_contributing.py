"""The worked example of CONTRIBUTING.md, done in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"^<!-- (file|line): (\S+) -->\n```python\n(.*?)^```$", re.M | re.S)
# What the example's reader is promised, asked of the copy.
SEEN = """
from pathlib import Path

import losses
import sfumato
from sfumato.study import StudyConfig, plan
from sfumato.study.catalogue import catalogue
from sfumato.study.profiles import write_profiles
from sfumato.study.schema import schema_text


def test_poly_is_seen_everywhere(tmp_path: Path) -> None:
    assert Path(sfumato.__file__).is_relative_to(Path.cwd())
    assert catalogue()["losses"]["poly"] == "weight=1.0, ignore_index=-100"
    assert '"const": "poly"' in schema_text()
    assert "poly" in losses.fast_losses((2,), classes=3)
    methods = {"poly": {"loss": {"name": "poly", "weight": 2.0}}}
    recipe = {"data": "scenes", "model": "resnet"}
    write_profiles(plan(StudyConfig(name="s", recipe=recipe, methods=methods)), tmp_path)
    assert "poly: weight 2.0" in (tmp_path / "profiles.json").read_text()
"""


def _copy(folder: Path) -> None:
    """The package and the tests that look at every loss, which are not edited by the example."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/sfumato", folder / "src/sfumato", ignore=ignored)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
    for name in ("conftest.py", "contracts/test_losses.py"):
        (folder / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests/test_seen.py").write_text(SEEN)


def _apply(kind: str, path: Path, text: str) -> None:
    """Write a file, or put a line before the first one that begins alike."""
    if kind == "file":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    lines = path.read_text().splitlines(keepends=True)
    begin = text[: len(text) - len(text.lstrip()) + 1]
    first = next(number for number, line in enumerate(lines) if line.startswith(begin))
    path.write_text("".join([*lines[:first], text, *lines[first:]]))


@pytest.mark.slow
def test_the_worked_example(tmp_path: Path) -> None:
    _copy(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _, _ in blocks] == ["file", "line", "line", "file"]
    for kind, path, text in blocks:
        _apply(kind, tmp_path / path, text)
    places = [str(tmp_path / "src"), str(tmp_path / "benchmarks")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    tests = ["tests/labels/test_poly.py", "tests/test_seen.py", "src/sfumato/labels/poly.py"]
    contracts = ["tests/contracts/test_losses.py", "-k", "poly or table"]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, *tests, *contracts],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for test in ("test_second_derivatives_agree[poly]", "test_bad_weight", "poly.poly_loss"):
        assert re.search(rf"^PASSED .*{re.escape(test)}$", done.stdout, re.M), done.stdout
