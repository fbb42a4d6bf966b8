"""Intervals of methods and of their differences to a baseline, with seeds and images counted.

The same functions serve one study, which the report shows, and a thousand simulated ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.report.noise import Spread, spread_of_differences, spread_of_methods
from sfumato.report.scales import Scale

LEVEL = 0.05


class ImageNoise(NamedTuple):
    """Variances of means over seeds, on a scale, by the choice of test images; NaN where unknown.

    `shared` is what the images do to all seeds alike, which no spread over seeds shows; `own` is
    what they do to each seed by itself, which that spread contains and can't be less than.
    """

    shared: np.ndarray
    own: np.ndarray


class Intervals(NamedTuple):
    """Means with their 95 % intervals in the metric's own unit, NaN where there is none."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Comparisons(NamedTuple):
    """Differences to the first method with single 95 % intervals and p-values, (..., K - 1).

    `adjusted` p-values hold the probability of any false rejection among the K - 1 at their level.
    """

    intervals: Intervals
    p: np.ndarray
    adjusted: np.ndarray


def method_intervals(values: np.ndarray, scale: Scale, images: ImageNoise) -> Intervals:
    """Of each method's mean over its seeds.

    Args:
        values: (..., K, S), NaN where a run is missing.
        scale: on which noise is symmetric.
        images: of each mean, (..., K). A method with one seed has an interval over images, or none.
    """
    mean = _mean(values)
    centre = scale.forward(mean)
    half = _half_width(_with_images(spread_of_methods(scale.forward(values)), images))
    return Intervals(mean, scale.inverse(centre - half), scale.inverse(centre + half))


def compare_with_first(values: np.ndarray, scale: Scale, images: ImageNoise) -> Comparisons:
    """Of each other method's difference to the first one, over the seeds that both have.

    Args:
        values: (..., K, S), the baseline first, NaN where a run is missing.
        scale: on which noise is symmetric.
        images: of each difference, (..., K - 1). One shared seed leaves an interval over images, or
            none, and no p-value.
    """
    from scipy import special

    shared = np.isfinite(values[..., 1:, :] + values[..., :1, :])
    ours = _mean(np.where(shared, values[..., 1:, :], np.nan))
    theirs = _mean(np.where(shared, values[..., :1, :], np.nan))
    start = scale.forward(theirs)
    change = scale.forward(ours) - start
    over_seeds = spread_of_differences(scale.forward(values))
    spread = _with_images(over_seeds, images)
    half = _half_width(spread)
    low, high = (scale.inverse(start + bound) - theirs for bound in (change - half, change + half))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(change == 0, 0.0, np.abs(change) / np.sqrt(spread.variance))
    p = 2 * special.stdtr(spread.freedom, -ratio)
    p = np.where(np.isnan(over_seeds.freedom), np.nan, p)
    return Comparisons(Intervals(ours - theirs, low, high), p, holm(p))


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment over the last axis; NaN is no comparison and is not counted.

    Valid however the comparisons hang together, as they do by sharing a baseline.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])
    """
    order = np.argsort(p, axis=-1)  # NaN last
    ranked = np.take_along_axis(p, order, -1)
    left = np.isfinite(p).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    raised = np.minimum(np.maximum.accumulate(ranked * np.maximum(left, 1), axis=-1), 1.0)
    adjusted = np.empty_like(raised)
    np.put_along_axis(adjusted, order, raised, -1)
    return adjusted


def _with_images(spread: Spread, images: ImageNoise) -> Spread:
    """Satterthwaite's freedom of the sum; hundreds of resamples leave the images' part certain.

    Where no spread over seeds is seen at all, the images are all that is known.
    """
    seeds = np.maximum(spread.variance, np.nan_to_num(images.own))
    variance = seeds + np.nan_to_num(images.shared)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = spread.freedom * np.where(variance > 0, np.square(variance / seeds), 1.0)
    is_single = np.isnan(spread.freedom) & ~np.isnan(images.shared)
    is_certain = is_single | ((spread.variance == 0) & (variance > 0))
    return Spread(
        np.where(is_single, images.shared, variance), np.where(is_certain, np.inf, freedom)
    )


def _half_width(spread: Spread) -> np.ndarray:
    from scipy import special

    quantile = special.stdtrit(spread.freedom, 1 - LEVEL / 2)
    width: np.ndarray = quantile * np.sqrt(spread.variance)
    return width


def _mean(values: np.ndarray) -> np.ndarray:
    present = np.isfinite(values)
    count = present.sum(-1)
    total = np.where(present, values, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
