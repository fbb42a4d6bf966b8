"""Read the models of an audit: into memory, or as totals in one process or several."""

from __future__ import annotations

import glob
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sfumato._core.files import open_arrays, open_file, read_json
from sfumato._core.ray_cluster import ray_cluster
from sfumato._core.text import Bar
from sfumato.auditing.columns import TOLD, PredictionFileError, open_parquet
from sfumato.auditing.files import (
    FORMATS,
    AnyPredictions,
    Reading,
    calibrated,
    joined,
    layout_of,
    merged,
    read_batches,
    stored_predictions,
)
from sfumato.auditing.totals import NOTHING_MORE, Model, Tallies, Wanted, tallies_of_histogram

# Beyond this a model is known by its sums; below, its rows stay in memory and numbers are exact.
LARGEST_IN_MEMORY = 2**29
# What an exact audit keeps of a row beside its scores: ranks, bins, resamples, held-out halves.
_BYTES_PER_ROW = 128
_TEXT = (".csv", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class Source:
    """The predictions of one model: its files, and how the user named them."""

    name: str
    paths: tuple[Path, ...]
    arguments: tuple[str, ...]

    def bytes(self) -> int:
        """Size of what the files hold, unpacked where that is known, and of what rows need."""
        return sum(_bytes(path) for path in self.paths)


def find_sources(
    arguments: Sequence[str], *, merge: bool = False, split: str = "test"
) -> list[Source]:
    """One model for each argument: a file, a pattern, a folder of files, or that of a run.

    With `merge` all of them are the parts of one model; `split` is that of a run's predictions.
    """
    found = [_source(argument, split) for argument in arguments]
    if merge and found:
        paths = tuple(path for source in found for path in source.paths)
        return [Source(found[0].name, paths, tuple(arguments))]
    return found


def _source(argument: str, split: str) -> Source:
    path = Path(argument)
    if path.is_dir():
        paths = _in_folder(path, split)
    elif argument.partition("=")[0] in TOLD and "=" in argument and not path.exists():
        raise PredictionFileError(
            f"{argument}: no such file; quote all that belongs to --columns: "
            "--columns 'label=truth probs=cat,dog'"
        )
    elif path.exists() or not glob.has_magic(argument):
        paths = [path]
    else:
        paths = sorted(Path(each) for each in glob.glob(argument, recursive=True))
        if not paths:
            raise PredictionFileError(f"{argument}: no file has such a name")
    name = path.name if path.is_dir() else paths[0].stem
    return Source(name, tuple(paths), (argument,))


def _in_folder(path: Path, split: str) -> list[Path]:
    if (path / "predictions").is_dir():
        return [stored_predictions(path, split)]
    if (path / "metrics.json").is_file():
        return [path]  # a run that kept a histogram only
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in FORMATS)
    # Beside other files of predictions those of torch.save are weights.
    found = [each for each in found if each.suffix.lower() not in (".pt", ".pth")] or found
    if not found:
        raise PredictionFileError(
            f"{path}: holds no predictions; known are {', '.join(FORMATS)} and folders of runs"
        )
    return found


