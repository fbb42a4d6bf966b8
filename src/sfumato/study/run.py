"""Run a study: each planned run to its end, a failing one recorded while the others go on."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato._files import write_json
from sfumato.engine import RunConfig, RunDirectory, fingerprint, run
from sfumato.engine.progress import progress_bar
from sfumato.study.config import PlannedRun, StudyConfig, plan
from sfumato.study.profiles import write_profiles

Announce = Callable[[str], None]
_SECONDS_BETWEEN_LOOKS = 0.3


@dataclass(frozen=True)
class StudyOutcome:
    """Where the results are and which runs failed."""

    folder: Path
    failed: list[PlannedRun]


def run_study(
    study: StudyConfig,
    folder: Path,
    *,
    workers: int = 1,
    show: bool = True,
    announce: Announce = print,
) -> StudyOutcome:
    """Bring every run of the study to its end, in `folder/runs`; finished ones are kept.

    Args:
        study: the checked study.
        folder: where `study.json` and the runs go.
        workers: runs at a time, each in a process of its own with its share of the cores. Small
            networks train faster side by side than one after the other on all cores.
        show: whether to draw progress bars.
        announce: called with a line of text as each run begins or fails.
    """
    runs = plan(study)
    write_json(folder / "study.json", _index(study, runs))
    write_profiles(runs, folder)
    waiting = []
    for planned in runs:
        if _directory(planned, folder).finished:
            announce(f"{planned.method}, seed {planned.seed}: finished before")
        else:
            waiting.append(planned)
    finish = _one_by_one if workers == 1 or len(waiting) < 2 else _side_by_side
    failed = [
        planned
        for planned, error in finish(waiting, folder, workers, show, announce)
        if error is not None
    ]
    return StudyOutcome(folder, failed)


def default_workers() -> int:
    """One process for each core, up to four."""
    return min(4, os.cpu_count() or 1)


Ended = tuple[PlannedRun, str | None]


def _one_by_one(
    runs: Sequence[PlannedRun], folder: Path, workers: int, show: bool, announce: Announce
) -> Iterator[Ended]:
    for number, planned in enumerate(runs, start=1):
        announce(f"[{number}/{len(runs)}] {planned.method}, seed {planned.seed}: training")
        error = _execute(planned.config, folder, show)
        if error is not None:
            announce(f"    failed: {error}")
        yield planned, error


def _side_by_side(
    runs: Sequence[PlannedRun], folder: Path, workers: int, show: bool, announce: Announce
) -> Iterator[Ended]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    announce(f"{len(runs)} runs, {workers} at a time")
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(threads,),
    ) as pool:
        futures = {pool.submit(_execute, r.config, folder, False): r for r in runs}
        _watch(futures, folder, show)
        for future, planned in futures.items():
            error = future.result()
            if error is not None:
                announce(f"{planned.method}, seed {planned.seed} failed: {error}")
            yield planned, error


def _watch(futures: dict[Future[str | None], PlannedRun], folder: Path, show: bool) -> None:
    """Advance a bar by every epoch that any run has logged, until all runs have ended."""
    total = sum(planned.config.train.epochs for planned in futures.values())
    seen = 0
    with progress_bar("epochs of all runs", total, show=show) as bar:
        while True:
            done = sum(future.done() for future in futures)
            logged = sum(len(_directory(p, folder).log()) for p in futures.values())
            for _ in range(logged - seen):
                bar.advance(f"{done} of {len(futures)} runs done")
            seen = max(seen, logged)
            if done == len(futures):
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _execute(config: RunConfig, folder: Path, show: bool) -> str | None:
    """Run to the end; the reason where it failed, whose traceback is kept beside the run."""
    try:
        run(config, folder / "runs", show=show)
    except Exception as error:
        RunDirectory(folder / "runs" / fingerprint(config)).write_error(traceback.format_exc())
        return str(error)
    return None


def _directory(planned: PlannedRun, folder: Path) -> RunDirectory:
    return RunDirectory(folder / "runs" / fingerprint(planned.config))


def _index(study: StudyConfig, runs: list[PlannedRun]) -> dict[str, object]:
    return {
        "name": study.name,
        "title": study.title or study.name,
        "methods": list(study.methods),
        "runs": [
            {"method": each.method, "seed": each.seed, "run": fingerprint(each.config)}
            for each in runs
        ],
        "study": study.model_dump(mode="json"),
    }
