"""A study whose model, loss and data are the user's: killed, resumed, and read without its code."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.study import load_study
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job

PARTS = """
import own_width
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.body = nn.Conv2d(in_channels, own_width.WIDTH, 3)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(own_width.WIDTH, num_classes)

    def forward(self, images):
        return self.head(self.drop(self.body(images).relu().mean((2, 3))))

def tilted(logits, target, *, strength: float = 0.1):
    return F.cross_entropy(logits, target) + strength * logits.square().mean()

class Dots(torch.utils.data.Dataset):
    def __init__(self, train: bool = True):
        self.first = 0 if train else 1000

    def __len__(self):
        return 48

    def __getitem__(self, position):
        generator = torch.Generator().manual_seed(self.first + position)
        return torch.rand(3, 8, 8, generator=generator), position % 2

def right(probs, target):
    return probs.gather(1, target[:, None]).mean()
"""
STUDY = """
name: own
recipe:
  data: own_all:Dots
  model: own_all:Net
  train: {epochs: EPOCHS, batch_size: 8}
  evaluate: {resamples: 10, own: {right: own_all:right}}
methods:
  plain: {}
  tilted: {loss: own_all:tilted}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "own_all.py").write_text(PARTS)
    (folder / "own_width.py").write_text("WIDTH = 4\n")
    (folder / "study.yaml").write_text(STUDY.replace("EPOCHS", "1"))
    return folder / "study.yaml"


def test_reading_results_imports_nothing(
    study: Path,
    run_here: Callable[[Path, Path], None],
    sfumato: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_here(study, tmp_path / "out")
    for name in ("own_all", "own_width"):
        del sys.modules[name]
        # Were it imported, from here or from anywhere, this would end the command.
        (study.parent / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(study.parent))
    runs = sorted(str(path.parent) for path in tmp_path.glob("out/runs/*/metrics.json"))
    assert len(runs) == 2
    done = sfumato("report", "out")
    assert done.status == 0, done.stderr
    assert "own.right.value" in Path("out/report/index.html").read_text()
    assert sfumato("report", "out", "--format", "markdown").status == 0
    assert "| right |" in Path("out/report/results.md").read_text().splitlines()[0]
    assert sfumato("report", "out", "--format", "csv").status == 0
    assert sfumato("compare", *runs, "--resamples", "5", "--quiet").status == 0
    predictions = [f"{run}/predictions/test.npz" for run in runs]
    assert sfumato("audit", *predictions, "--resamples", "5", "--quiet").status == 0
    assert "own_all" not in sys.modules
    refused = sfumato("analyse", "out", "--only", "feature_spectrum", "--quiet")
    assert refused.status == 2
    assert "pass modules= (--modules)" in refused.stderr
    assert sfumato("run", str(study), "--out", "out").status == 2  # which does import it


def test_a_study_file_s_folder_is_where_modules_are_found(study: Path) -> None:
    assert load_study(study).modules == study.parent


@pytest.mark.slow
def test_killed_and_resumed_to_the_same_numbers(
    study: Path,
    tmp_path: Path,
    start: Callable[..., Any],
    jobs_of: Callable[[Path, Path], list[Job]],
    metrics_of: Callable[[list[Job]], list[dict[str, Any]]],
    run_here: Callable[[Path, Path], None],
    wait_until: Callable[..., Any],
) -> None:
    study.write_text(STUDY.replace("EPOCHS", "40"))
    run_here(study, tmp_path / "whole")
    folder = tmp_path / "killed"
    jobs = jobs_of(study, folder)
    arguments = ("run", study, "--out", folder, "--workers", 2, "--threads", 1, "--quiet")
    runner = start(*arguments)
    wait_until(lambda: all(job.logged_epochs() > 3 for job in jobs), "a few epochs of both")
    worker = int(newest_claim(jobs[0].training).owner["pid"])
    os.kill(worker, signal.SIGKILL)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    shutil.move(study.parent, tmp_path / "moved")  # what names a run is the code, not the place
    moved = tmp_path / "moved" / "study.yaml"
    assert start("run", moved, *arguments[2:]).wait() == 0
    assert metrics_of(jobs_of(moved, folder)) == metrics_of(jobs_of(moved, tmp_path / "whole"))
