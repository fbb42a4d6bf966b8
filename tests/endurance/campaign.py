"""A campaign: trials of several fields in turn until the time is over, and what they found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Case = TypeVar("Case")


class Attack(Protocol):
    """One kind of trial.

    `trial` takes a number, does what that number says, always the same, and gives how many cases it
    tried; it raises `BrokenPromiseError` where a promise was broken.
    """

    name: str

    def trial(self, number: int) -> int: ...


class BrokenPromiseError(Exception):
    """A broken promise, with the smallest example that was found."""


@dataclass(frozen=True)
class Drawn(Generic[Case]):
    """An attack whose cases are drawn from a number, checked, and made smaller when they fail.

    Args:
        name: of the field.
        draw: a case from a number.
        check: raises where the case breaks a promise; gives False where it promises nothing.
        smaller: simpler cases than this one.
    """

    name: str
    draw: Callable[[int], Case]
    check: Callable[[Case], bool]
    smaller: Callable[[Case], Iterator[Case]]

    def trial(self, number: int) -> int:
        case = self.draw(number)
        try:
            return int(self.check(case))
        except Exception:
            smallest, message = self._smallest(case, traceback.format_exc(limit=4))
        raise BrokenPromiseError(f"{smallest}\n{message}")

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


def _failure(check: Callable[[Case], bool], case: Case) -> str | None:
    try:
        check(case)
    except Exception:
        return traceback.format_exc(limit=4)
    return None


@dataclass
class Record:
    """What a field has been through.

    Attributes:
        cases: tried so far.
        seconds: spent on them.
        failures: the example of each failure, with the number that draws it.
    """

    cases: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)


def run_campaign(
    attacks: Mapping[str, Attack],
    *,
    seconds: float,
    first: int = 0,
    tell: Callable[[str, Record], None] = lambda name, record: None,
) -> dict[str, dict[str, Any]]:
    """Give every attack an equal share of the time; a failing one stops, the others go on.

    Args:
        attacks: by name.
        seconds: for all of them together.
        first: number of the first trial of each.
        tell: is called after every trial, for a progress bar.
    """
    records = {name: Record() for name in attacks}
    for place, (name, attack) in enumerate(attacks.items()):
        left = seconds - sum(record.seconds for record in records.values())
        share = left / (len(attacks) - place)
        _attack(attack, records[name], share, first, tell)
    return {name: asdict(record) for name, record in records.items()}


def _attack(
    attack: Attack,
    record: Record,
    share: float,
    first: int,
    tell: Callable[[str, Record], None],
) -> None:
    began, number = time.monotonic(), first
    while record.seconds < share and not record.failures:
        try:
            record.cases += attack.trial(number)
        except BrokenPromiseError as broken:
            record.failures.append({"number": number, "example": str(broken)})
        number += 1
        record.seconds = time.monotonic() - began
        tell(attack.name, record)
