"""Audits of files of any size: speed against reading alone, memory, and two workers.

    python benchmarks/audit.py [--rows 10000000] [--repeats 5] [--folder FILES]

1. Rows per second of `sfumato audit`'s reading and summing up of a Parquet file of 10 classes in
   single precision, against `pyarrow` reading the same columns in the same batches and doing
   nothing with them. Both read in one thread; the audit sums up in another.
2. Peak memory of the process for files of 10^6 rows, ten times as many, ... and `--rows`.
3. Two worker processes against one, their start included. One worker reads in one thread and sums
   up in another, so that it has both cores of a small machine already; therefore also
4. one worker that has one core against two that have two, on as many rows, once they have started.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from harness import median_ratio, print_table, write_results
from pyarrow import parquet

from sfumato._core.text import Bar
from sfumato.auditing.columns import batch_rows
from sfumato.auditing.files import Reading
from sfumato.auditing.totals import Tallies, Wanted
from sfumato.auditing.workers import jobs_of, tally, tally_packed

CLASSES, GROUP, COPIES = 10, 250_000, 2
WANTED = Wanted(sample=True)  # as the command of one model has it


def write_file(path: Path, rows: int) -> None:
    """Probabilities of a model that is right in about four of five cases."""
    random_numbers = np.random.default_rng(0)
    names = [f"prob_{number}" for number in range(CLASSES)]
    fields = [arrow.field(name, arrow.float32()) for name in names]
    schema = arrow.schema([*fields, arrow.field("label", arrow.int64())])
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, GROUP):
            count = min(GROUP, rows - start)
            scores = 6 * random_numbers.normal(size=(count, CLASSES))
            probs = np.exp(scores - scores.max(1, keepdims=True))
            probs /= probs.sum(1, keepdims=True)
            label = (probs.cumsum(1) > random_numbers.random((count, 1))).argmax(1)
            columns = [*probs.astype(np.float32).T, label]
            writer.write_table(arrow.table(columns, schema=schema), row_group_size=GROUP)


def file_of(folder: Path, rows: int) -> Path:
    """The file of so many rows in a folder, written where it is not there."""
    path = folder / f"{rows}.parquet"
    if not path.is_file():
        write_file(path, rows)
    return path


def read_alone(path: Path) -> None:
    file = parquet.ParquetFile(path)
    for _ in file.iter_batches(batch_rows(CLASSES + 1), use_threads=False):
        pass


def audited(path: Path, workers: int = 1) -> None:
    tally(jobs_of([path]), Reading(), WANTED, workers=workers, bar=Bar())


def seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def compare(path: Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    """Reading alone, one worker and two, in turn."""
    calls: dict[str, Callable[[], None]] = {
        "pyarrow alone": lambda: read_alone(path),
        "audit, one worker": lambda: audited(path),
        "audit, two workers": lambda: audited(path, workers=2),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(seconds(call))
    base, one = found["pyarrow alone"], found["audit, one worker"]
    return [
        {
            "case": name,
            "rows": rows,
            "million rows/s": rows / sorted(taken)[len(taken) // 2] / 1e6,
            "of reading alone": 1 / median_ratio(taken, base),
            "of one worker": 1 / median_ratio(taken, one),
        }
        for name, taken in found.items()
    ]


def seconds_when_started(path: Path, workers: int) -> float:
    """Of workers that have summed up a job before, and so have imported what they need.

    The file is read twice, as two files: the last job, that one worker does alone, counts for less.
    """
    jobs, total = jobs_of([path] * COPIES), Tallies(WANTED)
    run = partial(tally_packed, reading=Reading(), wanted=WANTED)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(run, jobs[:1] * 2 * workers))
        began = time.perf_counter()
        for part in pool.map(run, jobs):
            total.merge(pickle.loads(part))
        return time.perf_counter() - began


def by_cores(path: Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    """One worker with one core, two with two, in turn."""
    cores = sorted(os.sched_getaffinity(0))
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for workers, taken in found.items():
            command = [sys.executable, __file__, "--time-of", str(path), str(workers)]
            pin = partial(os.sched_setaffinity, 0, cores[:workers])
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, preexec_fn=pin
            )
            taken.append(float(done.stdout))
    return [
        {
            "case": f"audit, {workers} started on as many cores",
            "rows": COPIES * rows,
            "million rows/s": COPIES * rows / sorted(taken)[len(taken) // 2] / 1e6,
            "of one worker": 1 / median_ratio(taken, found[1]),
        }
        for workers, taken in found.items()
    ]


def peak_memory(path: Path, rows: int) -> dict[str, Any]:
    """Peak of a process that audits the file and does nothing else."""
    command = [sys.executable, __file__, "--memory-of", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"case": "peak memory", "rows": rows, "MB": float(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the files there, and take those that are")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--time-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time_of is not None:
        print(seconds_when_started(Path(options.time_of[0]), int(options.time_of[1])))
        return
    if options.memory_of is not None:
        audited(options.memory_of)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as own:
        folder = options.folder or Path(own)
        sizes = [10**power for power in range(6, 12) if 10**power < options.rows]
        paths = {rows: file_of(folder, rows) for rows in [*sizes, options.rows]}
        memory = [peak_memory(path, rows) for rows, path in paths.items()]
        path = paths[options.rows]
        speed = compare(path, options.rows, options.repeats)
        cores = by_cores(path, options.rows, options.repeats)
    for part in (speed, cores, memory):
        print_table(part)
    print("written to", write_results("audit", [*speed, *cores, *memory]))


if __name__ == "__main__":
    main()
