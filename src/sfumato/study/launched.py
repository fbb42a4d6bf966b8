"""A study inside torchrun or srun, where every process of one run is started from outside."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from sfumato.engine import ConfigError, run
from sfumato.study.claims import Observer, claimed, newest_claim
from sfumato.study.jobs import Job
from sfumato.study.work import record_failure


def launched_rank() -> int | None:
    """This process's number where torchrun or srun started several; None where it is alone."""
    for marker, size, rank in (
        ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK"),
        ("SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_PROCID"),
    ):
        if marker in os.environ and int(os.environ.get(size, "1")) > 1:
            return int(os.environ[rank])
    return None


def run_together(
    jobs: Sequence[Job], rank: int, announce: Callable[[str], None], threads: int | None = None
) -> None:
    """Bring jobs to their end one after the other, all processes working on the same run.

    A failing run ends the command, because the other processes can't know of the failure; it is
    recorded, and what was finished is kept. Each process has the threads that its launcher gave
    it, unless `threads` says otherwise.

    Raises:
        ConfigError: another runner works on one of the jobs.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    for job in jobs:
        with ExitStack() as stack:
            if rank == 0:
                claim = newest_claim(job.training)
                if Observer().held(job.training, claim):
                    raise ConfigError(f"{job.name}: under way on {claim.holder}")
                announce(f"{job.name}: training, all processes together")
                end = stack.enter_context(
                    claimed(job.training, claim.number, on_lost=lambda: os._exit(1))
                )
            try:
                for planned in job.waiting():
                    run(planned.config, job.root, show=False)
            except Exception:
                if rank == 0:
                    record_failure(job, job.waiting(), traceback.format_exc())
                raise
            if rank == 0:
                end("finished")
