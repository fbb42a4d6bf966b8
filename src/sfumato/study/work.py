"""What a worker does with a job, wherever the worker runs."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfumato.engine import run
from sfumato.study.claims import LostClaimError, claimed
from sfumato.study.config import PlannedRun
from sfumato.study.jobs import Job, run_directory

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


class StorageError(RuntimeError):
    """Results can't be written: the disk is full, or the folder is read-only."""


@dataclass(frozen=True)
class End:
    """How a job ended.

    `held`: somebody else has claimed it. `died`: its process is gone. `storage`: results can't
    be written, so that going on makes no sense.
    """

    status: Literal["finished", "failed", "held", "died", "storage"]
    reason: str = ""


def finish_job(job: Job, after: int, on_lost: Callable[[], object]) -> End:
    """Claim a job and bring its runs to their end; failures are recorded beside the runs.

    Args:
        job: what to do.
        after: number of the newest claim that the runner saw on the training.
        on_lost: stops this process's work where another process has taken over.
    """
    try:
        with claimed(job.training, after, on_lost=on_lost) as end_claim:
            end = _finish_runs(job)
            if end.status != "storage":
                end_claim("finished" if end.status == "finished" else "failed")
            return end
    except LostClaimError as error:
        return End("held", str(error))
    except OSError as error:
        return End("storage", storage_problem(error, job.root) or str(error))


def _finish_runs(job: Job) -> End:
    reasons = []
    for planned in job.waiting():
        try:
            run(planned.config, job.root, show=False)
        except Exception as error:  # whatever it was, the other runs go on
            problem = storage_problem(error, job.root)
            if problem is not None:
                return End("storage", problem)
            reasons.append(f"{type(error).__name__}: {error}")
            if job.logged_epochs() < job.epochs:  # without weights the others can't be evaluated
                record_failure(job, job.waiting(), traceback.format_exc())
                break
            record_failure(job, [planned], traceback.format_exc())
    return End("failed", reasons[0]) if reasons else End("finished")


def record_failure(job: Job, runs: Iterable[PlannedRun], trace: str) -> None:
    """Keep the reason beside runs that have no results."""
    for planned in runs:
        run_directory(planned, job.root).write_error(trace)


def storage_problem(error: BaseException, root: Path) -> str | None:
    """What to tell the user where an error, or one behind it, is the disk's; else None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            inside = _is_inside(seen.filename, root)
            if seen.errno in _FULL or (seen.errno in _DENIED and inside):
                return (
                    f"can't write results to {root}: {seen.strerror}. Free space or make the "
                    "folder writable, then give the same command again: finished runs are kept "
                    "and the interrupted ones go on."
                )
        seen = seen.__cause__ or seen.__context__
    return None


def _is_inside(filename: object, root: Path) -> bool:
    return isinstance(filename, str | Path) and Path(filename).is_relative_to(root)


def describe_exit(code: int | None) -> str:
    """Why a worker process is gone, in words."""
    if code is not None and code < 0:
        hint = ", as the system does where memory runs out" if code == -9 else ""
        return f"the worker process was ended by signal {-code}{hint}"
    return f"the worker process ended with status {code}"
