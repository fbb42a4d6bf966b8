"""Workers of a Ray cluster, which share the study's folder."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from sfumato._core.data_root import DATA_ROOT
from sfumato.engine import ConfigError
from sfumato.study.jobs import Job
from sfumato.study.work import End, Note
from sfumato.study.workers import LocalProcesses


class RayCluster:
    """Hands each job to a Ray task; Ray finds the machine, the claims keep the runs apart.

    A task takes the cores of its threads, for each of the run's CPU devices, and the run's
    graphics devices.
    A task whose worker dies is not retried by Ray but by the runner, which looks at the claim
    first.

    Args:
        address: as `ray.init` takes it; "auto" finds the cluster of this machine, "local" starts
            one in this process.
        threads: threads of each run, and of each of its processes.
    """

    def __init__(self, address: str, threads: int) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError(
                "--ray needs Ray, which is not installed: python3 -m pip install 'sfumato[ray]'"
            ) from None
        self._ray = ray
        self._began_here = not ray.is_initialized()
        if self._began_here:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError as error:
                raise ConfigError(
                    f"--ray {address}: no cluster answers ({error}). Start one with "
                    "'ray start --head' and join it with 'ray start --address=HOST:6379'."
                ) from None
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        self.threads = threads
        self._task = ray.remote(max_retries=0, max_calls=1)(_finish)
        self._jobs: dict[Any, Job] = {}

    def busy(self) -> int:
        return len(self._jobs)

    def submit(self, job: Job, after: int, *, cautious: bool = False) -> None:
        train = job.runs[0].config.train
        devices = train.devices if isinstance(train.devices, int) else 1
        graphics = train.accelerator in ("cuda", "gpu")
        task = self._task.options(
            num_cpus=self.threads * (1 if graphics else devices), num_gpus=graphics * devices
        )
        root = os.environ.get(DATA_ROOT)
        self._jobs[task.remote(job, after, self.threads, cautious, root)] = job

    def collect(self, timeout: float) -> list[tuple[Job, End | Note]]:
        if not self._jobs:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        found: list[tuple[Job, End | Note]] = []
        for reference in ready:
            job = self._jobs.pop(reference)
            found += [(job, news) for news in self._result(reference)]
        return found

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        if self._began_here:
            self._ray.shutdown()

    def _result(self, reference: Any) -> list[End | Note]:
        try:
            news: list[End | Note] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return [End("died", f"the Ray worker is gone ({type(error).__name__})")]
        return news


def _finish(
    job: Job, after: int, threads: int, cautious: bool, data_root: str | None
) -> list[End | Note]:
    """The task that a Ray worker runs: in a process beside it, since Ray tells no signal."""
    if data_root is not None:  # a cluster has the environment of those who started it
        os.environ[DATA_ROOT] = data_root
    worker = LocalProcesses(1, threads)
    try:
        worker.submit(job, after, cautious=cautious)
        news: list[End | Note] = []
        while worker.busy():
            news += [each for _, each in worker.collect(timeout=60)]
        return news
    finally:
        worker.close()
