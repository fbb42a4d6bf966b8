"""What a study is doing: a live table on a terminal, lines of text elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sfumato.engine import RunDirectory
from sfumato.study.jobs import Job
from sfumato.study.work import End

_ORDER = ("running", "elsewhere", "failed", "waiting", "finished")
_COLOURS = {"running": "bold cyan", "finished": "green", "failed": "bold red", "waiting": "dim"}
MOST_ROWS = 24


@dataclass
class _Row:
    state: str
    note: str = ""
    began: float | None = None

    def seconds(self) -> float | None:
        """Since a worker of this runner took the job."""
        if self.state != "running" or self.began is None:
            return None
        return time.monotonic() - self.began


class Board:
    """Follows jobs from their beginning to their end.

    Args:
        jobs: every job of the study, finished ones too.
        slots: jobs at a time, for the time that is left.
        live: whether to draw a table; only done where standard error is a terminal.
        announce: called with a line of text for what a reader of a log should know.
    """

    def __init__(
        self, jobs: Sequence[Job], *, slots: int, live: bool, announce: Callable[[str], None]
    ) -> None:
        self._jobs = jobs
        self._slots = slots
        self._announce = announce
        self._rows = {job.training: _Row("finished" if job.finished else "waiting") for job in jobs}
        self._waiting = sum(row.state == "waiting" for row in self._rows.values())
        self._number = 0
        console = Console(stderr=True)
        self._live: Live | None = None
        if live and console.is_terminal:
            self._live = Live(
                get_renderable=self.render, console=console, refresh_per_second=2, transient=True
            )

    def began(self, job: Job) -> None:
        """A worker has started the job."""
        row = self._rows[job.training]
        if row.began is None:
            self._number += 1
        done = job.logged_epochs()
        row.state, row.note = "running", ""
        row.began = time.monotonic()
        step = "training" if done < job.epochs else "evaluating"
        resumed = f" from epoch {done + 1}" if 0 < done < job.epochs else ""
        self._say(f"[{self._number}/{self._waiting}] {job.name}: {step}{resumed}")

    def elsewhere(self, job: Job, holder: str) -> None:
        """Another runner works on the job."""
        row = self._rows[job.training]
        if row.note != holder:
            row.state, row.note = "elsewhere", holder
            self._say(f"{job.name}: under way on {holder}")

    def again(self, job: Job, reason: str, *, cautious: bool) -> None:
        """The job's worker died; it will go on from the last checkpoint."""
        self._rows[job.training].state = "waiting"
        how = ", once more with a conservative instruction set" if cautious else ""
        self._announce(f"{job.name}: {reason}; going on from its last checkpoint{how}")

    def note(self, job: Job, text: str) -> None:
        """Something about the job that its user should know."""
        self._announce(f"{job.name}: {text}")

    def ended(self, job: Job, end: End) -> None:
        """The job has results, or never will."""
        row = self._rows[job.training]
        row.state, row.note = end.status, end.reason
        if end.status == "failed":
            self._announce(f"{job.name} failed: {end.reason}")
        elif row.began is not None:
            self._say(f"{job.name}: finished in {duration(time.monotonic() - row.began)}")

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def render(self) -> RenderableType:
        """The table as it is now: what runs first, then what failed, waits and is done."""
        table = Table("run", "state", "epoch", "time", "left")
        ranked = sorted(self._jobs, key=lambda job: _ORDER.index(self._rows[job.training].state))
        for job in ranked[:MOST_ROWS]:
            row = self._rows[job.training]
            epochs = job.logged_epochs() if row.state in ("running", "elsewhere") else 0
            state = "evaluating" if row.state == "running" and epochs >= job.epochs else row.state
            table.add_row(
                Text(job.name),
                Text(state, style=_COLOURS.get(row.state, "")),
                f"{min(epochs, job.epochs)}/{job.epochs}" if epochs else "",
                duration(time.monotonic() - row.began)
                if row.began and row.state == "running"
                else "",
                _shown(self._left(job)) if row.state == "running" else "",
            )
        states = [row.state for row in self._rows.values()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in _ORDER if s in states)
        return Group(table, Text(f"{counts}{self._total_left()}"))

    def _left(self, job: Job) -> float | None:
        """Seconds of training left, from the epochs that this study has seen."""
        records = RunDirectory(job.training).log()
        mean = _mean([record.get("seconds", 0.0) for record in records])
        return None if mean is None else mean * (job.epochs - len(records))

    def _total_left(self) -> str:
        running = [job for job in self._jobs if self._rows[job.training].state == "running"]
        waiting = [job for job in self._jobs if self._rows[job.training].state == "waiting"]
        lefts = [left for job in running if (left := self._left(job)) is not None]
        seconds = [
            record.get("seconds", 0.0)
            for job in running
            for record in RunDirectory(job.training).log()
        ]
        mean = _mean(seconds)
        if mean is None:
            return ""
        total = sum(lefts) + mean * sum(job.epochs for job in waiting)
        return f"; about {duration(total / self._slots)} of training left"

    def _say(self, line: str) -> None:
        """A line for logs; the live table shows the same."""
        if self._live is None:
            self._announce(line)


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    Example:
        >>> duration(5), duration(130), duration(7500)
        ('5 s', '2 min 10 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
