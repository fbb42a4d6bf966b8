"""Exact resume: a run killed with SIGKILL ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load_data
from sfumato.engine import RunConfig, RunDirectory, fingerprint, parse, run

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


def _check_killed_is_whole(config: dict[str, Any], folder: Path, kills: int) -> RunDirectory:
    """Kill a run so often in the midst of epochs and compare its end; gives the whole one."""
    name = fingerprint(parse(RunConfig, config))
    killed, whole = (RunDirectory(folder / part / name) for part in ("killed", "whole"))

    for kill in range(1, kills + 1):
        after = kill * STEPS + kill
        assert _run(config, folder / "killed", kill_after=after) == -signal.SIGKILL
        assert len(killed.log()) == kill * (kill + 1) // 2
    assert not killed.finished
    assert _run(config, folder / "killed") == 0
    run(parse(RunConfig, config), folder / "whole", show=False)  # another process: the same bits

    assert _weights(killed) == _weights(whole)
    assert killed.metrics() == whole.metrics()
    for split in ("validation", "test"):
        ours, theirs = killed.predictions(split), whole.predictions(split)
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    logs = [[{**r, "seconds": 0} for r in d.log()] for d in (killed, whole)]
    assert logs[0] == logs[1]
    return whole


def _weights(run: RunDirectory) -> bytes:
    return (run.checkpoint / "model.safetensors").read_bytes()


def test_killed_run_ends_bit_identical(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """With CRL, whose history of every sample must come back too, and mollification's noise."""
    train = {"epochs": 3, "batch_size": 16}
    config = {**tiny, "loss": "crl", "augment": "fcr+trivaug", "train": train}
    _check_killed_is_whole(config, tmp_path, kills=1)


@pytest.mark.slow
def test_killed_run_on_files_ends_as_one_in_memory(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Pictures that worker processes decode, mixed and mollified."""
    _write_pictures(tmp_path / "pictures")
    data = {"name": "folder", "root": str(tmp_path / "pictures")}
    train = {"epochs": 6, "batch_size": 16}
    config = {**tiny, "augment": "fcr+cutmix", "inputs": "mollify", "train": train}
    files = {**config, "data": {**data, "in_memory": False}}
    on_files = _check_killed_is_whole(files, tmp_path, kills=2)
    held = {**config, "data": {**data, "in_memory": True}}
    assert _run(held, tmp_path) == 0
    in_memory = RunDirectory(tmp_path / fingerprint(parse(RunConfig, held)))
    assert _weights(on_files) == _weights(in_memory)
    assert on_files.metrics() == in_memory.metrics()


def _write_pictures(root: Path) -> None:
    """Of 96 scenes to train on, and 40 to test on."""
    sets = load_data({"name": "scenes", "train": 96, "validation": 10, "test": 40, "size": 24})
    for part, data in (("train", sets.train), ("val", sets.validation), ("test", sets.test)):
        for place, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
            folder = root / part / data.classes[int(label)]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            Image.fromarray(pixels).save(folder / f"{place:03}.png")
