"""Class-adaptive label smoothing (CALS): margins whose weights are learnt class by class."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, distributed, nn

from sfumato._core.checks import check_floating, check_integer, check_number
from sfumato.labels._entries import (
    Entries,
    Reduction,
    check_reduction,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.cross_entropy import cross_entropy_fidelity
from sfumato.ops.softmax import SoftmaxSummary

_LEAST, _LARGEST = 1e-6, 1e6
"""Bounds of a multiplier; as released, where each starts at the lower one."""


def cals_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    multipliers: Tensor | None = None,
    rho: float = 1.0,
    margin: float = 10.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The augmented Lagrangian of the constraints that no logit is a margin below the largest.

        h_k = (max_j z_j - z_k - M) / M
        R   = sum_k ( max(0, l_k + rho h_k)^2 - l_k^2 ) / (2 rho)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: only says which entries are ignored; None for none.
        multipliers: (C,) l, at least 0; None for 1e-6, with which `CALSLoss` begins.
        rho: weight of the quadratic term, above 0.
        margin: M, above 0.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". Add it to a fidelity term.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> cals_penalty(torch.tensor([[15.0, 0.0, -5.0]]))
        tensor(0.6250)

    Reference:
        Liu, Rony, Galdran, Dolz and Ben Ayed, "Class Adaptive Network Calibration", CVPR 2023; the
        penalty of Powell, Hestenes and Rockafellar, summed over classes, as released.
    """
    _check(rho, margin)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    multipliers = _checked(multipliers, entries)
    softmax = entries.softmax(margin=_margins(multipliers, rho, margin))
    return reduce_entries(_penalty(softmax, multipliers, rho, margin), softmax, reduction)


