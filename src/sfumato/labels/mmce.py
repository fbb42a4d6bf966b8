"""Maximum mean calibration error: pulls confidence and correctness together under a kernel."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato._core.checks import check_number, is_traced
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    arguments_of,
    at_least_one,
    prepare_entries,
    reduce_entries,
)
from sfumato.ops.softmax import SoftmaxSummary

_KERNEL_WIDTH = 0.4


def mmce_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    weighted: bool = False,
    class_dim: int = 1,
    ignore_index: int = -100,
) -> Tensor:
    """Kernel distance between the confidences of right and wrong predictions of one batch.

    With p_i the top-1 confidence, c_i = 1 where the prediction is right and the Laplacian kernel
    k_ij = exp(-|p_i - p_j| / 0.4), over the N valid entries, m of them right and n wrong:

        plain:     sum_ij (c_i - p_i)(c_j - p_j) k_ij / N^2
        weighted:  sqrt( sum_{right, right} (1 - p_i)(1 - p_j) k_ij / m^2
                         + sum_{wrong, wrong} p_i p_j k_ij / n^2
                         - 2 sum_{right, wrong} (1 - p_i) p_j k_ij / (m n) )

    Sorted by confidence the kernel factorises on either side of the diagonal, so prefix sums give
    the exact value in O(N log N), of the pixels of a batch of masks too.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        weighted: the form in which right and wrong predictions count alike, however few are wrong.
        class_dim, ignore_index: as in `cross_entropy_loss`.

    Returns:
        A scalar; 0 for an empty batch. A group without members contributes 0, and the square root
        has gradient 0 where its value is 0.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> mmce_penalty(logits, torch.tensor([0, 0]))
        tensor(0.1072)

    Reference:
        Kumar et al., "Trainable Calibration Measures For Neural Networks From Kernel Mean
        Embeddings", ICML 2018; constants of the authors' code of calibration by focal loss.

    Differs:
        The plain form has no square root, as released. The released weighted form divides
        twice by the group sizes and nearly vanishes; each sum is divided once here.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    return _penalty(entries.softmax(wants_predicted=True), entries, weighted)


def mmce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 1.0,
    weighted: bool = False,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus `weight` times `mmce_penalty`.

        L = -log p_y + weight * MMCE

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...).
        weight: of the penalty; released configurations use 1 (plain) and 2 to 4 (weighted).
        weighted: as in `mmce_penalty`.
        class_dim, ignore_index: as in `cross_entropy_loss`.
        reduction: "mean", "sum" or "none", which adds the one penalty to every valid entry.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> mmce_loss(logits, torch.tensor([0, 0]))
        tensor(0.8273)

    Reference:
        Kumar et al. 2018.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax(wants_predicted=True)
    penalty = weight * _penalty(softmax, entries, weighted)
    return reduce_entries(penalty - softmax.label, softmax, reduction)


class MMCELoss(LossModule):
    """Cross entropy plus the maximum mean calibration error as a module; see `mmce_loss`."""

    takes_soft_targets: ClassVar[bool] = False

    @arguments_of(mmce_loss)
    def __init__(self) -> None: ...


def _penalty(softmax: SoftmaxSummary, entries: Entries, weighted: bool) -> Tensor:
    confidence, right = softmax.top.exp(), softmax.predicted == entries.indices
    valid = softmax.valid
    if not weighted:
        gap = right.to(confidence.dtype) - confidence
        if valid is not None:
            gap = torch.where(valid, gap, 0.0)
        count = at_least_one(softmax.count)
        return _laplacian_form(gap, confidence) / (count * count)
    wrong = ~right
    if valid is not None:
        right, wrong = right & valid, wrong & valid
    # One signed vector for both groups: the three double sums are its quadratic form.
    above = torch.where(right, 1 - confidence, 0.0) / right.sum().clamp(min=1)
    gap = above - torch.where(wrong, confidence, 0.0) / wrong.sum().clamp(min=1)
    # Rounding can leave a positive definite form just below zero.
    form = _laplacian_form(gap, confidence)
    positive = form > 0
    return torch.where(positive, form, 1.0).sqrt() * positive


def _laplacian_form(coefficients: Tensor, positions: Tensor) -> Tensor:
    """sum_ij a_i a_j exp(-|x_i - x_j| / width) for positions in [0, 1], by prefix sums.

    With x sorted the pairs j below i factorise: a_i exp(-x_i / width) sum_j a_j exp(x_j / width).
    Equal positions form one group, so that a tie has gradient 0 as |x| has at 0.
    """
    positions, coefficients = positions.flatten(), coefficients.flatten()
    order = _ascending(positions.detach())
    positions, coefficients = positions.gather(0, order), coefficients.gather(0, order)
    group = (positions.diff(prepend=positions[:1]) > 0).cumsum(0)

    def by_group(values: Tensor) -> Tensor:
        return torch.zeros_like(values).index_add(0, group, values)

    rising = by_group(coefficients * (positions / _KERNEL_WIDTH).exp())
    below = F.pad(rising.cumsum(0)[:-1], (1, 0))
    pairs = coefficients * (-positions / _KERNEL_WIDTH).exp() * below.gather(0, group)
    return 2 * pairs.sum() + by_group(coefficients).square().sum()


def _ascending(positions: Tensor) -> Tensor:
    """Order that sorts numbers which aren't negative."""
    if is_traced() or positions.device.type != "cpu":
        return positions.argsort()
    # They sort like their bits, and on the CPU integers are sorted six times as fast.
    whole = torch.int64 if positions.dtype == torch.float64 else torch.int32
    return positions.view(whole).argsort()
