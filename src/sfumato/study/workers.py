"""Local workers: processes of their own, which may die without harm."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar, cast

import torch

from sfumato.study.jobs import Job
from sfumato.study.machine import CRASH_SIGNALS, conservative_environment
from sfumato.study.work import End, Note, describe_exit, finish_job

Answer = TypeVar("Answer")
_LOST_CLAIM_STATUS = 75


class Workers(Protocol):
    """Where jobs run, each on `threads`; submitted only while fewer than `slots` are under way."""

    slots: int
    threads: int

    def busy(self) -> int:
        """Jobs under way."""

    def submit(self, job: Job, after: int, *, cautious: bool = False) -> None:
        """Start a job.

        Args:
            job: what to do.
            after: number of the newest claim that was seen on it.
            cautious: keep to a conservative instruction set, after a crash.
        """

    def collect(self, timeout: float) -> list[tuple[Job, End | Note]]:
        """News of jobs; waits for some, but not longer than `timeout` seconds."""

    def close(self) -> None:
        """Stop all workers."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    cautious: bool
    job: Job | None = None


class LocalProcesses:
    """Worker processes that take one job after the other.

    One that dies takes only its own job with it, and is replaced when there is more to do.

    Args:
        count: processes at a time.
        threads: threads of each.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.slots = count
        self.threads = threads
        self._workers: list[_Worker] = []

    def busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job, after: int, *, cautious: bool = False) -> None:
        worker = self._idle(cautious) or self._start(cautious)
        try:
            worker.connection.send((job, after))
        except OSError:  # it died while idle
            self._remove(worker)
            worker = self._start(cautious)
            worker.connection.send((job, after))
        worker.job = job

    def collect(self, timeout: float) -> list[tuple[Job, End | Note]]:
        working = [worker for worker in self._workers if worker.job is not None]
        if not working:
            time.sleep(timeout)
            return []
        signs = [(worker.connection, worker.process.sentinel) for worker in working]
        ready = wait([sign for pair in signs for sign in pair], timeout)
        ended = [
            (worker.job, self._receive(worker))
            for worker, pair in zip(working, signs, strict=True)
            if not set(pair).isdisjoint(ready)
        ]
        return [(job, end) for job, end in ended if job is not None]

    def close(self) -> None:
        for worker in list(self._workers):
            worker.process.terminate()
            self._remove(worker)

    def _receive(self, worker: _Worker) -> End | Note:
        try:
            if worker.connection.poll():
                news: End | Note = worker.connection.recv()
                if isinstance(news, End):
                    worker.job = None
                return news
        except (EOFError, OSError):
            pass
        code = self._remove(worker)
        return End("died", describe_exit(code), code)

    def _idle(self, cautious: bool) -> _Worker | None:
        """One without a job; those of the other kind leave, for there is no slot for them."""
        found = None
        for worker in [worker for worker in self._workers if worker.job is None]:
            if worker.cautious == cautious:
                found = worker
            else:
                worker.process.terminate()
                self._remove(worker)
        return found

    def _start(self, cautious: bool) -> _Worker:
        process, connection = _start_process(_serve, (), self.threads, cautious=cautious)
        worker = _Worker(process, connection, cautious)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: _Worker) -> int | None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join(timeout=10)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        return worker.process.exitcode


def call_apart(function: Callable[..., Answer], *arguments: Any, threads: int) -> Answer:
    """Call a function in a process of its own, so that a crash in a library ends only that.

    As a run, it is tried once more with a conservative instruction set.

    Raises:
        ChildProcessError: the process died; what the function itself raises is raised here too.
    """
    code = None
    for cautious in (False, True):
        process, connection = _start_process(
            _answer, (function, arguments), threads, cautious=cautious
        )
        try:
            answer, error = connection.recv()
        except EOFError:
            process.join()
            code = process.exitcode
            if code is not None and -code in CRASH_SIGNALS:
                continue
            break
        finally:
            process.terminate()
            process.join()
            connection.close()
        if error is not None:
            raise error
        return cast(Answer, answer)
    raise ChildProcessError(describe_exit(code))


def _start_process(
    target: Callable[..., None], arguments: tuple[Any, ...], threads: int, *, cautious: bool = False
) -> tuple[BaseProcess, Connection]:
    """Start `target(connection, threads, *arguments)`; gives our end of the connection."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Not a daemon: a run on several devices starts processes of its own.
    process = context.Process(target=target, args=(theirs, threads, *arguments), daemon=False)
    # For processes that a run starts itself too, which share nothing but the environment.
    variables = {"OMP_NUM_THREADS": str(threads)}
    with _variables({**variables, **(conservative_environment() if cautious else {})}):
        process.start()
    theirs.close()
    return process, ours


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a process that starts inside.

    The libraries read them when they load, which is before the process calls anything of ours.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, threads: int) -> None:
    """The life of a worker process: jobs until the runner hangs up."""
    _obey_runner(threads)
    while True:
        try:
            job, after = connection.recv()
            end = finish_job(
                job,
                after,
                on_lost=lambda: os._exit(_LOST_CLAIM_STATUS),
                say=lambda text: connection.send(Note(text)),
            )
            connection.send(end)
        except (EOFError, OSError):
            return


def _answer(
    connection: Connection, threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    _obey_runner(threads)
    try:
        connection.send((function(*arguments), None))
    except Exception as error:  # whatever it was, it belongs to the caller
        connection.send((None, error))


def _obey_runner(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what an interrupt means
    threading.Thread(target=_end_with_runner, name="sfumato runner", daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_runner() -> None:
    """A killed runner leaves no workers behind, which would hold their claims."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        wait([runner.sentinel])
        os._exit(1)
