"""Read the result files of one study or several into plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._core.files import (
    UnreadableFileError,
    last_line,
    plain_name,
    read_arrays,
    read_json,
    read_json_lines,
)
from sfumato._core.yaml_files import read_yaml


@dataclass(frozen=True)
class RunResult:
    """One finished run; `samples` are its most overconfident mistakes, `cost` what it took.

    `replicates` has metrics of resamples of the test images by column; runs of older versions have
    none.
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
def naming_folders(folders: Sequence[Path]) -> Iterator[None]:
    """Say which folder's results can't be shown, where they hold something else than we write.

    Files from others may be well-formed and still lack a number or have a word in its place. What
    reads them is one command, so one place turns whatever that does into a message.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        names = ", ".join(map(str, folders))
        raise UnreadableFileError(
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
    index = read_json(index_file, within=folder)
    methods = {name: MethodResults(name) for name in index["methods"]}
    for entry in index["runs"]:
        method = methods[entry["method"]]
        path = folder / "runs" / plain_name(entry["run"], index_file)
        if (path / "metrics.json").exists():
            method.runs.append(_read_run(path, entry["seed"], folder))
            continue
        method.unfinished.append(entry["seed"])
        if (path / "error.txt").exists():
            method.failures[entry["seed"]] = last_line(path / "error.txt", within=folder)
    parts = (_optional(folder / f"{name}.json", folder) for name in ("environment", "profiles"))
    return StudyResults(index["title"], index["study"], list(methods.values()), *parts)


def _study_of_one(folder: Path) -> StudyResults:
    name = folder.absolute().name
    seed = read_yaml(folder / "config.yaml", within=folder).get("seed", 0)
    run = _read_run(folder, seed, folder)
    study = {"name": name, "recipe": run.config}
    environment = _optional(folder / "environment.json", folder)
    return StudyResults(name, study, [MethodResults(name, [run])], environment)


def _read_run(path: Path, seed: int, folder: Path) -> RunResult:
    """The results in `path`, whose files must be in `folder`, also where they are links."""
    log, replicates = path / "log.jsonl", path / "replicates.npz"
    return RunResult(
        seed=seed,
        metrics=read_json(path / "metrics.json", within=folder),
        config=read_yaml(path / "config.yaml", within=folder),
        log=read_json_lines(log, within=folder) if log.exists() else [],
        samples=_optional(path / "samples.json", folder).get("samples", []),
        cost=_optional(path / "cost.json", folder),
        replicates=read_arrays(replicates, within=folder) if replicates.exists() else {},
    )


def _optional(path: Path, folder: Path) -> dict[str, Any]:
    content = read_json(path, within=folder) if path.exists() else {}
    return content if isinstance(content, dict) else {}


def read_studies(folders: Sequence[str | Path]) -> StudyResults:
    """The results of all folders as one study; one folder is read as it is.

    A method of the same name and configuration in two studies is one method with the seeds of
    both. A method of the same name and another configuration keeps its study's name in brackets.
    """
    if isinstance(folders, str | Path) or not folders:
        raise ValueError(f"folders must be a list of at least one study's folder, got {folders!r}")
    studies = [read_study(folder) for folder in folders]
    if len(studies) == 1:
        return studies[0]
    names = _distinct([str(s.study.get("name") or s.title) for s in studies])
    named = list(zip(names, studies, strict=True))
    methods: list[MethodResults] = []
    for name, study in named:
        for method in study.methods:
            _add(methods, method, name)
    return StudyResults(
        title=" + ".join(dict.fromkeys(study.title for study in studies)),
        study={name: study.study for name, study in named},
        methods=methods,
        environment={name: s.environment for name, s in named if s.environment},
        profiles={name: part for study in studies for name, part in study.profiles.items()},
    )


def baselines(methods: Sequence[MethodResults]) -> dict[str, MethodResults]:
    """Baseline of each method: the first one on the same task and data.

    Data are the same where they are called the same, or where the test images are as many, with
    the same labels: those of a loader have no name.
    """
    first: dict[str, MethodResults] = {}
    chosen = {}
    for method in methods:
        problems = _problems(method.runs[0]) if method.runs else []
        found = next((first[each] for each in problems if each in first), method)
        first.update({problem: found for problem in problems if problem not in first})
        chosen[method.name] = found if method.runs else methods[0]
    return chosen


def _problems(run: RunResult) -> list[str]:
    """The task with its data, by their name and by their test images."""
    task, units = run.config.get("task"), run.replicates.get("test.units")
    named = json.dumps([task, run.config.get("data")], sort_keys=True)
    return [named] if units is None else [named, json.dumps([task, str(units)])]


def _add(methods: list[MethodResults], method: MethodResults, study: str) -> None:
    for place, present in enumerate(methods):
        if present.name == method.name and _same_recipe(present, method):
            methods[place] = _joined(present, method)
            return
    taken = {present.name for present in methods}
    marks = ("", f" ({study})", *(f" ({study} {number})" for number in range(2, len(taken) + 2)))
    name = next(name for mark in marks if (name := f"{method.name}{mark}") not in taken)
    methods.append(replace(method, name=name))


def _joined(present: MethodResults, other: MethodResults) -> MethodResults:
    seeds = {run.seed for run in present.runs}
    runs: list[RunResult] = present.runs + [run for run in other.runs if run.seed not in seeds]
    done = {run.seed for run in runs}
    waiting = dict.fromkeys(s for s in present.unfinished + other.unfinished if s not in done)
    failures = {**other.failures, **present.failures}
    kept = {seed: why for seed, why in failures.items() if seed in waiting}
    return MethodResults(present.name, sorted(runs, key=lambda r: r.seed), list(waiting), kept)


def _same_recipe(*methods: MethodResults) -> bool:
    """True if all but the seed is the same, as far as finished runs tell."""
    recipes = [{**method.runs[0].config, "seed": None} for method in methods if method.runs]
    return len(recipes) < 2 or recipes[0] == recipes[1]


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name} {len(found) + 1}")
    return found


_SPLIT, _DAMAGED = "scaled", "corrupted"
_CLASSES = "test.accuracy"  # a temperature never changes the predicted classes


def after_temperature(method: MethodResults) -> MethodResults | None:
    """The same runs, each measured after the temperature that it fitted; None where some did not.

    Example:
        >>> metrics = {"test": {"accuracy": 0.8, "nll": 0.7}, "scaled": {"nll": 0.6}}
        >>> plain = MethodResults("plain", [RunResult(0, metrics, {}, [])])
        >>> after_temperature(plain).runs[0].metrics
        {'test': {'accuracy': 0.8, 'nll': 0.6}}
    """
    if not method.runs or any(_SPLIT not in run.metrics for run in method.runs):
        return None
    name = f"{method.name}, temperature"
    return MethodResults(name, [_scaled(run) for run in method.runs])


def with_temperature(results: StudyResults) -> StudyResults:
    """The same results; the first method after a temperature stands behind it, where known."""
    first, *others = results.methods
    scaled = after_temperature(first)
    return results if scaled is None else replace(results, methods=[first, scaled, *others])


def _scaled(run: RunResult) -> RunResult:
    found = run.metrics[_SPLIT]
    measured = {key: value for key, value in found.items() if not isinstance(value, Mapping)}
    measured.pop("temperature", None)
    metrics = {"test": {"accuracy": run.metrics["test"]["accuracy"], **measured}}
    if _DAMAGED in found:
        metrics[_DAMAGED] = found[_DAMAGED]
    splits = {_SPLIT: "test", f"{_SPLIT}.{_DAMAGED}": _DAMAGED}
    draws = {key: values for key, values in run.replicates.items() if key == _CLASSES}
    for key, values in run.replicates.items():
        split, _, name = key.rpartition(".")
        if split in splits:
            draws[f"{splits[split]}.{name}"] = values
    return replace(run, metrics=metrics, replicates=draws)
