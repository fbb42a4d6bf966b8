"""Under torchrun all processes work on the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.study.jobs import Job
from sfumato.study.run import launched_rank


def test_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "SLURM_NTASKS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched_rank() is None
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert launched_rank() is None
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert launched_rank() == 3


@pytest.mark.slow
def test_torchrun(
    killed_study: Path, tmp_path: Path, jobs_of: Callable[[Path, Path], list[Job]]
) -> None:
    text = killed_study.read_text().replace("epochs: 8", "epochs: 2\n    devices: 2")
    killed_study.write_text(text.replace("epochs: 2", "accelerator: cpu\n    epochs: 2"))
    arguments = ["run", str(killed_study), "--out", str(tmp_path / "out"), "--quiet"]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "sfumato", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(job.finished for job in jobs_of(killed_study, tmp_path / "out"))
    assert done.stdout.count("Report:") == 1
