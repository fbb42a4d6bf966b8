"""How long a study will take: each of its methods is rehearsed, in a process like a worker's."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import torch

from sfumato.engine import RunConfig, content_hash
from sfumato.engine.tasks.rehearsal import Costs, Rehearsal


@dataclass
class Probe:
    """Rehearses runs, each once whatever its seed, and writes nothing into the study.

    A process of its own has the threads of a worker, gives the time that one takes to start, and
    may crash without harm.

    Args:
        active: False gives None for every run.
        threads: of a worker.

    Attributes:
        start_up: seconds that a worker takes before its first run.
    """

    active: bool = True
    threads: int = 1
    start_up: float = 0.0
    _costs: dict[str, Costs | None] = field(default_factory=dict)
    _pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def costs(self, config: RunConfig) -> Costs | None:
        """What a run costs; None where that is not asked for, or where it can't be run."""
        if not self.active:
            return None
        name = content_hash(config.model_dump(mode="json", exclude={"seed"}))
        if name not in self._costs:
            self._costs[name] = self._rehearsed(config)
        return self._costs[name]

    def _rehearsed(self, config: RunConfig) -> Costs | None:
        try:
            if self._pool is None:
                began = time.perf_counter()
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, context)
                self._pool.submit(torch.set_num_threads, self.threads).result()
                self.start_up = time.perf_counter() - began
            return self._pool.submit(_rehearse, config).result()
        except Exception:  # the run itself will say what is wrong, and record it
            return None


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of some jobs ends that are begun in order, as soon as a worker is free.

    Example:
        >>> makespan([3.0, 1.0, 1.0, 4.0], workers=2)
        6.0
    """
    free = [0.0] * max(1, workers)
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free)


@cache
def _rehearsal() -> Rehearsal:
    return Rehearsal()


def _rehearse(config: RunConfig) -> Costs:
    return _rehearsal().costs(config)
