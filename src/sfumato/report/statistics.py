"""Estimates, intervals and differences to a baseline, with seeds and images counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sfumato._core.metric_descriptions import Range
from sfumato.report.columns import Column
from sfumato.report.read import RunResult


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
        """Map the metric to the scale; NaN stays."""
        if self.range == "any":
            return np.asarray(values, dtype=np.float64)
        moved = np.log(values + self.offset)
        return moved if self.range == "nonnegative" else moved - np.log1p(self.offset - values)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Map the scale to the metric; only what `offset` added is cut off."""
        if self.range == "any":
            return np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore"):  # an interval without a noticeable end
            if self.range == "nonnegative":
                return np.maximum(np.exp(values) - self.offset, 0.0)
            share = 1 / (1 + np.exp(-values))
        return np.clip((1 + 2 * self.offset) * share - self.offset, 0.0, 1.0)

    def slope(self, values: np.ndarray) -> np.ndarray:
        """Return d forward / d value: how much faster the scale moves than the metric."""
        if self.range == "any":
            return np.ones_like(values, dtype=np.float64)
        slope = 1 / (values + self.offset)
        return slope if self.range == "nonnegative" else slope + 1 / (1 + self.offset - values)


def scale_of(column: Column, values: np.ndarray, floor: float | None = None) -> Scale:
    """The scale of a column with these values (NaN where missing).

    Where a value is exactly on a bound, its logarithm is infinite: then the bounds are moved out by
    half the smallest distance that any other value keeps from them, or by the noise floor where
    that is more. Values beyond the bounds, as of a user's own metric, get no scale.
    """
    known = values[np.isfinite(values)]
    top = 1.0 if column.range == "share" else np.inf
    if column.range == "any" or not len(known) or known.min() < 0 or known.max() > top:
        return Scale("any")
    distance = np.minimum(known, top - known)
    if distance.min() > 0:
        return Scale(column.range)
    apart = distance[distance > 0]
    least = 0.5 * apart.min() if len(apart) else 0.0
    return Scale(column.range, max(least, floor or 0.0) or 0.5)


Verdict = Literal["better", "worse", "inconclusive"]
Over = Literal["seeds and images", "seeds", "images", "nothing"]
SYMBOLS: dict[str | None, str] = {"better": "✓", "worse": "✗", "inconclusive": "?", None: ""}
_NEAR_FLOOR = 2.0


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, and what the interval is over.

    `floor` is what is expected for a perfectly calibrated model, of a calibration error.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    over: Over
    floor: float | None = None

    @property
    def is_near_floor(self) -> bool:
        """True if a perfectly calibrated network would show more than half of it."""
        return self.floor is not None and self.mean < _NEAR_FLOOR * self.floor

    @property
    def is_above_floor(self) -> bool:
        """True if a perfectly calibrated network can be excluded."""
        return self.floor is None or (self.low is not None and self.low > self.floor)

    def text(self, column: Column) -> str:
        """`83.1 [81.9, 84.2]`, or `83.1` where no interval is known."""
        return column.with_interval(self.mean, self.low, self.high)

    def floor_text(self, column: Column) -> str:
        """`perfect: 1.9` where the number is near its floor, else nothing."""
        is_near = self.floor is not None and self.is_near_floor
        return f"perfect: {column.number(self.floor or 0.0)}" if is_near else ""


