"""Run trials of several surfaces in turn until the time is over, and record what they found."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Case = TypeVar("Case")


class Surface(Protocol):
    """One kind of trial.

    `trial` takes a number, does what that number says, always the same, and gives how many cases of
    which kind it tried; it raises `ViolationError` where a guarantee does not hold.
    """

    name: str

    def trial(self, number: int) -> dict[str, int]: ...


class ViolationError(Exception):
    """A guarantee that does not hold, with the smallest example that was found."""


@dataclass(frozen=True)
class Drawn(Generic[Case]):
    """A surface whose cases are drawn from a number, checked, and made smaller when they fail.

    Args:
        name: of the surface.
        draw: a case from a number.
        check: raises where the case violates a guarantee; gives False where none applies, True
            or a word on how it ended, by which it is counted.
        smaller: simpler cases than this one.
        kind: of a case, under which it is counted.
    """

    name: str
    draw: Callable[[int], Case]
    check: Callable[[Case], bool | str]
    smaller: Callable[[Case], Iterator[Case]]
    kind: Callable[[Case], str]

    def trial(self, number: int) -> dict[str, int]:
        case = self.draw(number)
        try:
            end = self.check(case)
            kind = f"{self.kind(case)}, {end}" if isinstance(end, str) else self.kind(case)
            return {kind: int(bool(end))}
        except Exception:
            smallest, message = self._smallest(case, traceback.format_exc(limit=4))
        raise ViolationError(f"{smallest}\n{message}")

    def _smallest(self, case: Case, message: str) -> tuple[Case, str]:
        for _ in range(200):
            for simpler in self.smaller(case):
                found = _failure(self.check, simpler)
                if found is not None:
                    case, message = simpler, found
                    break
            else:
                break
        return case, message


def _failure(check: Callable[[Case], bool | str], case: Case) -> str | None:
    try:
        check(case)
    except Exception:
        return traceback.format_exc(limit=4)
    return None


@dataclass
class Record:
    """Figures of a surface so far.

    Attributes:
        next: number of the trial with which it goes on; one that failed is repeated.
        of: cases tried so far, by kind.
        seconds: spent on them.
        commits: of the code that was tried, oldest first.
        failures: the example of each failure, with the number that draws it.
    """

    next: int = 0
    of: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    commits: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.of.total()

    def as_json(self) -> dict[str, Any]:
        of = dict(sorted((+self.of).items()))
        return {"cases": self.cases, **vars(self), "seconds": round(self.seconds, 1), "of": of}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        fields = {name: content[name] for name in ("next", "seconds", "commits", "failures")}
        return cls(of=Counter(content["of"]), **fields)


def run_trials(
    surfaces: Mapping[str, Surface],
    records: dict[str, Record],
    *,
    seconds: float,
    tell: Callable[[str, Record], None] = lambda name, record: None,
) -> None:
    """Give every surface an equal share of the time; a failing one stops, the others go on.

    Args:
        surfaces: by name.
        records: of the same names; each goes on from what its record says.
        seconds: for all of them together.
        tell: is called after every trial, for a progress bar.
    """
    end = time.monotonic() + seconds
    for place, (name, surface) in enumerate(surfaces.items()):
        share = (end - time.monotonic()) / (len(surfaces) - place)
        _try(surface, records[name], share, tell)


def _try(
    surface: Surface, record: Record, share: float, tell: Callable[[str, Record], None]
) -> None:
    record.failures = []  # of before: its trial is the next one
    began, spent_before = time.monotonic(), record.seconds
    while record.seconds - spent_before < share and not record.failures:
        try:
            record.of.update(surface.trial(record.next))
            record.next += 1
        except ViolationError as broken:
            record.failures.append({"number": record.next, "example": str(broken)})
        record.seconds = spent_before + time.monotonic() - began
        tell(surface.name, record)
