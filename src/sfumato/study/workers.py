"""Workers: local processes that may die without harm, or a Ray cluster."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch.multiprocessing import ProcessExitedException

from sfumato._core.files import (
    FULL_DISK,
    UnreadableFileWarning,
    read_json,
    read_or_set_aside,
    write_json,
)
from sfumato._core.ray_cluster import ray_cluster
from sfumato._core.spec import DATA_ROOT
from sfumato.engine import ConfigError, run
from sfumato.engine.config.networks import NewHeadWarning
from sfumato.study.claims import LostClaimError, claimed
from sfumato.study.config import PlannedRun
from sfumato.study.jobs import CRASH_SIGNALS, Job, conservative_environment, run_directory

_TOLD = (UnreadableFileWarning, NewHeadWarning)
_FULL = (*FULL_DISK, errno.EROFS)
_DENIED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


class StorageError(RuntimeError):
    """Results can't be written: the disk is full, or the folder is read-only."""


@dataclass(frozen=True)
class End:
    """The end of a job.

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


def finish_job(
    job: Job, after: int, on_lost: Callable[[], object], say: Callable[[str], object]
) -> End:
    """Claim a job and bring its runs to their end; failures are recorded beside the runs."""
    try:
        with claimed(job.training, after, on_lost=on_lost) as end_claim, damage_told(say):
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
    """Hand warnings of unreadable files and new heads to `say`; all others go their usual way."""
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
        known = read_or_set_aside(path, read_json, "it is written anew") or {}
        write_json(path, {**known, **record})


def storage_problem(error: BaseException, root: Path) -> str | None:
    """Return a message where an error, or one behind it, is the disk's; else None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            file = seen.filename
            inside = isinstance(file, str | Path) and Path(file).is_relative_to(root)
            if seen.errno in _FULL or (seen.errno in _DENIED and inside):
                return storage_message(root, seen)
        seen = seen.__cause__ or seen.__context__
    return None


def storage_message(root: Path, error: OSError) -> str:
    """Say that results can't be written, why, and what to do."""
    return (
        f"can't write results to {root}: {error.strerror or error}. Free space or make the folder "
        "writable, then give the same command again: finished runs are kept and the interrupted "
        "ones go on."
    )


