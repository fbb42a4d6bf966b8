"""Rows that can't be audited: the first one stops with its number, or all are left out and counted.

Every check names the row, what is wrong with it and what to do about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sfumato.engine.runs.prediction_names import UNNAMED
from sfumato.engine.runs.prediction_rows import PredictionFileError

OnBadRow = Literal["stop", "skip"]
TOLERANCE = 1e-3
SKIP = "mend the row, or leave such rows out with --on-bad-row skip"
IGNORED = "with the label of --ignore-index"


@dataclass
class RowChecks:
    """Checks of one part of a file.

    Args:
        where: name of the file, for messages.
        first: number of the part's first row in the file.
        count: rows of the part.
        on_bad_row: "stop" raises at the first bad row, "skip" leaves bad rows out.
    """

    where: str
    first: int
    count: int
    on_bad_row: OnBadRow = "stop"
    reasons: Counter[str] = field(default_factory=Counter)
    bad: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.bad = np.zeros(self.count, dtype=bool)

    def refuse(self, mask: np.ndarray, reason: str, describe: Callable[[int], str]) -> None:
        """Bad are the rows of `mask`; `describe(row)` says what is wrong and what to do."""
        rows = np.flatnonzero(mask & ~self.bad)
        if not len(rows):
            return
        if self.on_bad_row == "stop":
            text = describe(int(rows[0]))
            raise PredictionFileError(f"{self.where}, row {self.first + int(rows[0])}: {text}")
        self.reasons[reason] += len(rows)
        self.bad |= mask

    def drop(self, mask: np.ndarray, reason: str) -> None:
        """Leave the rows of `mask` out and count them, without a word against them."""
        rows = mask & ~self.bad
        if rows.any():
            self.reasons[reason] += int(rows.sum())
            self.bad |= mask

    def leave_out(self, broken: Mapping[int, str]) -> None:
        """Count lines that are no rows: place to reason. Nothing else is said of them."""
        self.reasons.update(broken.values())
        self.bad[list(broken)] = True

    def kept(self) -> np.ndarray | None:
        """Positions of the good rows; None where all are good."""
        return np.flatnonzero(~self.bad) if self.bad.any() else None


def check_probabilities(checks: RowChecks, name: str, probs: Tensor) -> Tensor:
    """No NaN, nothing negative, rows that sum to one within 1e-3 and the rounding of their type.

    Returns:
        The probabilities; rows that only the rounding puts beyond 1e-3 are divided by their sum.
    """
    totals, low = probs.sum(1), probs.amin(1)
    sums, high = totals, totals
    if probs.ndim > 2:
        low, sums, high = low.flatten(1).amin(1), sums.flatten(1).amin(1), sums.flatten(1).amax(1)
    slack = max(1e-9, 4 * torch.finfo(probs.dtype).eps)
    within = TOLERANCE - slack
    if bool(((low >= 0) & (sums >= 1 - within) & (high <= 1 + within)).all()):
        return probs
    slack = max(slack, _rounding(probs))
    lowest, smallest, largest = (each.double().numpy() for each in (low, sums, high))
    checks.refuse(
        np.isnan(smallest) | np.isnan(lowest), "NaN", lambda _: f"{name!r} holds NaN; {SKIP}"
    )
    checks.refuse(
        lowest < 0,
        "negative probability",
        lambda row: f"{name!r} is negative ({lowest[row]:.4g}); {_raw_scores(name)}",
    )
    off = np.where(np.abs(smallest - 1) > np.abs(largest - 1), smallest, largest)
    checks.refuse(
        np.abs(off - 1) > TOLERANCE + slack,
        "sum of probabilities",
        lambda row: (
            f"{name!r} sums to {off[row]:.6g}, not to 1; {_raw_scores(name)}, "
            "other rows are to be divided by their sum"
        ),
    )
    is_beyond = (totals - 1).abs() > within
    return probs.where(~is_beyond.unsqueeze(1), probs / totals.unsqueeze(1))


def _rounding(probs: Tensor) -> float:
    """What rounding may add to a sum, where numbers were kept as bfloat16 before."""
    are_coarse = (probs == probs.bfloat16()) | probs.isnan()
    return 2**-8 if bool(are_coarse.all()) else 0.0


def check_logits(checks: RowChecks, name: str, logits: Tensor) -> None:
    """Finite numbers only."""
    finite = logits.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        checks.refuse(
            ~finite.numpy(), "NaN or infinity", lambda _: f"{name!r} is not finite; {SKIP}"
        )


def check_labels(checks: RowChecks, labels: Tensor, classes: int, ignored: int | None) -> None:
    """Class numbers from 0 on; `ignored` may occur in label maps."""
    bad = (labels < 0) | (labels >= classes)
    if ignored is not None:
        bad &= labels != ignored
    if not bool(bad.any()):
        return
    checks.refuse(
        bad.flatten(1).any(1).numpy() if bad.ndim > 1 else bad.numpy(),
        "label outside the classes",
        lambda row: (
            f"label {int(labels[row][bad[row]].flatten()[0])} is outside [0, {classes}); "
            f"{_label_remedy(labels)}"
        ),
    )


def check_class_names(checks: RowChecks, classes: Sequence[str] | None) -> None:
    """Every name once."""
    twice = [name for name, count in Counter(classes or ()).items() if count > 1]
    if twice:
        raise PredictionFileError(
            f"{checks.where}: {twice[0]!r} names several classes; give each a name of its own"
        )


def check_confidence(checks: RowChecks, name: str, confidence: Tensor) -> None:
    """Numbers from 0 to 1."""
    fine = (confidence >= 0) & (confidence <= 1 + TOLERANCE)
    if bool(fine.all()):
        return
    values = confidence.double().numpy()
    checks.refuse(
        ~fine.numpy(),
        "confidence outside [0, 1]",
        lambda row: (
            f"{name!r} is {values[row]:.6g}, outside [0, 1]; give probabilities of the "
            "predicted class, percentages divided by 100"
        ),
    )


def check_boxes(checks: RowChecks, name: str, corners: np.ndarray) -> None:
    """Corners x1 <= x2, y1 <= y2 in [0, 1], but for roundings."""
    inside = np.asarray(((corners >= -1e-6) & (corners <= 1 + 1e-6)).all(1))
    checks.refuse(
        ~inside,
        "box outside the image",
        lambda row: (
            f"{name!r} is {_short(corners[row])}, not in [0, 1]: divide pixels by width and "
            f"height of the image, or leave {name!r} out to audit by confidence alone"
        ),
    )
    checks.refuse(
        np.asarray((corners[:, 2:] < corners[:, :2]).any(1)),
        "corners in the wrong order",
        lambda row: (
            f"{name!r} is {_short(corners[row])}: give x1 y1 x2 y2 with x1 <= x2 and y1 <= y2, or "
            f"leave {name!r} out to audit by confidence alone"
        ),
    )


def _raw_scores(name: str) -> str:
    """What to do about raw scores under this name, which may say that they are none."""
    if name.strip().lower() in UNNAMED or name.strip().isdecimal():
        return "raw scores need --kind logits"
    return "raw scores are to be called 'logits', or 'logit_<class>'"


def _short(numbers: np.ndarray) -> str:
    return "[" + ", ".join(f"{number:.4g}" for number in numbers) + "]"


def _label_remedy(labels: Tensor) -> str:
    if labels.ndim > 1:
        return "name the label of void pixels with --ignore-index"
    if int(labels.min()) >= 1:
        return "classes are counted from 0: subtract the smallest label"
    return SKIP
