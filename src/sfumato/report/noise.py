"""How far numbers scatter over seeds, from what all methods of a study show together.

Two or three seeds say little about the spread of one method, but all methods of a study say
something about it: each spread is shrunk towards the pool (moderated t; Smyth, Linear models and
empirical Bayes methods for assessing differential expression, 2004).

Arrays are (..., K, S): K methods, the baseline first, by S seeds, NaN where a run is missing; axes
before those are independent studies with the same runs missing, which the tests simulate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A dozen methods can't show that their spreads are equal, however alike they look by chance. As
# much as this the pool counts at most, in degrees of freedom; the simulations in
# tests/report/test_simulated_studies.py hold with it.
MOST_PRIOR_FREEDOM = 8.0
_NEWTON_STEPS = 10  # to ten digits for an excess below 10,000


class Spread(NamedTuple):
    """Variances of means over seeds and their degrees of freedom, NaN with fewer than two seeds."""

    variance: np.ndarray
    freedom: np.ndarray


def spread_of_methods(values: np.ndarray) -> Spread:
    """Of each method's mean, (..., K).

    What a seed does to all methods alike makes their spreads alike without telling more: the
    more the methods move together, the fewer degrees of freedom the pool is worth.
    """
    own = _own_variance(values)
    seeds = np.isfinite(values).sum(-1)
    pool = _mean_of(own.variance, own.freedom > 0)
    residual, _ = residual_variance(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        together = np.clip(np.nan_to_num(1 - residual / pool), 0.0, 1.0)
    methods = (own.freedom > 0).sum(-1)
    worth = own.freedom.sum(-1) / (1 + np.maximum(methods - 1, 0) * together**2)
    found = _moderate(own, pool, worth)
    return Spread(found.variance / np.maximum(seeds, 1), found.freedom)


def spread_of_differences(values: np.ndarray) -> Spread:
    """Of each mean difference to the first method over the seeds that both have, (..., K - 1).

    The spread of each difference is its own, so that methods which share their networks with the
    baseline are seen to move with it. All differences contain the baseline's noise, which no
    average over them removes; the pool is therefore the residual of the two-way layout of methods
    and seeds, or, where the baseline is the noisier one, the mean of the differences' spreads.
    """
    differences = values[..., 1:, :] - values[..., :1, :]
    own = _own_variance(differences)
    residual, freedom = residual_variance(values)
    pool = np.fmax(2 * residual, _mean_of(own.variance, own.freedom > 0))
    found = _moderate(own, pool, np.maximum(freedom, own.freedom.max(-1, initial=0)))
    return Spread(found.variance / np.maximum(np.isfinite(differences).sum(-1), 1), found.freedom)


def residual_variance(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What neither the method nor the seed explains, by least squares, and its freedom; (...)."""
    *_, methods, seeds = values.shape
    flat = values.reshape(*values.shape[:-2], methods * seeds)
    present = np.isfinite(flat).reshape(-1, methods * seeds).all(0)
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

    The more the logarithms of the spreads differ, beyond what chi-squared noise with their
    degrees of freedom explains (trigamma(d / 2)), the less: trigamma(d0 / 2) is the excess. Spreads
    of exactly 0, of a method that repeats the baseline's numbers, tell nothing of noise. With
    fewer than two spreads there is no pool, and d0 = 0.
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
    prior = prior_freedom(own)[..., None]
    total = prior + own.freedom
    told = own.freedom > 0
    drawn = np.where(prior > 0, prior * pool[..., None], 0.0)
    with np.errstate(invalid="ignore"):
        variance = (drawn + own.freedom * np.where(told, own.variance, 0.0)) / total
    freedom = np.minimum(total, most[..., None])
    return Spread(np.where(told, variance, np.nan), np.where(told, freedom, np.nan))


def _own_variance(values: np.ndarray) -> Spread:
    """Over the last axis, as far as it is known."""
    present = np.isfinite(values)
    count = present.sum(-1)
    mean = np.where(present, values, 0.0).sum(-1) / np.maximum(count, 1)
    squares = np.square(np.where(present, values - mean[..., None], 0.0)).sum(-1)
    freedom = np.maximum(count - 1, 0).astype(np.float64)
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
