"""Local workers: this process, or processes of their own that may die without harm."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

import torch

from sfumato.study.jobs import Job
from sfumato.study.work import End, describe_exit, finish_job

LOST_CLAIM_STATUS = 75


class Workers(Protocol):
    """Where jobs run. A job is submitted only while fewer than `slots` are under way."""

    slots: int

    def busy(self) -> int:
        """Jobs under way."""

    def submit(self, job: Job, after: int) -> None:
        """Start a job; `after` is the number of the newest claim that was seen on it."""

    def collect(self, timeout: float) -> list[tuple[Job, End]]:
        """Jobs that have ended; waits for one, but not longer than `timeout` seconds."""

    def close(self) -> None:
        """Stop all workers."""


class ThisProcess:
    """Runs each job where it is submitted."""

    slots = 1

    def __init__(self) -> None:
        self._ended: list[tuple[Job, End]] = []

    def busy(self) -> int:
        return len(self._ended)

    def submit(self, job: Job, after: int) -> None:
        self._ended.append((job, finish_job(job, after, on_lost=_thread.interrupt_main)))

    def collect(self, timeout: float) -> list[tuple[Job, End]]:
        if not self._ended:
            time.sleep(timeout)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Nothing to stop."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    job: Job | None = None


class LocalProcesses:
    """Worker processes that take one job after the other, each with its share of the cores.

    One that dies takes only its own job with it, and is replaced when there is more to do.
    """

    def __init__(self, count: int) -> None:
        self.slots = count
        self._threads = max(1, (os.cpu_count() or 1) // count)
        self._workers: list[_Worker] = []

    def busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job, after: int) -> None:
        worker = self._idle() or self._start()
        try:
            worker.connection.send((job, after))
        except OSError:  # it died while idle
            self._remove(worker)
            worker = self._start()
            worker.connection.send((job, after))
        worker.job = job

    def collect(self, timeout: float) -> list[tuple[Job, End]]:
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

    def _receive(self, worker: _Worker) -> End:
        try:
            if worker.connection.poll():
                end: End = worker.connection.recv()
                worker.job = None
                return end
        except (EOFError, OSError):
            pass
        return End("died", describe_exit(self._remove(worker)))

    def _idle(self) -> _Worker | None:
        return next((worker for worker in self._workers if worker.job is None), None)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # Not a daemon: a run on several devices starts processes of its own.
        process = context.Process(target=_serve, args=(theirs, self._threads), daemon=False)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
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


def _serve(connection: Connection, threads: int) -> None:
    """The life of a worker process: jobs until the runner hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what an interrupt means
    threading.Thread(target=_end_with_runner, name="sfumato runner", daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            job, after = connection.recv()
            connection.send(finish_job(job, after, on_lost=lambda: os._exit(LOST_CLAIM_STATUS)))
        except (EOFError, OSError):
            return


def _end_with_runner() -> None:
    """A killed runner leaves no workers behind, which would hold their claims."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        wait([runner.sentinel])
        os._exit(1)
