"""The scale on which a metric is compared: there its bounds lie at infinity.

Noise multiplies small numbers and can't push a share beyond 0 or 1, so that an interval which is
symmetric on the scale respects the metric's bounds when it is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.report.columns import Column, Range

_HALF = 0.5


@dataclass(frozen=True)
class Scale:
    """Logarithm of nonnegative numbers, logit of shares, anything else as it is.

    `offset` moves the bounds outwards for metrics that reach them; 0 else.

    Example:
        >>> share = Scale("share")
        >>> round(float(share.inverse(share.forward(np.array(0.9)) + 3)), 3)
        0.994
    """

    range: Range
    offset: float = 0.0

    def forward(self, values: np.ndarray) -> np.ndarray:
        """From the metric to the scale; NaN stays."""
        if self.range == "any":
            return np.asarray(values, dtype=np.float64)
        moved = np.log(values + self.offset)
        return moved if self.range == "nonnegative" else moved - np.log1p(self.offset - values)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """From the scale to the metric; only what `offset` added is cut off."""
        if self.range == "any":
            return np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore"):  # an interval without a noticeable end
            if self.range == "nonnegative":
                return np.maximum(np.exp(values) - self.offset, 0.0)
            share = 1 / (1 + np.exp(-values))
        return np.clip((1 + 2 * self.offset) * share - self.offset, 0.0, 1.0)

    def slope(self, values: np.ndarray) -> np.ndarray:
        """How much faster the scale moves than the metric, d forward / d value."""
        if self.range == "any":
            return np.ones_like(values, dtype=np.float64)
        slope = 1 / (values + self.offset)
        return slope if self.range == "nonnegative" else slope + 1 / (1 + self.offset - values)


def scale_of(column: Column, values: np.ndarray, floor: float | None = None) -> Scale:
    """The scale of a column with these values (NaN where missing).

    Where a value is exactly on a bound, its logarithm is infinite: then the bounds are moved out by
    half the smallest distance that any other value keeps from them, or by the metric's noise floor
    where that is more. Values beyond the bounds, which a metric of the user's may have, get no
    scale.

    Args:
        column: which metric.
        values: all that is compared, any shape.
        floor: what a perfect network shows of a calibration error.
    """
    known = values[np.isfinite(values)]
    top = 1.0 if column.range == "share" else np.inf
    if column.range == "any" or not len(known) or known.min() < 0 or known.max() > top:
        return Scale("any")
    distance = np.minimum(known, top - known)
    if distance.min() > 0:
        return Scale(column.range)
    apart = distance[distance > 0]
    least = _HALF * apart.min() if len(apart) else 0.0
    return Scale(column.range, max(least, floor or 0.0) or _HALF)
