"""Confidence against what is known of the sample: its true posterior, its objectness."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_floating, check_integer
from sfumato.metrics.calibration import Binning, Norm, error_of_groups
from sfumato.metrics.histogram import group_by_value
from sfumato.metrics.scored_samples import Samples, check_distribution


def true_calibration_error(
    probs: Tensor,
    posterior: Tensor,
    *,
    num_bins: int | None = None,
    norm: Norm = "l1",
    binning: Binning = "width",
    validate: bool = True,
) -> Tensor:
    """Calibration error against the known probability that each prediction is correct.

    With q(c | x) the true posterior and y^ the predicted class, the prediction is correct with
    probability q(y^ | x). Without bins (the default) the error is E|p(y^ | x) - q(y^ | x)|, sample
    by sample: no label noise, and a model can't hide errors of opposite sign in one bin. With
    `num_bins` it is the ECE in which every correctness is replaced by its expectation.

    Args:
        probs: class probabilities.
        posterior: the true class probabilities, as the built-in scenes carry them.
        num_bins: number of bins, or None to compare sample by sample.
        norm: mean, root mean square, or maximum of the gaps.
        binning: bins of equal width, or of equal mass.
        validate: check that rows sum to one.

    Shape:
        probs, posterior: (N, C) or (N, C, d1, ...), the same; output: scalar, float64.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]])
        >>> posterior = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
        >>> true_calibration_error(probs, posterior)
        tensor(0.1000, dtype=torch.float64)
        >>> round(float(true_calibration_error(probs, posterior, num_bins=1)), 4)
        0.0
    """
    check_choice("norm", norm, ("l1", "l2", "max"))
    check_choice("binning", binning, ("width", "mass"))
    _check_pair(probs, posterior, validate=validate)
    confidence, predicted = probs.max(1)
    expected = posterior.gather(1, predicted.unsqueeze(1)).flatten()
    confidence = confidence.flatten()
    if num_bins is None:
        return _norm_of((confidence.double() - expected.double()).abs(), norm)
    check_integer("num_bins", num_bins, low=1)
    groups = group_by_value(Samples(confidence, expected, torch.zeros_like(expected)))
    return error_of_groups(groups, num_bins, norm, binning).clamp(min=0)


def mean_objectness_deviation(
    probs: Tensor, objectness: Tensor, *, validate: bool = True
) -> Tensor:
    """Mean |confidence - objectness|: is the model as sure as the object is large?

    Args:
        probs: class probabilities; (N, C).
        objectness: share of the image that the object covers, in [0, 1]; (N,).
        validate: check that rows sum to one and objectness is in [0, 1].

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
        >>> mean_objectness_deviation(probs, torch.tensor([0.5, 0.5]))
        tensor(0.2500, dtype=torch.float64)

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing (2020), Sec. 4.2.
    """
    check_floating("probs", probs)
    check_floating("objectness", objectness)
    if probs.ndim != 2 or objectness.shape != probs.shape[:1]:
        raise ValueError(
            f"probs must be (N, C) and objectness (N,), got {tuple(probs.shape)} "
            f"and {tuple(objectness.shape)}"
        )
    if validate:
        check_distribution("probs", probs)
        bad = ~((objectness >= 0) & (objectness <= 1))
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"objectness must be in [0, 1], got {float(objectness[first]):g} at sample {first}"
            )
    return (probs.amax(1).double() - objectness.double()).abs().mean()


def _norm_of(gap: Tensor, norm: Norm) -> Tensor:
    if norm == "l1" or not len(gap):
        return gap.mean()
    return gap.max() if norm == "max" else gap.square().mean().sqrt()


def _check_pair(probs: Tensor, posterior: Tensor, *, validate: bool) -> None:
    check_floating("probs", probs)
    check_floating("posterior", posterior)
    if probs.ndim < 2 or probs.shape != posterior.shape:
        raise ValueError(
            "probs and posterior must be (N, C) or (N, C, d1, ...) and the same, "
            f"got {tuple(probs.shape)} and {tuple(posterior.shape)}"
        )
    if validate:
        check_distribution("probs", probs)
        check_distribution("posterior", posterior)
