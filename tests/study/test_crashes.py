"""Real processes are killed with SIGKILL; the study ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.engine import RunDirectory
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job

EPOCHS = 8
JobsOf = Callable[[Path, Path], list[Job]]


def _epochs(job: Job) -> list[int]:
    return [record["epoch"] for record in RunDirectory(job.training).log()]


def _worker(job: Job, wait_until: Callable[..., Any]) -> int:
    """Process number of the worker that trains the job, once it has logged two epochs."""
    wait_until(lambda: len(_epochs(job)) >= 2, f"epochs of {job.name}")
    return int(newest_claim(job.training).owner["pid"])


def _frozen_worker(job: Job, wait_until: Callable[..., Any]) -> int:
    """`_worker`, stopped there: otherwise it could end its job while another one begins."""
    pid = _worker(job, wait_until)
    os.kill(pid, signal.SIGSTOP)
    return pid


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.slow
def test_killed_worker_then_killed_runner_then_two_runners(
    killed_study: Path,
    tmp_path: Path,
    start: Callable[..., Any],
    jobs_of: JobsOf,
    metrics_of: Callable[[list[Job]], list[dict[str, Any]]],
    wait_until: Callable[..., Any],
    uninterrupted: list[dict[str, Any]],
) -> None:
    folder = tmp_path / "out"
    jobs = jobs_of(killed_study, folder)
    assert [len(job.runs) for job in jobs] == [2, 1]

    runner = start("run", killed_study, "--out", folder, "--workers", 2, "--threads", 1, "--quiet")
    first, second = (_frozen_worker(job, wait_until) for job in jobs)
    os.kill(first, signal.SIGKILL)
    again = wait_until(
        lambda: (claim := newest_claim(jobs[0].training)).number == 2 and claim.owner["pid"],
        "another worker to take over",
    )
    assert runner.poll() is None, "the death of a worker must not end the study"
    runner.send_signal(signal.SIGKILL)
    os.kill(second, signal.SIGCONT)
    wait_until(lambda: _gone(second) and _gone(again), "the workers to end with their runner")
    assert not all(job.finished for job in jobs)

    both = [
        start("run", killed_study, "--out", folder, "--workers", 1, "--threads", 1, "--quiet")
        for _ in range(2)
    ]
    said = [process.communicate(timeout=400)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert metrics_of(jobs) == uninterrupted
    assert [_epochs(job) for job in jobs] == [list(range(EPOCHS))] * 2
    # One claim for each life: two were killed on the first job, one on the second.
    assert newest_claim(jobs[0].training).number == 3
    assert newest_claim(jobs[1].training).number <= 2
    assert "from epoch" in "".join(said)
