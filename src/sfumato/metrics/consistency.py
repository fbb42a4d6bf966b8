"""How steady predictions stay along a sequence of perturbed frames.

Reference: Park and Kim, Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy,
Uncertainty, and Robustness, ICML 2022, appendix E.1, Eq. (38)-(40).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_class_indices, check_floating

Reference = Literal["previous", "first"]
_SMALLEST_PROBABILITY = 1e-12


def consistency(probs: Tensor, *, reference: Reference = "previous") -> Tensor:
    """Share of frames that keep the predicted class of the frame before.

    Consistency = 1/M sum_i 1(g(x_i) = g(x_{i+1})), g the most probable class.

    Args:
        probs: probabilities along the sequence.
        reference: compare with the "previous" frame, or with the "first" one, as is usual for noise
            sequences, whose frames have no order (`is_ordered`).

    Shape:
        probs (N, M + 1, K) with at least two frames; the result (N,).

    Example:
        >>> probs = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]])
        >>> consistency(probs), consistency(probs, reference="first")
        (tensor([0.3333]), tensor([0.6667]))

    Reference: Eq. (38).
    """
    _check_sequence(probs)
    check_choice("reference", reference, ("previous", "first"))
    classes = probs.argmax(dim=2)
    before = classes[:, :-1] if reference == "previous" else classes[:, :1]
    return (classes[:, 1:] == before).float().mean(dim=1)  # Eq. (38)


def flip_rate(probs: Tensor, *, reference: Reference = "previous") -> Tensor:
    """Share of frames that change the predicted class: 1 - consistency.

    Example:
        >>> flip_rate(torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]]))
        tensor([0.6667])
    """
    return 1.0 - consistency(probs, reference=reference)


def cross_entropy_consistency(
    probs: Tensor, *, form: Literal["paper", "released"] = "paper"
) -> Tensor:
    """How much the whole predictive distribution moves from frame to frame.

    CEC = -1/M sum_i f(x_i) . log f(x_{i+1}). Probabilities below 1e-12 count as 1e-12 in the
    logarithm.

    Args:
        probs: probabilities along the sequence.
        form: "paper", or "released": divided by the number of classes, frames exchanged.

    Shape:
        probs (N, M + 1, K) with at least two frames; the result (N,).

    Example:
        >>> probs = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> cross_entropy_consistency(probs)
        tensor([0.6931])

    Reference: Eq. (39).

    Differs: the released code takes the mean over classes and -f(x_{i+1}) . log f(x_i). The values
    of table E.3 are of that form.
    """
    _check_sequence(probs)
    check_choice("form", form, ("paper", "released"))
    before, after = probs[:, :-1], probs[:, 1:]
    if form == "released":
        before, after = after, before
    cross_entropy = -(before * after.clamp_min(_SMALLEST_PROBABILITY).log()).sum(dim=2)
    if form == "released":
        cross_entropy = cross_entropy / probs.shape[2]
    return cross_entropy.mean(dim=1)  # Eq. (39)


def relative_confidence(probs: Tensor, target: Tensor) -> Tensor:
    """Probability of the true class over that of the predicted one: below 1 where wrong.

    Relative confidence = p(y_true | x) / max p(y | x).

    Args:
        probs: probabilities of any batch of images or frames.
        target: true classes.

    Shape:
        probs (..., K), target (...) or, for sequences, (N,); the result (...).

    Example:
        >>> relative_confidence(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0]))
        tensor([0.2500, 1.0000])

    Reference: Eq. (40).
    """
    check_floating("probs", probs, hint="Pass probabilities")
    if target.ndim == probs.ndim - 2 and probs.ndim == 3:
        target = target[:, None].expand(probs.shape[:2])
    if target.shape != probs.shape[:-1]:
        raise ValueError(
            f"target must have one class for each of {tuple(probs.shape[:-1])} predictions, "
            f"got shape {tuple(target.shape)}"
        )
    check_class_indices("target", target, probs.shape[-1])
    of_target = probs.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    return of_target / probs.amax(dim=-1)  # Eq. (40)


def _check_sequence(probs: Tensor) -> None:
    check_floating("probs", probs, hint="Pass probabilities, not classes")
    if probs.ndim != 3 or probs.shape[1] < 2:
        raise ValueError(
            f"probs must be (N, frames, classes) with at least two frames, got {tuple(probs.shape)}"
        )
    if probs.numel() and not bool(torch.isfinite(probs).all()):
        raise ValueError("probs must be finite, got nan or inf")
