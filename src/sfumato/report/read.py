"""Read a study's result files into plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato._files import read_json, read_yaml


@dataclass(frozen=True)
class RunResult:
    """One finished run."""

    seed: int
    metrics: dict[str, Any]
    config: dict[str, Any]
    log: list[dict[str, Any]]


@dataclass(frozen=True)
class MethodResults:
    """All finished runs of one method, and the seeds whose runs did not finish."""

    name: str
    runs: list[RunResult] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StudyResults:
    """A study as it stands on disk."""

    title: str
    study: dict[str, Any]
    methods: list[MethodResults]


def read_study(folder: Path) -> StudyResults:
    """The results in `folder`, which `sfumato run` or `sfumato quickstart` wrote."""
    index_file = folder / "study.json"
    if not index_file.exists():
        raise FileNotFoundError(
            f"{folder} holds no study.json: pass the folder that 'sfumato run' wrote"
        )
    index = read_json(index_file)
    methods = {name: MethodResults(name) for name in index["methods"]}
    for entry in index["runs"]:
        method, path = methods[entry["method"]], folder / "runs" / entry["run"]
        if (path / "metrics.json").exists():
            method.runs.append(_read_run(path, entry["seed"]))
        else:
            method.unfinished.append(entry["seed"])
    return StudyResults(index["title"], index["study"], list(methods.values()))


def _read_run(path: Path, seed: int) -> RunResult:
    lines = (path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return RunResult(
        seed=seed,
        metrics=read_json(path / "metrics.json"),
        config=read_yaml(path / "config.yaml"),
        log=[json.loads(line) for line in lines],
    )
