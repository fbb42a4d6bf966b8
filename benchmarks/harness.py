"""What every benchmark shares: interleaved timing, machine facts, one form of result file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 20,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call, all of them in turn, so that a slow moment hits all alike.

    On a busy machine `time.thread_time` with one thread counts what the call itself needs.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = clock()
            call()
            seconds[name].append(clock() - began)
    return seconds


def median_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)


def spread_ms(seconds: list[float]) -> float:
    """Interquartile range."""
    low, _, high = statistics.quantiles(seconds, n=4)
    return 1e3 * (high - low)


def median_ratio(seconds: list[float], base: list[float]) -> float:
    """Median of the ratios within a round: what was measured side by side is compared."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
    }


def write_results(topic: str, rows: list[dict[str, Any]]) -> Path:
    """`benchmarks/results/<topic>.json`: the machine and one row per case."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{topic}.json"
    path.write_text(json.dumps({"machine": machine_facts(), "rows": rows}, indent=2) + "\n")
    return path


def print_table(rows: list[dict[str, Any]]) -> None:
    """Rows of plain values as aligned columns; floats with three significant digits."""
    columns = list(rows[0])
    cells = [
        [f"{r[c]:.3g}" if isinstance(r[c], float) else str(r[c]) for c in columns] for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
