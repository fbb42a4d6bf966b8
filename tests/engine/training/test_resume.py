"""Exact resume: a run killed with SIGKILL ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.engine import RunConfig, RunDirectory, fingerprint, parse

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
torch.set_num_threads(1)
from sfumato.engine import RunConfig, parse, run

steps = 0

def die(*_):
    global steps
    steps += 1
    if steps == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_post_hook(die)
run(parse(RunConfig, json.loads(sys.argv[1])), Path(sys.argv[2]), show=False)
"""
STEPS = 6  # 96 images in batches of 16: the steps of an epoch


def _run(config: dict[str, Any], root: Path, *, kill_after: int = -1) -> int:
    """The exit status of a run that kills itself after so many steps, if at all."""
    arguments = [json.dumps(config), str(root), str(kill_after)]
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments]).returncode


def test_killed_run_ends_bit_identical(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """With CRL, whose history of every sample must come back too, and mollification's noise."""
    train = {"epochs": 6, "batch_size": 16}
    config = {**tiny, "loss": "crl", "augment": "fcr+trivaug", "train": train}
    name = fingerprint(parse(RunConfig, config))
    killed, whole = (RunDirectory(tmp_path / part / name) for part in ("killed", "whole"))

    assert _run(config, tmp_path / "killed", kill_after=STEPS + 1) == -signal.SIGKILL
    assert len(killed.log()) == 1
    assert _run(config, tmp_path / "killed", kill_after=2 * STEPS + 2) == -signal.SIGKILL
    assert len(killed.log()) == 3
    assert not killed.finished
    assert _run(config, tmp_path / "killed") == 0
    assert _run(config, tmp_path / "whole") == 0

    weights = [(d.checkpoint / "model.safetensors").read_bytes() for d in (killed, whole)]
    assert weights[0] == weights[1]
    assert killed.metrics() == whole.metrics()
    for split in ("validation", "test"):
        ours, theirs = killed.predictions(split), whole.predictions(split)
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    logs = [[{**r, "seconds": 0} for r in d.log()] for d in (killed, whole)]
    assert logs[0] == logs[1]