@dataclass(frozen=True)
class Difference:
    """Method minus baseline over the seeds that both have.

    `low` and `high` bound its single 95 % interval, to which `p` belongs; `adjusted`, which the
    verdict follows, is for all `compared` methods of the column together. One seed gives an
    interval over images at most, and no p-value. `verdict` is None for a metric without a good
    direction; `within_floor` says that perfect networks could differ as much, so that it was
    withheld.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    verdict: Verdict | None
    over: Over = "seeds"
    p: float | None = None
    adjusted: float | None = None
    compared: int = 0
    within_floor: bool = False

    def text(self, column: Column) -> str:
        """`+1.2 [+0.3, +2.1]`, in percentage points for shares."""
        return column.with_interval(self.mean, self.low, self.high, sign=True)

    def reason(self) -> str:
        """Say in a few words why the verdict is what it is."""
        if self.within_floor:
            return "perfectly calibrated models could differ as much"
        if self.adjusted is None:
            return "one shared seed tells nothing about methods"
        return f"p = {self.adjusted:.2g}, adjusted for {self.compared} compared"


def verdict_of_interval(
    low: float | None, high: float | None, better: Literal["higher", "lower"]
) -> Verdict:
    """Better or worse only where the interval of a single difference excludes zero."""
    if low is None or high is None or not (low > 0 or high < 0):  # NaN tells nothing
        return "inconclusive"
    return "better" if (low > 0) == (better == "higher") else "worse"


Variances = tuple[float, float]  # shared by all seeds, and each one's own; NaN where unknown


def image_variance(
    runs: Sequence[RunResult], column: Column, scale: Scale, against: Sequence[RunResult] = ()
) -> Variances:
    """Shared and own variance on the scale of the mean over the runs of one method.

    With runs `against` which they are compared, by the same seeds, that of the mean difference,
    resample by resample.
    """
    if not _agree([*runs, *against], column):
        return math.nan, math.nan
    draws = np.stack([_on_scale(run, column, scale) for run in runs])  # (S, R)
    if against:
        draws -= np.stack([_on_scale(run, column, scale) for run in against])
    together, alone = draws.mean(0).var(ddof=1), draws.var(axis=1, ddof=1).mean()
    seeds = len(draws)
    if seeds == 1:
        return float(alone), 0.0
    # Shared by all seeds: the mean covariance of two seeds' resamples. The rest is each one's.
    shared = min(max((seeds * together - alone) / (seeds - 1), 0.0), alone)
    return float(shared), float((alone - shared) / seeds)


def _on_scale(run: RunResult, column: Column, scale: Scale) -> np.ndarray:
    """Scale to first order: resamples of an ECE lie above it, where a logarithm is too calm."""
    value = column.value(run.metrics)
    draws = run.replicates[column.id].astype(np.float64)
    slope: np.ndarray = scale.slope(np.array(np.nan if value is None else value))
    return slope * draws


def _agree(runs: Sequence[RunResult], column: Column) -> bool:
    """True if all runs have finite resamples, as many each and of the same images."""
    marks = set()
    for run in runs:
        draws = run.replicates.get(column.id, np.empty(0))
        units = run.replicates.get(f"{column.split}.units")
        if units is None or draws.ndim != 1 or len(draws) < 2 or not np.isfinite(draws).all():
            return False
        marks.add((str(units), len(draws)))
    return len(marks) == 1


# A dozen methods can't show that their spreads are equal, however alike they look by chance. As
# much as this the pool counts at most, in degrees of freedom; the simulations in
# tests/report/test_simulated_studies.py hold with it.
MOST_PRIOR_FREEDOM = 8.0
_SHARED_SQUARED = 0.25  # correlation of two differences to a baseline that scatters as they do
_NEWTON_STEPS = 10  # to ten digits for an excess below 10,000


class Spread(NamedTuple):
    """Variances of means over seeds and their degrees of freedom, NaN with fewer than two seeds."""

    variance: np.ndarray
    freedom: np.ndarray


def own_spread(values: np.ndarray) -> Spread:
    """Return the spread of each mean over the last axis, from its own values alone."""
    own = _own_variance(values)
    told = own.freedom > 0
    variance = own.variance / np.maximum(np.isfinite(values).sum(-1), 1)
    return Spread(np.where(told, variance, np.nan), np.where(told, own.freedom, np.nan))


def spread_of_differences(values: np.ndarray) -> Spread:
    """Spread of each mean difference to the first method, over shared seeds, (..., K - 1).

    Each difference has its own, so that methods which share networks with the baseline are seen to
    move with it. All contain the baseline's noise, which no average over them removes; the pool is
    therefore the residual of the two-way layout of methods and seeds, or, where the baseline is the
    noisier one, the mean of the differences' spreads.
    """
    differences = values[..., 1:, :] - values[..., :1, :]
    own = _own_variance(differences)
    residual, _ = residual_variance(values)
    mean = _mean_of(own.variance, own.freedom > 0)
    others, _ = residual_variance(values[..., 1:, :])
    found = _moderate(own, np.fmax(2 * residual, mean), _worth(own, mean, others))
    return Spread(found.variance / np.maximum(np.isfinite(differences).sum(-1), 1), found.freedom)


def _worth(own: Spread, mean: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the degrees of freedom of the mean of differences that share a baseline, (...).

    They follow from the square of the correlation of two differences, which is the baseline's part
    of a difference's variance: all that `others`, the scatter of the other methods among
    themselves, leaves. The least that is taken is a half, where all scatter alike; with two seeds,
    which can't show that it is so little, 0.7.
    """
    most = own.freedom.max(-1, initial=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.nan_to_num(1 - others / mean, nan=1.0, neginf=0.0)
    least = np.maximum(_SHARED_SQUARED, _SHARED_SQUARED * 2 / np.maximum(most, 1))
    squared = np.maximum(np.square(np.clip(part, 0.0, 1.0)), least)
    count = (own.freedom > 0).sum(-1)
    worth: np.ndarray = own.freedom.sum(-1) / (1 + np.maximum(count - 1, 0) * squared)
    return np.where(worth > most, worth, most)


def residual_variance(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance that neither method nor seed explains, and its freedom; (...)."""
    *_, methods, seeds = values.shape
    flat = values.reshape(*values.shape[:-2], methods * seeds)
    present = np.isfinite(flat).all(tuple(range(flat.ndim - 1)))
    rows, columns = np.divmod(np.flatnonzero(present), seeds)
    design = np.concatenate([np.eye(methods)[rows], np.eye(seeds)[columns]], axis=1)
    remove = np.eye(len(rows)) - design @ np.linalg.pinv(design)
    freedom = np.rint(np.trace(remove))
    squares = np.square(flat[..., present] @ remove).sum(-1)
    if freedom == 0:
        return np.full_like(squares, np.nan), np.zeros_like(squares)
    return squares / freedom, np.full_like(squares, freedom)


def prior_freedom(own: Spread) -> np.ndarray:
    """Degrees of freedom d0 that the pool is worth for a single spread, (...).

    The more the logarithms of the spreads differ, beyond what chi-squared noise with their degrees
    of freedom explains (trigamma(d / 2)), the less: trigamma(d0 / 2) is the excess. Spreads of
    exactly 0, of a method that repeats the baseline's numbers, tell nothing of noise. Of fewer than
    two spreads there is no pool, and d0 = 0.
    """
    from scipy import special

    told = (own.freedom > 0) & (own.variance > 0)
    half = np.where(told, own.freedom, 1.0) / 2
    logs = np.log(np.where(told, own.variance, 1.0)) - special.digamma(half) + np.log(half)
    centred = np.where(told, logs - _mean_of(logs, told)[..., None], 0.0)
    count = told.sum(-1)
    excess = np.square(centred).sum(-1) / np.maximum(count - 1, 1)
    excess = excess - _mean_of(special.polygamma(1, half), told)
    least = special.polygamma(1, MOST_PRIOR_FREEDOM / 2)
    return np.where(count < 2, 0.0, 2 * _inverse_trigamma(np.maximum(excess, least)))


def _moderate(own: Spread, pool: np.ndarray, most: np.ndarray) -> Spread:
    """Each variance drawn towards the pool; together they are worth at most `most` freedom."""
    prior, told = prior_freedom(own)[..., None], own.freedom > 0
    total = prior + own.freedom
    drawn = np.where(prior > 0, prior * pool[..., None], 0.0)
    with np.errstate(invalid="ignore"):
        variance = (drawn + own.freedom * np.where(told, own.variance, 0.0)) / total
    freedom = np.minimum(total, most[..., None])
    return Spread(np.where(told, variance, np.nan), np.where(told, freedom, np.nan))


def _own_variance(values: np.ndarray) -> Spread:
    """Over the last axis, as far as it is known."""
    present = np.isfinite(values)
    mean = _mean_of(values, present)
    squares = np.square(np.where(present, values - mean[..., None], 0.0)).sum(-1)
    freedom = np.maximum(present.sum(-1) - 1, 0).astype(np.float64)
    return Spread(squares / np.maximum(freedom, 1.0), freedom)


def _mean_of(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Over the last axis; 0 of nothing."""
    found: np.ndarray = np.where(kept, values, 0.0).sum(-1) / np.maximum(kept.sum(-1), 1)
    return found


def _inverse_trigamma(values: np.ndarray) -> np.ndarray:
    """Newton's iteration on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    from scipy import special

    found = 0.5 + 1 / values
    for _ in range(_NEWTON_STEPS):
        trigamma = special.polygamma(1, found)
        found = found + trigamma * (1 - trigamma / values) / special.polygamma(2, found)
    return found


LEVEL = 0.05
_SHARED = 0.5  # correlation of two differences to one baseline, where all scatter alike
_MOST_FREEDOM = 1e5  # beyond it t is normal
_CHI_NODES, _NORMAL_NODES = 24, 8  # p-values to 0.2 % of themselves


class ImageNoise(NamedTuple):
    """Variances of means over seeds, on a scale, by the choice of test images; NaN where unknown.

    `shared` is what the images do to all seeds alike, which no spread over seeds shows; `own` is
    what they do to each seed by itself, which that spread contains.
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

    `adjusted` p-values hold the probability of any false rejection among the K - 1 at their level:
    the larger of `p`, by the method's own spread, and of `step_down` by the common one.
    """

    intervals: Intervals
    p: np.ndarray
    adjusted: np.ndarray


def method_intervals(values: np.ndarray, scale: Scale, images: ImageNoise) -> Intervals:
    """Intervals of each method's mean over its seeds.

    Args:
        values: (..., K, S), NaN where a run is missing.
        scale: on which noise is symmetric.
        images: of each mean, (..., K). A method with one seed has an interval over images, or none.
    """
    mean = _mean(values)
    centre = scale.forward(mean)
    own = own_spread(scale.forward(values))
    told = ~np.isnan(own.variance)
    usual = _mean_of(own.variance, told)
    half = _half_width(_with_images(own, images, np.fmax(own.variance, usual[..., None])))
    return Intervals(mean, scale.inverse(centre - half), scale.inverse(centre + half))


def compare_with_first(values: np.ndarray, scale: Scale, images: ImageNoise) -> Comparisons:
    """Compare each other method with the first, the baseline, over the seeds that both have.

    Args:
        values, scale: as of `method_intervals`.
        images: of each difference, (..., K - 1). One shared seed leaves an interval over images, or
            none, and no p-value.
    """
    from scipy import special

    shared = np.isfinite(values[..., 1:, :] + values[..., :1, :])
    ours, theirs = (
        _mean(np.where(shared, each, np.nan)) for each in (values[..., 1:, :], values[..., :1, :])
    )
    start = scale.forward(theirs)
    change = scale.forward(ours) - start
    scaled = scale.forward(values)
    own, common = own_spread(scaled[..., 1:, :] - scaled[..., :1, :]), spread_of_differences(scaled)
    apart = own_spread(scaled).variance
    seen = np.fmax(np.fmax(own.variance, common.variance), apart[..., 1:] + apart[..., :1])
    spread, steady = (_with_images(each, images, seen) for each in (own, common))
    half = _half_width(spread)
    low, high = (scale.inverse(start + bound) - theirs for bound in (change - half, change + half))
    ratio, steadier = (
        np.where(np.isnan(own.freedom), np.nan, _ratio(change, each)) for each in (spread, steady)
    )
    p = 2 * special.stdtr(spread.freedom, -ratio)
    adjusted = np.maximum(p, step_down(steadier, steady.freedom))
    return Comparisons(Intervals(ours - theirs, low, high), p, adjusted)


def step_down(ratio: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Adjust p-values of |t| ratios to one baseline for their number, over the last axis.

    Dunnett's test, step by step: the largest ratio has to beat the largest of all, the next one the
    largest of those that are left, and so on. NaN is not counted.

    Example:
        >>> step_down(np.array([3.0, 2.5]), np.array([10.0, 10.0])).round(3)
        array([0.024, 0.031])
    """
    order = np.argsort(-ratio, axis=-1)  # NaN last
    ranked = np.take_along_axis(ratio, order, -1)
    left = np.isfinite(ratio).sum(-1, keepdims=True) - np.arange(ratio.shape[-1])
    freedom = np.take_along_axis(np.broadcast_to(freedom, ratio.shape), order, -1)
    p = np.maximum.accumulate(_largest_exceeds(ranked, freedom, np.maximum(left, 1)), axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, p, -1)
    return adjusted


def _largest_exceeds(ratio: np.ndarray, freedom: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the probability that the largest of `count` |t| with one denominator exceeds a ratio.

    Given the baseline's noise and the denominator, which they share, the numerators are
    independent; both are integrated by Gauss' rules.
    """
    from scipy import special

    places, weights = np.polynomial.legendre.leggauss(_CHI_NODES)
    places, weights = (places + 1) / 2, weights / 2
    half = np.minimum(freedom, _MOST_FREEDOM)[..., None] / 2
    # The cube: p-values are decided where the denominator is small.
    scale = np.sqrt(special.gammaincinv(half, places**3) / half)
    bound = ratio[..., None] * scale / np.sqrt(1 - _SHARED)
    inside = np.zeros_like(bound)
    points, shares = np.polynomial.hermite_e.hermegauss(2 * _NORMAL_NODES)
    upper = slice(_NORMAL_NODES, None)  # the lower half adds the same
    for point, share in zip(points[upper], 2 * shares[upper] / shares.sum(), strict=True):
        moved = point * np.sqrt(_SHARED / (1 - _SHARED))
        within = special.ndtr(bound - moved) - special.ndtr(-bound - moved)
        inside += share * within ** count[..., None]
    found: np.ndarray = np.clip(((1 - inside) * weights * 3 * places**2).sum(-1), 0.0, 1.0)
    return found


def _ratio(change: np.ndarray, spread: Spread) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(change == 0, 0.0, np.abs(change) / np.sqrt(spread.variance))


def _with_images(spread: Spread, images: ImageNoise, seen: np.ndarray) -> Spread:
    """Satterthwaite's freedom of the sum; hundreds of resamples leave the images' part certain.

    Two seeds may agree by chance, and then that part seems to be nearly all. So the freedom is that
    of the largest spread `seen`, the method's own or that of others. Where none is seen at all, the
    images are all that is known.
    """
    own, shared = np.nan_to_num(images.own), np.nan_to_num(images.shared)
    most = np.maximum(seen, own)
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = np.where(most + shared > 0, np.square((most + shared) / most), 1.0)
    is_single = np.isnan(spread.freedom) & ~np.isnan(images.shared)
    is_certain = is_single | ((seen == 0) & (own + shared > 0))
    variance = np.where(is_single, images.shared, np.maximum(spread.variance, own) + shared)
    return Spread(variance, np.where(is_certain, np.inf, spread.freedom * grown))


def _half_width(spread: Spread) -> np.ndarray:
    from scipy import special

    quantile = special.stdtrit(spread.freedom, 1 - LEVEL / 2)
    width: np.ndarray = quantile * np.sqrt(spread.variance)
    return width


def _mean(values: np.ndarray) -> np.ndarray:
    present = np.isfinite(values)
    return np.where(present.any(-1), _mean_of(values, present), np.nan)
