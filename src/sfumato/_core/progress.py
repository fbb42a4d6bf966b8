"""A progress bar that a loop can always advance, shown or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class Bar:
    """Handle on a running bar; silent when made without one."""

    progress: Progress | None = None
    task: TaskID | None = None

    def advance(self, note: str | None = None) -> None:
        """One step done; `note` replaces the text behind the bar."""
        if self.progress is not None and self.task is not None:
            self.progress.advance(self.task)
            if note is not None:
                self.progress.update(self.task, note=note)


@contextmanager
def progress_bar(label: str, total: int, *, show: bool = True) -> Iterator[Bar]:
    """A bar on standard error that vanishes when done; none where `show` is false."""
    if not show:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(label, total=total, note=""))
