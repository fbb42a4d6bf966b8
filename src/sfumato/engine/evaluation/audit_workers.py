"""Tallies of files of any size: job by job, in this process, in several, or on a Ray cluster.

A job is a file, or some row groups of a Parquet file. Jobs are summed up anywhere and merged in
their order, so that the numbers don't depend on who did what.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.engine.evaluation.audit_tallies import NOTHING_MORE, Tallies, Wanted
from sfumato.engine.runs.prediction_files import PredictionFileError, Reading, read_batches
from sfumato.engine.runs.prediction_formats import open_parquet
from sfumato.engine.runs.prediction_rows import AnyPredictions
from sfumato.engine.runs.progress import Bar

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

    Args:
        jobs: from `jobs_of`.
        reading: how the files are read.
        wanted: what is summed up beside the rest.
        workers: processes on this machine.
        ray: address of a Ray cluster, "auto" for that of this machine; its machines must see the
            files under the same paths.
        bar: moved by one for each job.
    """
    total = Tallies(wanted)
    run = partial(tally_job, reading=reading, wanted=wanted)
    for job, part in zip(jobs, _results(run, jobs, workers, ray), strict=True):
        total.merge(part)
        bar.advance(job.path.name)
    return total


def tally_job(job: Job, reading: Reading, wanted: Wanted = NOTHING_MORE) -> Tallies:
    """The tallies of one job."""
    import torch

    torch.set_num_threads(1)  # many small sums: threads would wait for each other, busily
    found = Tallies(wanted)
    for part in _ahead(read_batches(job.path, reading, found.skipped, job.groups)):
        found.add(part, job.number)
    return found


def tally_packed(job: Job, reading: Reading, wanted: Wanted = NOTHING_MORE) -> bytes:
    """`tally_job` as bytes: tensors that travel between processes are fetched one by one, and the
    process that sums up would wait for it.
    """
    return pickle.dumps(tally_job(job, reading, wanted), protocol=pickle.HIGHEST_PROTOCOL)


def _ahead(parts: Iterator[AnyPredictions]) -> Iterator[AnyPredictions]:
    """The same parts; while one is summed up, a thread reads the next."""
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
    try:
        import ray
    except ImportError:
        raise PredictionFileError(
            "--ray needs Ray, which is not installed: python3 -m pip install 'sfumato[ray]'"
        ) from None
    began_here = not ray.is_initialized()
    if began_here:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise PredictionFileError(
                f"--ray {address}: no cluster answers ({error}). Start one with "
                "'ray start --head' and join it with 'ray start --address=HOST:6379'."
            ) from None
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
    finally:
        if began_here:
            ray.shutdown()


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
