"""The command line as typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMALL = """
name: small
recipe:
  data: {name: scenes, train: 64, validation: 20, test: 30, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 1, batch_size: 32}
  evaluate: {resamples: 20}
methods:
  plain: {}
"""


def _sfumato(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sfumato", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_run_then_report(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    done = _sfumato("run", "small.yaml", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "plain, seed 0: training" in done.stdout
    assert (tmp_path / "runs/small/report/index.html").exists()
    again = _sfumato("run", "small.yaml", "--quiet", cwd=tmp_path)
    assert "finished before" in again.stdout
    report = _sfumato("report", "runs/small", "--out", "page", cwd=tmp_path)
    assert report.returncode == 0
    assert (tmp_path / "page/index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "absent.yaml"), "absent.yaml: no such study file"),
        (("report", "."), "holds no study.json"),
    ],
)
def test_mistakes_are_one_message(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = _sfumato(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_list_shows_every_kind(tmp_path: Path) -> None:
    done = _sfumato("list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("scenes", "resnet", "torchvision:NAME", "acls", "basic"):
        assert name in done.stdout


def test_preview_writes_a_picture(tmp_path: Path) -> None:
    done = _sfumato("list", "data", "--preview", "scenes", "--out", "grid.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


def test_help_has_examples(tmp_path: Path) -> None:
    assert "quickstart" in _sfumato("--help", cwd=tmp_path).stdout
    assert "Example" in _sfumato("run", "--help", cwd=tmp_path).stdout
