"""Exact resume: a run killed with SIGKILL ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.engine import RunConfig, RunDirectory, fingerprint, parse

PROGRAM = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from sfumato.engine import RunConfig, parse, run
run(parse(RunConfig, json.loads(sys.argv[1])), Path(sys.argv[2]), show=False)
"""


def _start(config: dict[str, Any], root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(config), str(root)])


def _kill_in_epoch(config: dict[str, Any], root: Path, directory: RunDirectory, epoch: int) -> None:
    """Start the run and kill it a moment after `epoch` epochs were logged."""
    process = _start(config, root)
    while len(directory.log()) < epoch:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_killed_run_ends_bit_identical(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """With CRL, whose history of every sample must come back too, and mollification's noise."""
    train = {"epochs": 6, "batch_size": 16}
    config = {**tiny, "loss": "crl", "augment": "fcr+trivaug", "train": train}
    name = fingerprint(parse(RunConfig, config))
    killed, whole = (RunDirectory(tmp_path / part / name) for part in ("killed", "whole"))

    _kill_in_epoch(config, tmp_path / "killed", killed, 1)
    _kill_in_epoch(config, tmp_path / "killed", killed, 3)
    assert not killed.finished
    assert _start(config, tmp_path / "killed").wait() == 0
    assert _start(config, tmp_path / "whole").wait() == 0

    weights = [(d.checkpoint / "model.safetensors").read_bytes() for d in (killed, whole)]
    assert weights[0] == weights[1]
    assert killed.metrics() == whole.metrics()
    for split in ("validation", "test"):
        ours, theirs = killed.predictions(split), whole.predictions(split)
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    logs = [[{**r, "seconds": 0} for r in d.log()] for d in (killed, whole)]
    assert logs[0] == logs[1]