def cals_loss(
    logits: Tensor,
    target: Tensor,
    *,
    multipliers: Tensor | None = None,
    rho: float = 1.0,
    margin: float = 10.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy under the constraints of MbLS, each class with a multiplier of its own.

        L = -sum_k q_k log p_k + cals_penalty

    One weight for all classes, as MbLS has, is too much for some and too little for others. Here
    classes whose logits stray further below the largest one are held more strongly.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        multipliers: (C,) l, at least 0; None for 1e-6, with which `CALSLoss` begins.
        rho: weight of the quadratic term, above 0.
        margin: M, above 0.
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip; the mean is over the others.
        reduction: "mean", "sum" or "none" (one value per entry, 0 where ignored).

    Returns:
        A scalar, or (N, d1, ...) for "none". An empty or all-ignored batch gives 0 with zero
        gradient.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> cals_loss(torch.tensor([[15.0, 0.0, -5.0]]), torch.tensor([0]))
        tensor(0.6250)

    Reference:
        Liu et al. 2023; see `cals_penalty`.
    """
    _check(rho, margin)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    multipliers = _checked(multipliers, entries)
    fidelity = cross_entropy_fidelity(
        entries, class_weight=class_weight, margin=_margins(multipliers, rho, margin)
    )
    penalty = _penalty(fidelity.softmax, multipliers, rho, margin)
    return fidelity.plus(penalty, reduction)


class CALSLoss(nn.Module):
    """`cals_loss` whose multipliers are learnt on the validation set.

    Hand it the predictions of the validation set after each epoch, then end the epoch:
    `note_validation(logits, target)`, as often as there are batches, and `end_epoch()`. The
    multiplier of a class becomes the mean slope max(0, l + rho h) of its penalty there. Every
    `rho_every` epochs rho grows by `rho_factor`, up to `rho_max`, where the penalty of the
    validation set has not fallen below `improvement` times that of the epoch before. Save the state
    dict with the checkpoint.

    Args:
        num_classes: C.
        margin: M, above 0.
        rho: weight of the quadratic term in the first epochs, above 0.
        rho_max: largest weight, at least `rho`.
        rho_factor: gamma, at least 1.
        rho_every: epochs from one look at rho to the next.
        improvement: tau, in [0, 1].
        class_weight: (C,), for the cross entropy only.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the other entries, "sum" or "none".

    Example:
        >>> loss = CALSLoss(num_classes=3)
        >>> loss.note_validation(torch.tensor([[15.0, 0.0, -5.0]]), torch.tensor([0]))
        >>> loss.end_epoch()
        >>> loss.multipliers
        tensor([1.0000e-06, 5.0000e-01, 1.0000e+00])

    Reference:
        Liu et al. 2023, CALS-ALM; defaults as released.
    """

    is_of_single_entries: ClassVar[bool] = True
    class_weight: Tensor | None
    multipliers: Tensor
    rho: Tensor
    previous_penalty: Tensor
    completed_epochs: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        margin: float = 10.0,
        rho: float = 1.0,
        rho_max: float = 10.0,
        rho_factor: float = 1.2,
        rho_every: int = 10,
        improvement: float = 0.9,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_integer("num_classes", num_classes, low=2)
        _check(rho, margin)
        check_number("rho_max", rho_max, low=rho)
        check_number("rho_factor", rho_factor, low=1.0)
        check_integer("rho_every", rho_every, low=1)
        check_number("improvement", improvement, low=0.0, high=1.0)
        check_reduction(reduction)
        self.margin, self.rho_max, self.rho_factor = margin, rho_max, rho_factor
        self.rho_every, self.improvement = rho_every, improvement
        self.register_buffer("class_weight", class_weight)
        self.register_buffer("multipliers", torch.full((num_classes,), _LEAST))
        self.register_buffer("rho", torch.tensor(float(rho), dtype=torch.float64))
        self.register_buffer("previous_penalty", torch.zeros((), dtype=torch.float64))
        self.register_buffer("completed_epochs", torch.zeros((), dtype=torch.int64))
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction
        self._noted: Tensor | None = None

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return cals_loss(
            logits,
            target,
            multipliers=self.multipliers,
            rho=float(self.rho),
            margin=self.margin,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    @torch.no_grad()
    def note_validation(self, logits: Tensor, target: Tensor) -> None:
        """Note the slopes of the penalty on validation predictions, (N, C, ...) and (N, ...)."""
        logits = logits.to(self.multipliers.device)
        entries = prepare_entries(
            logits, target.to(logits.device), ignore_index=self.ignore_index, soft=False
        )
        plain, rho = entries.plain(), float(self.rho)
        rows = plain.logits.movedim(1, -1).flatten(0, -2)  # (entries, C)
        rows = rows if plain.valid is None else rows[plain.valid.flatten()]
        constraints = (rows.amax(1, keepdim=True) - rows) / self.margin - 1
        slopes = (self.multipliers + rho * constraints).relu()
        total = slopes.clamp(_LEAST, _LARGEST).double().sum(0)
        penalty = (slopes.square() - self.multipliers.square()).double().sum() / (2 * rho)
        count = penalty.new_tensor(len(rows))
        noted = torch.cat([total, torch.stack([penalty, count])])
        self._noted = noted if self._noted is None else self._noted + noted

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Move multipliers and rho to what was noted; call it once after each epoch.

        Raises:
            RuntimeError: nothing was noted.
        """
        if self._noted is None:
            raise RuntimeError(
                "CALSLoss learns from the validation set: call note_validation(logits, target) "
                "with its predictions before end_epoch()"
            )
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(self._noted)
        noted, self._noted = self._noted, None
        self.completed_epochs += 1
        if noted[-1] == 0:  # all entries were ignored
            return
        means = noted / noted[-1]
        self.multipliers.copy_(means[:-2].clamp(_LEAST, _LARGEST))
        penalty, before = float(means[-2]), float(self.previous_penalty)
        is_due = int(self.completed_epochs) % self.rho_every == 0
        if is_due and before > 0 and penalty > self.improvement * before:
            self.rho.mul_(self.rho_factor).clamp_(max=self.rho_max)
        self.previous_penalty.fill_(penalty)


def _check(rho: float, margin: float) -> None:
    check_number("rho", rho, low=0.0, open_low=True)
    check_number("margin", margin, low=0.0, open_low=True)


def _checked(multipliers: Tensor | None, entries: Entries) -> Tensor:
    """The multipliers in the precision of the logits, (C,)."""
    if multipliers is None:
        return entries.logits.new_full((entries.num_classes,), _LEAST)
    check_floating("multipliers", multipliers)
    if multipliers.shape != (entries.num_classes,):
        raise ValueError(
            f"multipliers must have shape ({entries.num_classes},), one per class, "
            f"got {tuple(multipliers.shape)}"
        )
    return multipliers.to(entries.logits)


def _margins(multipliers: Tensor, rho: float, margin: float) -> Tensor:
    """Beyond which a class costs: l + rho h > 0 where the logit is further below the largest."""
    return margin - multipliers * (margin / rho)


def _penalty(softmax: SoftmaxSummary, multipliers: Tensor, rho: float, margin: float) -> Tensor:
    """The penalty of each entry; l + rho h is rho / M times the excess over the class's margin."""
    # The numbers hold the top constant; here all squares grow with it, and exactly as they do.
    rise = softmax.highest - softmax.highest.detach()  # 0, with slope 1
    squares = softmax.squares + (2 * softmax.excess + softmax.number * rise) * rise
    return squares * (rho / (2 * margin**2)) - multipliers.square().sum() / (2 * rho)