def _bytes(path: Path) -> int:
    if path.is_dir():
        return 0
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    if path.suffix.lower() == ".parquet":
        facts = open_parquet(path).metadata
        groups = (facts.row_group(at).total_byte_size for at in range(facts.num_row_groups))
        return sum(groups) + _BYTES_PER_ROW * facts.num_rows
    size = path.stat().st_size
    if path.suffix.lower() in _TEXT and size:
        with open_file(path) as file:
            start = file.read(2**16)
        size += _BYTES_PER_ROW * (size * start.count(b"\n") // len(start))
    return size


_NAMES = ("counts", "correct", "confidence")


def read_histogram(path: Path) -> Tallies | None:
    """The tallies of a histogram file, or of a run that kept one; None for any other file."""
    if path.is_dir():
        return _of_run(path)
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    try:
        with open_arrays(path) as content:
            if not set(_NAMES) <= set(content.files):
                return None
            arrays = [torch.from_numpy(content[name].astype(np.float64)) for name in _NAMES]
    except Exception:
        return None  # broken: whoever reads files of predictions says how
    return tallies_of_histogram(str(path), *arrays)


def _of_run(path: Path) -> Tallies | None:
    """A segmentation run keeps no predictions, but the bins of its reliability diagram."""
    metrics = path / "metrics.json"
    if (path / "predictions").is_dir() or not metrics.is_file():
        return None
    try:
        bins = read_json(metrics, within=path)["test"]["reliability"]
        counts = torch.tensor(bins["counts"], dtype=torch.float64)
        shares = [[each or 0.0 for each in bins[key]] for key in ("accuracy", "confidence")]
    except (ValueError, KeyError, TypeError):
        return None
    accuracy, confidence = (torch.tensor(each, dtype=torch.float64) for each in shares)
    hits = (counts * accuracy).round()
    return tallies_of_histogram(str(metrics), counts, hits, counts * confidence)


ROWS_PER_JOB = 1_000_000


class Job(NamedTuple):
    """A file, the one with this `number` of its model, or some row groups of it."""

    path: Path
    groups: list[int] | None = None
    number: int = 0


def jobs_of(paths: Sequence[Path]) -> list[Job]:
    """Row groups of Parquet files, about a million rows at a time; other files as a whole."""
    return [job for number, path in enumerate(paths) for job in _jobs(path, number)]


def tally(
    jobs: Sequence[Job],
    reading: Reading,
    wanted: Wanted = NOTHING_MORE,
    *,
    workers: int = 1,
    ray: str | None = None,
    bar: Bar,
) -> Tallies:
    """Everything an audit needs of all jobs, in memory that doesn't grow with them.

    `ray` is the address of a cluster, whose machines must see the files under the same paths.
    """
    total = Tallies(wanted)
    run = partial(tally_job, reading=reading, wanted=wanted)
    for job, part in zip(jobs, _results(run, jobs, workers, ray), strict=True):
        total.merge(part)
        bar.advance(job.path.name)
    return total


def tally_job(job: Job, reading: Reading, wanted: Wanted = NOTHING_MORE) -> Tallies:
    """The tallies of one job."""
    torch.set_num_threads(1)  # many small sums: threads would wait for each other, busily
    found = Tallies(wanted)
    for part in _ahead(read_batches(job.path, reading, found.skipped, job.groups)):
        found.add(part, job.number)
    return found


def tally_packed(job: Job, reading: Reading, wanted: Wanted = NOTHING_MORE) -> bytes:
    """`tally_job` as bytes: tensors that travel between processes are fetched one by one, and the
    process that accumulates would wait for it.
    """
    return pickle.dumps(tally_job(job, reading, wanted), protocol=pickle.HIGHEST_PROTOCOL)


def _ahead(parts: Iterator[AnyPredictions]) -> Iterator[AnyPredictions]:
    """The same parts; while one is accumulated, a thread reads the next."""
    coming = _reader().submit(next, parts, None)
    while (part := coming.result()) is not None:
        coming = _reader().submit(next, parts, None)
        yield part


@cache
def _reader() -> ThreadPoolExecutor:
    """One thread for all jobs of a process: each new one would keep memory of its own."""
    return ThreadPoolExecutor(1)


def _results(run: Any, jobs: Sequence[Job], workers: int, ray: str | None) -> Iterator[Tallies]:
    if ray is not None:
        yield from _on_ray(run, jobs, ray)
    elif workers > 1 and len(jobs) > 1:
        try:
            packed = partial(tally_packed, **run.keywords)
            with ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn")) as pool:
                yield from map(pickle.loads, pool.map(packed, jobs))
        except BrokenProcessPool:
            raise PredictionFileError(
                "a process of --workers was ended from outside, by a lack of memory perhaps; take "
                "fewer workers"
            ) from None
    else:
        yield from map(run, jobs)


def _on_ray(run: Any, jobs: Sequence[Job], address: str) -> Iterator[Tallies]:
    with ray_cluster(address, PredictionFileError) as ray:
        try:
            task = ray.remote(run.func)
            ahead = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            waiting = [task.remote(job, **run.keywords) for job in jobs[:ahead]]
            for place in range(len(jobs)):
                yield ray.get(waiting[place])
                waiting[place] = None
                if len(waiting) < len(jobs):
                    waiting.append(task.remote(jobs[len(waiting)], **run.keywords))
        except ray.exceptions.RayTaskError as error:
            raise PredictionFileError(str(error.cause)) from None


def _jobs(path: Path, number: int) -> Iterator[Job]:
    if path.suffix.lower() != ".parquet":
        yield Job(path, None, number)
        return
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    facts = open_parquet(path).metadata
    groups: list[int] = []
    rows = 0
    for at in range(facts.num_row_groups):
        groups.append(at)
        rows += facts.row_group(at).num_rows
        if rows >= ROWS_PER_JOB or at == facts.num_row_groups - 1:
            yield Job(path, groups, number)
            groups, rows = [], 0
    if not facts.num_row_groups:
        yield Job(path, None, number)


@dataclass(frozen=True)
class Plan:
    """Plan of reading a model: by these jobs, or whole where there are none."""

    source: Source
    jobs: tuple[Job, ...] = ()
    wanted: Wanted = NOTHING_MORE

    @property
    def steps(self) -> int:
        """Number of times that reading it moves the bar."""
        return len(self.jobs) or len(self.source.paths)


def plan_reading(
    sources: Sequence[Source],
    *,
    per_class: bool = False,
    unlabelled: bool = False,
    workers: int = 1,
    ray: str | None = None,
) -> list[Plan]:
    """Rows in memory where those of every model fit and one process reads them; else totals."""
    if unlabelled:
        return [Plan(source, tuple(jobs_of(source.paths))) for source in sources]
    fit = all(source.bytes() <= LARGEST_IN_MEMORY for source in sources)
    if workers == 1 and ray is None and fit:
        return [Plan(source) for source in sources]
    wanted = Wanted(sample=True, per_class=per_class, blocks=len(sources) > 1)
    return [Plan(source, tuple(jobs_of(source.paths)), wanted) for source in sources]


def read_source(
    plan: Plan, reading: Reading, *, workers: int = 1, ray: str | None = None, bar: Bar
) -> AnyPredictions | Model:
    """The predictions of a model, or what an audit needs of them."""
    source = plan.source
    counted = read_histogram(source.paths[0]) if len(source.paths) == 1 else None
    if counted is not None:
        where = f"{source.paths[0]}: is a histogram"
        if reading.unlabelled:
            raise PredictionFileError(f"{where} that counts right ones: leave --unlabelled out")
        if reading.calibrator is not None:
            raise PredictionFileError(f"{where}, which a calibrator can't correct: leave it out")
        bar.advance(source.name)
        return Model(source.name, counted)
    if plan.jobs:
        if len(source.paths) > 1:
            first = next(read_batches(source.paths[0], replace(reading, calibrator=None)))
            reading = replace(reading, like=layout_of(first))
        tallies = tally(plan.jobs, reading, plan.wanted, workers=workers, ray=ray, bar=bar)
        suffix = "" if reading.calibrator is None else ", calibrated"
        return Model(f"{source.name}{suffix}", tallies)
    files, skipped, calibrator = [], Counter[str](), reading.calibrator
    reading = replace(reading, calibrator=None)  # parts are alike before it
    for path in source.paths:
        files.append(joined(list(read_batches(path, reading, skipped))))
        reading = replace(reading, like=reading.like or layout_of(files[0]))
        bar.advance(path.name)
    whole = merged(files, source.name, dict(skipped))
    return whole if calibrator is None else calibrated(whole, calibrator)
