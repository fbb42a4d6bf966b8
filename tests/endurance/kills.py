"""Runners and workers killed with SIGKILL while they work: the study ends with the same numbers.

A trial starts a study of a few seconds, waits until somebody holds a claim, and kills, after a time
that its number draws, one of the workers or the runner with all its workers; once, twice, or again
while it recovers. Then the study is run to its end and compared with one that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sfumato.study import load_study, plan
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job, group_jobs, run_directory
from tests.endurance.campaign import BrokenPromiseError

LONGEST = 300.0  # seconds that a study of these may take
CLASSIFY: dict[str, Any] = {
    "data": {"name": "scenes", "train": 96, "validation": 20, "test": 30, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.2},
    "train": {"epochs": 6, "batch_size": 8},
    "evaluate": {"resamples": 20, "corruptions": ["fog", "snow"], "severities": [3]},
}
SEGMENT: dict[str, Any] = {
    "task": "segment",
    "data": {"name": "scene_streams", "train": 24, "validation": 4, "test": 3, "size": 16},
    "model": {"name": "unet", "width": 4, "depth": 2},
    "train": {"epochs": 4, "batch_size": 4},
    "evaluate": {"resamples": 20},
}
DETECT: dict[str, Any] = {
    "task": "detect",
    "data": {"name": "scene_objects", "size": 32, "train": 12, "validation": 2, "test": 8},
    "model": {"name": "faster_rcnn", "channels": 8, "proposals": 16},
    "augment": {"name": "basic", "crop": 0},
    "train": {"epochs": 3, "batch_size": 4},
    "classifier": {
        "data": {"name": "scenes", "size": 16, "train": 40, "validation": 10, "test": 10},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 2, "batch_size": 10},
        "evaluate": {"resamples": 0},
    },
}
STUDIES: dict[str, dict[str, Any]] = {
    "classify": {"plain": {}, "mixed": {"augment": "fcr+mixup", "inputs": "mollify"}},
    "segment": {"plain": {}, "smooth": {"loss": {"name": "mbls", "margin": 2.0}}},
    "detect": {"plain": {}, "other": {"train": {"learning_rate": 0.01}}},
}
RECIPES = {"classify": CLASSIFY, "segment": SEGMENT, "detect": DETECT}


def _study(task: str, folder: Path) -> Path:
    path = folder / f"{task}.yaml"
    content = {"name": task, "recipe": RECIPES[task], "methods": STUDIES[task]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _start(study: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["run", study, "--out", out, "--workers", 2, "--threads", 1, "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-m", "sfumato", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        start_new_session=True,
    )


def _jobs(study: Path, out: Path) -> list[Job]:
    return group_jobs(plan(load_study(study)), out / "runs")


def _metrics(jobs: list[Job]) -> list[dict[str, Any]]:
    return [run_directory(run, job.root).metrics() for job in jobs for run in job.runs]


@cache
def _undisturbed(task: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        study, out = _study(task, Path(folder)), Path(folder) / "out"
        _finish(study, out)
        return _metrics(_jobs(study, out))


def _finish(study: Path, out: Path) -> None:
    runner = _start(study, out)
    said, _ = runner.communicate(timeout=LONGEST)
    if runner.returncode:
        raise BrokenPromiseError(f"the study ended with {runner.returncode}: {said.decode()}")


def _holders(jobs: list[Job]) -> list[int]:
    """Processes that hold a claim now: they train, evaluate or save."""
    claims = [newest_claim(job.training) for job in jobs]
    return [int(each.owner["pid"]) for each in claims if each.number and each.ended is None]


def _wait(condition: Callable[[], Any], runner: subprocess.Popen[bytes]) -> Any:
    """A true value, or None where the runner ended before."""
    end = time.monotonic() + LONGEST
    while not (value := condition()):
        if runner.poll() is not None:
            return None
        if time.monotonic() > end:
            raise BrokenPromiseError("nobody took the work within five minutes")
        time.sleep(0.005)
    return value


class Kills:
    """The attack; a case is a kill that hit somebody at work."""

    name = "kills"

    def trial(self, number: int) -> dict[str, int]:
        dice = random.Random(number)
        task = sorted(STUDIES)[number % len(STUDIES)]
        expected = _undisturbed(task)
        with tempfile.TemporaryDirectory() as folder:
            study, out = _study(task, Path(folder)), Path(folder) / "out"
            hits = sum(self._kill(study, out, dice) for _ in range(dice.choice([1, 1, 2, 3])))
            _finish(study, out)
            found = _metrics(_jobs(study, out))
        if found != expected:
            raise BrokenPromiseError(f"{task}, {hits} kills: {found}\ninstead of {expected}")
        return {task: hits}

    @staticmethod
    def _kill(study: Path, out: Path, dice: random.Random) -> int:
        """Start, wait for work, kill; 0 where it was finished before the blow."""
        runner, jobs = _start(study, out), _jobs(study, out)
        try:
            if not _wait(lambda: _holders(jobs), runner):
                return 0
            time.sleep(dice.uniform(0, 4))
            victims, hits = _holders(jobs), 0
            if victims and dice.random() < 0.5:  # a worker, and while it recovers the runner
                os.kill(dice.choice(victims), signal.SIGKILL)
                hits += 1
                time.sleep(dice.uniform(0, 3))
            return hits + int(runner.poll() is None and bool(_holders(jobs)))
        finally:
            if runner.poll() is None:
                os.killpg(runner.pid, signal.SIGKILL)
            runner.communicate()


KILLS = Kills()