def describe_exit(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the worker process ended with status {code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = ", as the system does where memory runs out"
    elif -code in CRASH_SIGNALS:
        hint = f" ({signal.Signals(-code).name}, a crash in a library)"
    return f"the worker process was ended by signal {-code}{hint}"


Answer = TypeVar("Answer")
News = tuple[Job, End | str]  # a job has ended, or says something to the user on its way
_LOST_CLAIM_STATUS = 75


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    cautious: bool
    job: Job | None = None

    def end(self) -> int | None:
        """Hang up, and wait for the process or kill it; the status that it ended with."""
        self.connection.close()
        self.process.join(timeout=10)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        return self.process.exitcode


class LocalProcesses:
    """Worker processes that take one job after the other; submit while fewer than `slots` are busy.

    One that dies takes only its own job with it, and is replaced when there is more to do.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.slots = count
        self.threads = threads
        self._workers: list[_Worker] = []

    def busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job, after: int, *, cautious: bool = False) -> None:
        task = (_work, (job, after))
        worker = self._idle(cautious) or self._start(cautious)
        try:
            worker.connection.send(task)
        except OSError:  # it died while idle
            self._remove(worker)
            worker = self._start(cautious)
            worker.connection.send(task)
        worker.job = job

    def collect(self, timeout: float) -> list[News]:
        signs: list[tuple[_Worker, Job, set[Any]]] = [
            (worker, job, {worker.connection, worker.process.sentinel})
            for worker in self._workers
            if (job := worker.job) is not None
        ]
        if not signs:
            time.sleep(timeout)
            return []
        ready = wait([sign for *_, both in signs for sign in both], timeout)
        return [(job, self._receive(worker)) for worker, job, both in signs if both & {*ready}]

    def close(self) -> None:
        for worker in list(self._workers):
            self._remove(worker, terminate=True)

    def _receive(self, worker: _Worker) -> End | str:
        with suppress(EOFError, OSError):
            if worker.connection.poll():
                news: End | str = worker.connection.recv()
                if isinstance(news, End):
                    worker.job = None
                return news
        code = self._remove(worker)
        return End("died", describe_exit(code), code)

    def _idle(self, cautious: bool) -> _Worker | None:
        """One without a job; those of the other kind leave, for there is no slot for them."""
        found = None
        for worker in [worker for worker in self._workers if worker.job is None]:
            if worker.cautious == cautious:
                found = worker
            else:
                self._remove(worker, terminate=True)
        return found

    def _start(self, cautious: bool) -> _Worker:
        worker = _Worker(*_start_process(self.threads, cautious=cautious), cautious)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: _Worker, *, terminate: bool = False) -> int | None:
        if terminate:
            worker.process.terminate()
        self._workers.remove(worker)
        return worker.end()


@dataclass
class Apart:
    """Calls functions in a process of its own, so that a crash in a library ends only that.

    The process starts with the first call and stays for the others. As a run, a call that crashed
    is tried once more with a conservative instruction set.
    """

    threads: int
    start_up: float = 0.0
    _worker: _Worker | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._worker is not None:
            self._worker.process.terminate()
            self._worker.end()
            self._worker = None

    def call(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return what the function returns."""
        code = None
        for cautious in (False, True):
            try:
                answer, error = self._answer(function, arguments, cautious=cautious)
            except (EOFError, ConnectionError):
                code, self._worker = self._worker.end() if self._worker else None, None
                if code is not None and -code in CRASH_SIGNALS:
                    continue
                break
            if error is not None:
                raise error
            return cast(Answer, answer)
        raise ChildProcessError(describe_exit(code))

    def _answer(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, cautious: bool
    ) -> tuple[Any, Exception | None]:
        if self._worker is None:
            began = time.perf_counter()
            process, connection = _start_process(self.threads, cautious=cautious)
            self._worker = _Worker(process, connection, cautious)
            self._answer(os.getpid, (), cautious=cautious)
            self.start_up = time.perf_counter() - began
        self._worker.connection.send((_call, (function, arguments)))
        return cast("tuple[Any, Exception | None]", self._worker.connection.recv())


def _start_process(threads: int, *, cautious: bool) -> tuple[BaseProcess, Connection]:
    """Start a process that takes calls; gives our end of the connection."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Not a daemon: a run on several devices starts processes of its own.
    process = context.Process(target=_serve, args=(theirs, threads), daemon=False)
    # Libraries read these when they load, which is before the process calls anything of ours; and
    # processes that a run starts itself share nothing but the environment.
    values = {"OMP_NUM_THREADS": str(threads)} | (conservative_environment() if cautious else {})
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        process.start()
    finally:
        os.environ.update(before)
        for name in values.keys() - before:
            del os.environ[name]
    theirs.close()
    return process, ours


def _serve(connection: Connection, threads: int) -> None:
    """Take calls of `function(send, *arguments)` until the runner hangs up; the answer is sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what an interrupt means
    threading.Thread(target=_end_with_runner, name="sfumato runner", daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            function, arguments = connection.recv()
            connection.send(function(connection.send, *arguments))
        except (EOFError, OSError):
            return


def _work(send: Callable[[object], None], job: Job, after: int) -> End:
    return finish_job(job, after, on_lost=lambda: os._exit(_LOST_CLAIM_STATUS), say=send)


def _call(
    send: Callable[[object], None], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:  # whatever it was, it belongs to the caller
        return None, error


def _end_with_runner() -> None:
    """A killed runner leaves no workers behind, which would hold their claims."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        wait([runner.sentinel])
        os._exit(1)


class RayCluster:
    """Hands each job to a Ray task; Ray finds the machine, the claims keep the runs apart.

    A task takes the run's graphics devices, and the cores of its threads for each of its CPU
    devices. One whose worker dies is retried not by Ray but by the runner, which looks at the claim
    first.
    """

    def __init__(self, address: str, threads: int) -> None:
        self._stack = ExitStack()
        ray = self._ray = self._stack.enter_context(ray_cluster(address, ConfigError))
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

    def collect(self, timeout: float) -> list[News]:
        if not self._jobs:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        found: list[News] = []
        for reference in ready:
            job = self._jobs.pop(reference)
            try:
                found += [(job, news) for news in self._ray.get(reference)]
            except self._ray.exceptions.RayError as error:
                found.append((job, End("died", f"the Ray worker is gone ({type(error).__name__})")))
        return found

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        self._stack.close()


def _finish(
    job: Job, after: int, threads: int, cautious: bool, data_root: str | None
) -> list[End | str]:
    """The task that a Ray worker runs: in a process beside it, since Ray tells no signal."""
    if data_root is not None:  # a cluster has the environment of those who started it
        os.environ[DATA_ROOT] = data_root
    worker = LocalProcesses(1, threads)
    try:
        worker.submit(job, after, cautious=cautious)
        news: list[End | str] = []
        while worker.busy():
            news += [each for _, each in worker.collect(timeout=60)]
        return news
    finally:
        worker.close()
