"""Studies of a second or two, one for each task, which the campaign disturbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sfumato.study import load_study, plan
from sfumato.study.jobs import Job, group_jobs, run_directory

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


def write_study(task: str, folder: Path) -> Path:
    """The file of a study of this task."""
    path = folder / f"{task}.yaml"
    content = {"name": task, "recipe": RECIPES[task], "methods": STUDIES[task]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def jobs_of(study: Path, out: Path) -> list[Job]:
    return group_jobs(plan(load_study(study)), out / "runs")


def results_of(jobs: list[Job]) -> list[dict[str, Any]]:
    """Every number that the runs of these jobs have measured."""
    return [run_directory(run, job.root).metrics() for job in jobs for run in job.runs]
