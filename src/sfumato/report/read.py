"""Read a study's result files into plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._core.files import (
    DamagedFileError,
    read_arrays,
    read_json,
    read_json_lines,
)
from sfumato._core.yaml_files import read_yaml


@dataclass(frozen=True)
class RunResult:
    """One finished run; `samples` are its most overconfident mistakes, `cost` what it took.

    `replicates` are metrics of resamples of the test images by column, as `replicates.npz` has
    them; empty for runs of older versions.
    """

    seed: int
    metrics: dict[str, Any]
    config: dict[str, Any]
    log: list[dict[str, Any]]
    samples: list[dict[str, Any]] = field(default_factory=list)
    cost: dict[str, Any] = field(default_factory=dict)
    replicates: dict[str, np.ndarray] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class MethodResults:
    """All finished runs of one method, the seeds whose runs did not finish, and why some failed."""

    name: str
    runs: list[RunResult] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyResults:
    """A study as it stands on disk; `environment` and `profiles` are empty where not recorded."""

    title: str
    study: dict[str, Any]
    methods: list[MethodResults]
    environment: dict[str, Any] = field(default_factory=dict)
    profiles: dict[str, Any] = field(default_factory=dict)


@contextmanager
def understood(folders: Sequence[Path]) -> Iterator[None]:
    """Say which folder's results can't be shown, where they hold something else than we write.

    Files from others may be well-formed and still lack a number or have a word in its place. What
    reads them is one command, so one place turns whatever that does into a message.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        names = ", ".join(map(str, folders))
        raise DamagedFileError(
            f"{names}: the results hold something else than Sfumato writes "
            f"({type(error).__name__}: {error}). They were changed, or another version wrote them: "
            "give 'sfumato run' again in a new folder."
        ) from error


def read_study(folder: str | Path) -> StudyResults:
    """The results in `folder`, which `sfumato run` or `sfumato quickstart` wrote.

    The directory of one run, as `sfumato.evaluate` writes it, is a study of one method with the
    directory's name.
    """
    folder = Path(folder)
    index_file = folder / "study.json"
    if not index_file.exists() and (folder / "metrics.json").exists():
        return _study_of_one(folder)
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
            continue
        method.unfinished.append(entry["seed"])
        if (path / "error.txt").exists():
            method.failures[entry["seed"]] = _last_line(path / "error.txt")
    return StudyResults(
        index["title"],
        index["study"],
        list(methods.values()),
        environment=_optional(folder / "environment.json"),
        profiles=_optional(folder / "profiles.json"),
    )


def _study_of_one(folder: Path) -> StudyResults:
    name = folder.absolute().name
    run = _read_run(folder, read_yaml(folder / "config.yaml").get("seed", 0))
    return StudyResults(
        name,
        {"name": name, "recipe": run.config},
        [MethodResults(name, [run])],
        environment=_optional(folder / "environment.json"),
    )


def _read_run(path: Path, seed: int) -> RunResult:
    return RunResult(
        seed=seed,
        metrics=read_json(path / "metrics.json"),
        config=read_yaml(path / "config.yaml"),
        log=_read_log(path / "log.jsonl"),
        samples=_optional(path / "samples.json").get("samples", []),
        cost=_optional(path / "cost.json"),
        replicates=_read_replicates(path / "replicates.npz"),
    )


def _read_replicates(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(path) if path.exists() else {}


def _read_log(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return read_json_lines(path)


def _optional(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.exists() else {}
    return content if isinstance(content, dict) else {}


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason recorded"
