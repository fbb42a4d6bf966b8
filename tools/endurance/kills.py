"""Processes killed, frozen, and without room or a clock: a study ends with the same numbers.

A trial starts a small study, waits until a claim shows that somebody trains, evaluates or saves (or
that the runner reports), and strikes. What it hits is frozen first, so that what it was doing
can be read from the disk before it is killed. Then the study is run to its end and compared with
one that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job
from tools.endurance.runners import (
    LONGEST,
    STUDIES,
    Runner,
    descendants,
    jobs_of,
    results_of,
    scratch,
    write_study,
)
from tools.endurance.trials import ViolationError

PHASES = ("training", "evaluation", "saving", "reporting")


@dataclass
class Ground:
    """The study that a trial disturbs, with its folder and its jobs.

    Attributes:
        task: of the study.
        study: its file.
        out: where it runs.
        jobs: of the study.
        dice: what the trial's number draws.
        hits: fault injections so far, by what was going on.
    """

    task: str
    study: Path
    out: Path
    jobs: list[Job]
    dice: random.Random
    hits: dict[str, int] = field(default_factory=dict)

    def start(self, *more: object, **options: Any) -> Runner:
        return Runner(self.study, self.out, *more, **options)

    def count(self, what: str) -> None:
        key = f"{self.task}, {what}"
        self.hits[key] = self.hits.get(key, 0) + 1


def holder(job: Job) -> int | None:
    """The process that holds the job's claim now."""
    claim = newest_claim(job.training)
    pid = claim.owner.get("pid")
    return int(pid) if claim.number and claim.ended is None and _runs(pid) else None


def _runs(pid: Any) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def phase(job: Job) -> str:
    """Say what the owner of the claim is doing."""
    with suppress(OSError):  # a folder that is replaced at this moment
        for folder in (job.training, *(job.root.glob("[0-9a-f]*"))):
            names = os.listdir(folder)
            if any(name.startswith(".") or name.endswith((".new", ".old")) for name in names):
                return "saving"
    return "training" if job.logged_epochs() < job.epochs else "evaluation"


def _wait(condition: Callable[[], Any], runner: Runner) -> Any:
    """A true value, or None where the runner ended before."""
    end = time.monotonic() + LONGEST
    while not (value := condition()):
        if runner.status is not None:
            return None
        if time.monotonic() > end:
            raise ViolationError("nothing happened within five minutes")
        time.sleep(0.001)
    return value


def _at_work(ground: Ground, aim: str) -> list[tuple[Job, int]]:
    """Jobs in this phase with their holders."""
    held = [(job, pid) for job in ground.jobs if (pid := holder(job)) is not None]
    return [(job, pid) for job, pid in held if phase(job) == aim]


def strike(ground: Ground, runner: Runner, aim: str, whom: str) -> bool:
    """Kill somebody during the phase `aim`; False where the study ended before.

    Args:
        ground: the trial.
        runner: that works.
        aim: one of `PHASES`.
        whom: "worker", "runner" (whose workers end by themselves) or "all" at once.
    """
    if aim == "reporting":
        return _strike_reporting(ground, runner)
    found = _wait(lambda: _at_work(ground, aim), runner)
    if not found:
        return False
    if aim != "saving":  # which is over in an instant
        time.sleep(ground.dice.uniform(0, 0.1))
    job, worker = ground.dice.choice(found)
    victims = {"worker": [worker], "runner": [runner.pid]}.get(whom) or _family(runner)
    with _frozen([worker, *victims]):
        is_hit = holder(job) == worker
        seen = phase(job)
        for pid in victims:
            _signal(pid, signal.SIGKILL)
    if is_hit:
        ground.count(f"{whom} in {seen}")
    if whom != "worker":
        runner.wait()
    return True


def _family(runner: Runner) -> list[int]:
    return [runner.pid, *descendants(runner.pid)]


def _strike_reporting(ground: Ground, runner: Runner) -> bool:
    """Kill the runner between its last run and its end."""
    if not _wait(lambda: all(job.finished for job in ground.jobs), runner):
        return False
    time.sleep(ground.dice.uniform(0, 0.15))
    with _frozen([runner.pid]):
        is_hit = runner.status is None and not any(map(holder, ground.jobs))
        _signal(runner.pid, signal.SIGKILL)
    if is_hit:
        ground.count("runner in reporting")
    runner.wait()
    return True


@contextmanager
def _frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def single(ground: Ground) -> None:
    """One fault injection."""
    runner = ground.start(is_cold=ground.dice.random() < 0.05)
    _strike_or_finish(ground, runner, ground.dice.choice(("worker", "runner", "all")))


def double(ground: Ground) -> None:
    """Two in the life of one runner: a worker, then whoever works."""
    runner = ground.start()
    if strike(ground, runner, ground.dice.choice(PHASES[:3]), "worker"):
        _strike_or_finish(ground, runner, ground.dice.choice(("worker", "runner", "all")))


