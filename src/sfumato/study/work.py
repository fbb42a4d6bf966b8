"""What a worker does with a job, wherever the worker runs."""

from __future__ import annotations

import errno
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.multiprocessing import ProcessExitedException

from sfumato._core.files import DamageWarning, read_json, read_unless_damaged, write_json
from sfumato.engine import run
from sfumato.engine.config.weight_files import NewHeadWarning
from sfumato.study.claims import LostClaimError, claimed
from sfumato.study.config import PlannedRun
from sfumato.study.jobs import Job, run_directory
from sfumato.study.machine import CRASH_SIGNALS, conservative_environment

_TOLD = (DamageWarning, NewHeadWarning)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


class StorageError(RuntimeError):
    """Results can't be written: the disk is full, or the folder is read-only."""


@dataclass(frozen=True)
class End:
    """How a job ended.

    `held`: somebody else has claimed it. `died`: its process is gone, with an exit code where
    that is known (the negative number of a signal). `storage`: results can't be written, so that
    going on makes no sense.
    """

    status: Literal["finished", "failed", "held", "died", "storage"]
    reason: str = ""
    exit_code: int | None = None

    @property
    def crash(self) -> str | None:
        """The signal, as SIGSEGV, where a library crashed; None where nothing or nobody did."""
        code = self.exit_code
        return signal.Signals(-code).name if code and -code in CRASH_SIGNALS else None


@dataclass(frozen=True)
class Note:
    """What the user should know of a job under way."""

    text: str


def finish_job(
    job: Job, after: int, on_lost: Callable[[], object], say: Callable[[str], object]
) -> End:
    """Claim a job and bring its runs to their end; failures are recorded beside the runs.

    Args:
        job: what to do.
        after: number of the newest claim that the runner saw on the training.
        on_lost: stops this process's work where another process has taken over.
        say: called with a line of text where damaged files are set aside.
    """
    try:
        with (
            claimed(job.training, after, on_lost=on_lost) as end_claim,
            damage_told(say),
        ):
            end = _finish_runs(job)
            if end.status in ("finished", "failed"):
                end_claim("finished" if end.status == "finished" else "failed")
            return end
    except LostClaimError as error:
        return End("held", str(error))
    except OSError as error:
        return End("storage", storage_message(job.root, error))


@contextmanager
def damage_told(say: Callable[[str], object]) -> Iterator[None]:
    """Hand warnings of damaged files and new heads to `say`; all others go their usual way."""
    with warnings.catch_warnings():
        for told in _TOLD:
            warnings.simplefilter("always", told)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, _TOLD):
                say(str(message))
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def _finish_runs(job: Job) -> End:
    reasons = []
    for planned in job.waiting():
        try:
            run(planned.config, job.root, show=False)
        except ProcessExitedException as error:  # one of the processes of several devices
            return End("died", describe_exit(error.exit_code), error.exit_code)
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


def record_crash(job: Job, crash: str) -> None:
    """Keep beside the runs why they are tried again with other instructions, and with which.

    Instructions decide the last bits of numbers, so the record stays with the results.
    """
    record = {"crash": {"signal": crash, "retried_with": conservative_environment()}}
    runs = [run_directory(planned, job.root).path for planned in job.waiting()]
    for folder in (job.training, *runs):
        path = folder / "environment.json"
        known = read_unless_damaged(path, read_json, "it is written anew") or {}
        write_json(path, {**known, **record})


def storage_problem(error: BaseException, root: Path) -> str | None:
    """What to tell the user where an error, or one behind it, is the disk's; else None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            inside = _is_inside(seen.filename, root)
            if seen.errno in _FULL or (seen.errno in _DENIED and inside):
                return storage_message(root, seen)
        seen = seen.__cause__ or seen.__context__
    return None


def storage_message(root: Path, error: OSError) -> str:
    """That results can't be written, why, and what to do."""
    return (
        f"can't write results to {root}: {error.strerror or error}. Free space or make the folder "
        "writable, then give the same command again: finished runs are kept and the interrupted "
        "ones go on."
    )


def _is_inside(filename: object, root: Path) -> bool:
    return isinstance(filename, str | Path) and Path(filename).is_relative_to(root)


def describe_exit(code: int | None) -> str:
    """Why a worker process is gone, in words."""
    if code is None or code >= 0:
        return f"the worker process ended with status {code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = ", as the system does where memory runs out"
    elif -code in CRASH_SIGNALS:
        hint = f" ({signal.Signals(-code).name}, a crash in a library)"
    return f"the worker process was ended by signal {-code}{hint}"
