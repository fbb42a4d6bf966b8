"""Several studies on one page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sfumato.report.read import MethodResults, RunResult, StudyResults, read_study


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
    methods: list[MethodResults] = []
    for study, study_name in zip(studies, names, strict=True):
        for method in study.methods:
            _add(methods, method, study_name)
    return StudyResults(
        title=" + ".join(dict.fromkeys(study.title for study in studies)),
        study={name: study.study for name, study in zip(names, studies, strict=True)},
        methods=methods,
        environment={
            n: s.environment for n, s in zip(names, studies, strict=True) if s.environment
        },
        profiles={name: part for study in studies for name, part in study.profiles.items()},
    )


def baselines(methods: Sequence[MethodResults]) -> dict[str, MethodResults]:
    """For each method the first one on the same task and data, which it is compared with.

    Data are the same where they are called the same, or where the test images are as many, with
    the same labels: those of a loader have no name.
    """
    first: dict[str, MethodResults] = {}
    chosen = {}
    for method in methods:
        if method.runs:
            problems = _problems(method.runs[0])
            found = next((first[each] for each in problems if each in first), method)
            for problem in problems:
                first.setdefault(problem, found)
            chosen[method.name] = found
        elif methods:
            chosen[method.name] = methods[0]
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
    name, number = method.name, 1
    while name in taken:
        name = f"{method.name} ({study})" if number == 1 else f"{method.name} ({study} {number})"
        number += 1
    methods.append(MethodResults(name, method.runs, method.unfinished, method.failures))


def _joined(present: MethodResults, other: MethodResults) -> MethodResults:
    seeds = {run.seed for run in present.runs}
    runs: list[RunResult] = present.runs + [run for run in other.runs if run.seed not in seeds]
    done = {run.seed for run in runs}
    waiting = dict.fromkeys(s for s in present.unfinished + other.unfinished if s not in done)
    failures = {**other.failures, **present.failures}
    kept = {seed: why for seed, why in failures.items() if seed in waiting}
    return MethodResults(present.name, sorted(runs, key=lambda r: r.seed), list(waiting), kept)


def _same_recipe(first: MethodResults, second: MethodResults) -> bool:
    """Whether all but the seed is the same, as far as finished runs tell."""
    recipes = [
        {key: value for key, value in method.runs[0].config.items() if key != "seed"}
        for method in (first, second)
        if method.runs
    ]
    return len(recipes) < 2 or recipes[0] == recipes[1]


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name} {len(found) + 1}")
    return found