def recovering(ground: Ground) -> None:
    """All are killed, and again while the next runner takes up what they left, twice."""
    for phases in (PHASES[:3], PHASES[:3], PHASES):
        _strike_or_finish(ground, ground.start(), "all", phases)


def _strike_or_finish(
    ground: Ground, runner: Runner, whom: str, phases: tuple[str, ...] = PHASES
) -> None:
    strike(ground, runner, ground.dice.choice(phases), whom)
    if runner.status is None:
        runner.finish()


def two_runners(ground: Ground) -> None:
    """Two runners share the work; one of them is killed and the other goes on."""
    first, second = ground.start(), ground.start()
    strike(ground, first, ground.dice.choice(PHASES[:3]), ground.dice.choice(("worker", "all")))
    second.finish()
    first.wait()
    ground.count("one of two runners")


def frozen(ground: Ground) -> None:
    """A worker or the runner stands still while a second runner looks for work, then goes on."""
    first = ground.start()
    found = _wait(lambda: _at_work(ground, ground.dice.choice(PHASES[:3])), first)
    victim = ground.dice.choice([found[0][1], first.pid]) if found else first.pid
    with _frozen([victim]):
        second = ground.start()
        time.sleep(ground.dice.uniform(0.5, 2))
    for runner in (first, second):
        runner.finish()
    ground.count("frozen")


def jumping_clock(ground: Ground) -> None:
    """The clock of all processes jumps, and so do the times of the claims' files."""
    jumps = partial(_jump, ground.dice.randrange(1000))
    runners = [ground.start(prepare=jumps), ground.start(prepare=jumps)]
    while any(runner.status is None for runner in runners):
        for path in (ground.out / "runs").glob("trainings/*/claims/0*.json"):
            when = time.time() + ground.dice.uniform(-1e8, 1e8)
            with suppress(FileNotFoundError):
                os.utime(path, (when, when))
        time.sleep(0.05)
    for runner in runners:
        runner.finish()
    ground.count("clock that jumps")


def _jump(seed: int) -> None:
    """Let `time.time` jump by up to three years at every look."""
    dice, real = random.Random(seed), time.time
    time.time = lambda: real() + dice.uniform(-1e8, 1e8)


def on_ray(ground: Ground) -> None:
    """The process beside a Ray worker is killed; counts nothing where there is no Ray."""
    if find_spec("ray") is None:
        return
    quiet = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    runner = ground.start("--ray", "local", is_cold=True, variables=quiet)
    if strike(ground, runner, ground.dice.choice(PHASES[:3]), "worker"):
        ground.count("one of Ray's workers")
    runner.finish()


def full_disk(ground: Ground) -> None:
    """A disk with too little room, which the runner says in a message; then there is more."""
    ground.out.mkdir()
    room = ground.dice.choice([20, 60, 100, 150, 200, 300])
    disk = ["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(ground.out)]
    if subprocess.run(disk, capture_output=True).returncode:
        return  # not permitted here: nothing is counted
    try:
        runner = ground.start()
        runner.wait()
        said = runner.log.read_text()
        if runner.status and ("can't write results" not in said or "Traceback" in said):
            raise ViolationError(f"on a full disk of {room} kB: {said[-2000:]}")
        freed = ["mount", "-o", "remount,size=1g", str(ground.out)]
        subprocess.run(freed, check=True, capture_output=True)
        ground.start().finish()
        _compare(ground)
        if runner.status:
            ground.count("full disk")
    finally:
        subprocess.run(["umount", "-l", str(ground.out)], check=True)


def _compare(ground: Ground) -> None:
    found, expected = results_of(ground.jobs), undisturbed(ground.task)
    if found != expected:
        hits = ground.hits or "nothing"
        raise ViolationError(f"{ground.task}, {hits}: {found}\ninstead of {expected}")


@cache
def undisturbed(task: str) -> list[dict[str, Any]]:
    with scratch() as folder:
        study, out = write_study(task, folder), folder / "out"
        Runner(study, out).finish()
        return results_of(jobs_of(study, out))


SCENES = [single] * 8 + [double] * 5 + [recovering] * 3
SCENES += [two_runners, frozen, jumping_clock, full_disk, on_ray]


class Kills:
    """Disturbed studies; a case is a fault injection, counted by what it hit."""

    name = "kills"

    def trial(self, number: int) -> dict[str, int]:
        dice = random.Random(number)
        task = sorted(STUDIES)[number % len(STUDIES)]
        scene = SCENES[(number // len(STUDIES)) % len(SCENES)]
        with scratch() as folder:
            study, out = write_study(task, folder), folder / "out"
            ground = Ground(task, study, out, jobs_of(study, out), dice)
            scene(ground)
            if scene is not full_disk:  # which is gone when it returns
                ground.start().finish()
                _compare(ground)
        return ground.hits


KILLS = Kills()
