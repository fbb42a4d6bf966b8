"""Likelihoods of smoothed labels: a normalised cross entropy, and averages over augmented copies.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, Eq. (14)-(28) and appendices C, D.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import check_floating
from sfumato.labels._entries import (
    LossModule,
    Reduction,
    arguments_of,
    prepare_entries,
    reduce_entries,
)

# log(sinh(x) / x) = sum_n _SERIES[n-1] x^(2n); at |x| = 1/4 the first omitted term is below 1e-16.
_SERIES = (1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775, -691 / 3831077250)
_SERIES_BELOW = 0.25


def log_normaliser(logits: Tensor) -> Tensor:
    """Logarithm of the normaliser Z of the cross-entropy likelihood of smoothed labels.

    Z sums the likelihood over every class and integrates it over every amount of smoothing,
    with f the softmax of the logits and g the geometric mean of its entries:

        Z = sum_j (g - f_j) / (log g - log f_j)                                       (App. C)

    A term is f_j where f_j = g. With x = (log g - log f_j) / 2 it is sqrt(g f_j) sinh(x) / x, whose
    logarithm is finite at x = 0 and for probabilities that underflow.

    Args:
        logits: (N, C) or (N, C, d1, ...).

    Returns:
        (N, d1, ...): 0 where all classes are equally probable, negative elsewhere.

    Example:
        >>> log_normaliser(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor([ 0.0000, -0.2723])

    Reference:
        Mollification paper, appendix C.

    Differs:
        The released code divides 0 by 0 where a probability equals the geometric mean.
    """
    return _log_normaliser(prepare_entries(logits, None).plain().log_probs)


def normalised_cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy whose likelihood is a proper distribution over the smoothed labels.

    That of cross entropy doesn't sum to one; it is divided by its normaliser Z.

        L = -sum_c y_c log f_c + log Z                                      (Eq. 15 and App. C)

    The authors saw no gain over the plain cross entropy; it is here to be compared with.

    Args:
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, 0.0]])
        >>> normalised_cross_entropy_loss(logits, torch.tensor([[0.8, 0.1, 0.1]]))
        tensor(0.3350)

    Reference:
        Mollification paper, Eq. (15) and appendix C.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    plain = entries.plain()
    values = _log_normaliser(plain.log_probs) - plain.label  # Eq. (15)
    return reduce_entries(values, plain, reduction)


class NormalisedCrossEntropyLoss(LossModule):
    """Normalised cross entropy as a module; see `normalised_cross_entropy_loss`."""

    is_of_single_entries: ClassVar[bool] = True
    is_negative_log_likelihood: ClassVar[bool] = True

    @arguments_of(normalised_cross_entropy_loss)
    def __init__(self) -> None: ...


def jensen_log_likelihood(log_likelihood: Tensor, *, dim: int = 0) -> Tensor:
    """Lower bound of the log expected likelihood over K copies: the mean of the logarithms.

        log I >= 1/K sum_k log p(y | x, phi_k)                                      (Eq. 21-22)

    Args:
        log_likelihood: log p(y_n | x_n, phi_k), the copies k along `dim`.
        dim: the dimension of the copies.

    Example:
        >>> jensen_log_likelihood(torch.tensor([0.5, 0.25]).log())
        tensor(-1.0397)

    Reference:
        Mollification paper, Eq. (3) and (20)-(22).
    """
    _check_copies(log_likelihood, dim)
    return log_likelihood.mean(dim)  # Eq. (22)


def monte_carlo_log_likelihood(log_likelihood: Tensor, *, dim: int = 0) -> Tensor:
    """Logarithm of the mean likelihood over K copies, too low on average for finite K.

        log I_K = log 1/K sum_k p(y | x, phi_k)                                        (Eq. 19)

    Args as in `jensen_log_likelihood`.

    Example:
        >>> monte_carlo_log_likelihood(torch.tensor([0.5, 0.25]).log())
        tensor(-0.9808)

    Reference:
        Mollification paper, Eq. (18)-(19).
    """
    copies = _check_copies(log_likelihood, dim)
    return log_likelihood.logsumexp(dim) - math.log(copies)  # Eq. (19)


def bias_corrected_log_likelihood(log_likelihood: Tensor, *, dim: int = 0) -> Tensor:
    """Monte Carlo log-likelihood with its leading bias removed.

        log I ~ log I_K + var[I_K] / (2 I_K^2)                                         (Eq. 25)
        var[I_K] = 1/(K (K - 1)) sum_k (p_k - I_K)^2                                   (Eq. 26)

    Computed from the ratios p_k / I_K, which never exceed K, so that tiny likelihoods are safe.

    Args as in `jensen_log_likelihood`.

    Returns:
        `log_likelihood` without `dim`; with one copy, or likelihoods 0 only, the Monte Carlo value.

    Example:
        >>> bias_corrected_log_likelihood(torch.tensor([0.5, 0.25]).log())
        tensor(-0.9253)

    Reference:
        Mollification paper, Eq. (23)-(27).

    Differs:
        The paper calls K = 1 unbiased; the bias of Eq. (20)-(21) is there, but can't be estimated.
    """
    copies = _check_copies(log_likelihood, dim)
    mean = monte_carlo_log_likelihood(log_likelihood, dim=dim)
    if copies == 1:
        return mean
    # Where every copy is impossible, infinity minus infinity would be NaN.
    possible = mean > -math.inf
    reference = torch.where(possible, mean, torch.zeros_like(mean)).unsqueeze(dim)
    ratio = (log_likelihood - reference).exp()  # p_k / I_K
    variance = (ratio - 1).square().sum(dim) / (copies * (copies - 1))  # Eq. (26) / I_K^2
    return mean + torch.where(possible, variance / 2, torch.zeros_like(mean))  # Eq. (25)


def geometric_log_likelihood(log_likelihood: Tensor, *, dim: int = 0) -> Tensor:
    """Tempered likelihood of K copies, each with the exponent 1/K.

        log p_geom = log prod_k p(y | x, phi_k)^(1/K)                                  (Eq. 28)

    The same number as `jensen_log_likelihood`, read as a model instead of a bound.

    Args as in `jensen_log_likelihood`.

    Example:
        >>> geometric_log_likelihood(torch.tensor([0.5, 0.25]).log()).exp()
        tensor(0.3536)

    Reference:
        Mollification paper, Eq. (28).
    """
    copies = _check_copies(log_likelihood, dim)
    return (log_likelihood / copies).sum(dim)  # Eq. (28)


def _log_normaliser(log_probs: Tensor) -> Tensor:
    log_mean = log_probs.mean(1, keepdim=True)  # log g
    half_gap = (log_mean - log_probs) / 2
    return ((log_mean + log_probs) / 2 + _log_sinhc(half_gap)).logsumexp(1)  # App. C


def _log_sinhc(x: Tensor) -> Tensor:
    """log(sinh(x) / x), smooth through 0 and linear in |x| far away."""
    size = x.abs()
    near = size < _SERIES_BELOW
    # The branch not taken must stay finite, or its gradient turns the other's into NaN.
    far_size = torch.where(near, torch.ones_like(x), size)
    far = far_size + (-(-2 * far_size).expm1()).log() - (2 * far_size).log()
    square = torch.where(near, x, torch.zeros_like(x)).square()
    series = torch.zeros_like(x)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) * square
    return torch.where(near, series, far)


def _check_copies(log_likelihood: Tensor, dim: int) -> int:
    """Raise unless there is at least one copy along `dim`; return the number of copies."""
    check_floating("log_likelihood", log_likelihood, hint="Pass logarithms of probabilities")
    if not -log_likelihood.ndim <= dim < log_likelihood.ndim:
        raise ValueError(
            f"dim must name a dimension of log_likelihood {tuple(log_likelihood.shape)}, got {dim}"
        )
    if log_likelihood.shape[dim] == 0:
        raise ValueError(
            f"log_likelihood must hold at least one copy along dim {dim}, "
            f"got shape {tuple(log_likelihood.shape)}"
        )
    return log_likelihood.shape[dim]
