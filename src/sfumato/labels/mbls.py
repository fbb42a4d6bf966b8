"""Margin-based label smoothing (MbLS), and its class-adaptive form (CALS)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, distributed

from sfumato._core.checks import (
    KeepsPrecision,
    check_floating,
    check_integer,
    check_number,
    to_float64,
)
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    arguments_of,
    factor_like,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.correctness import are_many_processes
from sfumato.labels.cross_entropy import cross_entropy_fidelity
from sfumato.ops.softmax import SoftmaxSummary


def margin_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    margin: float = 10.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return how far logits lie below the largest one, beyond a margin.

        R = (1 / C) sum_k max(0, max_j z_j - z_k - M)

    Where z_top - z_k > M, z_k is raised and z_top lowered by a constant; elsewhere nothing moves.

    Args:
        target: only says which entries are ignored; None for none.
        margin: M, at least 0.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> margin_penalty(torch.tensor([[12.0, 0.0, -1.0]]))
        tensor(1.6667)

    Reference:
        Liu et al. 2022 (MbLS); ACLS (Park et al. 2023), supplement Eq. (14).

    Differs:
        Averaged over N x C as in the released code, with which weight 0.1 was tuned; Eq. (14) sums
        over the classes. Eq. (15) holds z_top constant, the released code and this function don't.
        The released code averages over ignored pixels too.
    """
    check_number("margin", margin, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax(margin=margin)
    return reduce_entries(_penalty(softmax) / entries.num_classes, softmax, reduction)


def mbls_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Margin-based label smoothing: cross entropy plus `weight` times `margin_penalty`.

    Distances between logits must not exceed a margin, where label smoothing asks them to be equal:
    predictions that are fine aren't pulled down.

        L = -sum_k q_k log p_k + (weight / C) sum_k max(0, max_j z_j - z_k - M)

    Args:
        margin: M, at least 0; 6 for CIFAR-10, 10 for Tiny-ImageNet, ImageNet and segmentation.
        weight: of the penalty, at least 0; 0.1 everywhere.
        class_weight: (C,), for the cross entropy only.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> mbls_loss(torch.tensor([[12.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1667)

    Reference:
        Liu et al. 2022 (MbLS); normalisation and `Differs:` in `margin_penalty`.
    """
    check_number("margin", margin, low=0.0)
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    fidelity = cross_entropy_fidelity(entries, class_weight=class_weight, margin=margin)
    penalty = _penalty(fidelity.softmax) * (weight / entries.num_classes)
    return fidelity.plus(penalty, reduction)


class MbLSLoss(LossModule):
    """Margin-based label smoothing as a module; see `mbls_loss`."""

    is_of_single_entries: ClassVar[bool] = True

    @arguments_of(mbls_loss)
    def __init__(self) -> None: ...


def _penalty(softmax: SoftmaxSummary) -> Tensor:
    """C times the penalty of each entry."""
    # `excess` holds the top constant; here it goes down by what the others go up.
    rise = softmax.highest - softmax.highest.detach()  # 0, with slope 1
    return softmax.excess + softmax.number * rise  # supplement Eq. (14)


# Bounds of a multiplier; as released, where each starts at the lower one.
_LEAST, _LARGEST = 1e-6, 1e6


def cals_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    multipliers: Tensor | None = None,
    rho: float = 1.0,
    margin: float = 10.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The augmented Lagrangian of the constraints that no logit is a margin below the largest.

        h_k = (max_j z_j - z_k - M) / M
        R   = sum_k ( max(0, l_k + rho h_k)^2 - l_k^2 ) / (2 rho)

    Args:
        target: only says which entries are ignored; None for none.
        multipliers, rho, margin: as in `cals_loss`.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> cals_penalty(torch.tensor([[15.0, 0.0, -5.0]]))
        tensor(0.6250)

    Reference:
        Liu, Rony, Galdran, Dolz and Ben Ayed, "Class Adaptive Network Calibration", CVPR 2023; the
        penalty of Powell, Hestenes and Rockafellar, summed over classes, as released.
    """
    _check(rho, margin)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    multipliers = _checked(multipliers, entries)
    softmax = entries.softmax(margin=_margins(multipliers, rho, margin))
    return reduce_entries(_class_penalty(softmax, multipliers, rho, margin), softmax, reduction)


def cals_loss(
    logits: Tensor,
    target: Tensor,
    *,
    multipliers: Tensor | None = None,
    rho: float = 1.0,
    margin: float = 10.0,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy under the constraints of MbLS, each class with a multiplier of its own.

        L = -sum_k q_k log p_k + cals_penalty

    Classes whose logits stray further below the largest one are held more strongly, where MbLS has
    one weight for all.

    Args:
        multipliers: (C,) l, at least 0; None for 1e-6, with which `CALSLoss` begins.
        rho: weight of the quadratic term, above 0.
        margin: M, above 0.
        class_weight: (C,), for the cross entropy only.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> cals_loss(torch.tensor([[15.0, 0.0, -5.0]]), torch.tensor([0]))
        tensor(0.6250)

    Reference:
        Liu et al. 2023; see `cals_penalty`.
    """
    _check(rho, margin)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    return _loss(entries, multipliers, rho, margin, class_weight, reduction)


class CALSLoss(LossModule, KeepsPrecision):
    """`cals_loss` whose multipliers are learnt on the validation set.

    After each epoch call `note_validation(logits, target)` with each batch of the validation set,
    then `end_epoch()`. The multiplier of a class becomes the mean slope max(0, l + rho h) of its
    penalty there. Every `rho_every` epochs rho grows by `rho_factor`, up to `rho_max`, where the
    penalty has not fallen below `improvement` times that of the epoch before. Save the state dict
    with the checkpoint.

    Args:
        num_classes: C.
        margin: M, above 0.
        rho: weight of the quadratic term in the first epochs, above 0.
        rho_max: largest weight, at least `rho`.
        rho_factor: gamma, at least 1.
        rho_every: epochs from one look at rho to the next.
        improvement: tau, in [0, 1].

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
    margin: float
    rho_max: float
    rho_factor: float
    rho_every: int
    improvement: float
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
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals(), buffers=("rho",))
        check_integer("num_classes", num_classes, low=2)
        _check(rho, margin)
        check_number("rho_max", rho_max, low=rho)
        check_number("rho_factor", rho_factor, low=1.0)
        check_integer("rho_every", rho_every, low=1)
        check_number("improvement", improvement, low=0.0, high=1.0)
        self.register_buffer("multipliers", torch.full((num_classes,), _LEAST))
        self.register_buffer("rho", torch.tensor(float(rho), dtype=torch.float64))
        self.register_buffer("previous_penalty", torch.zeros((), dtype=torch.float64))
        self.register_buffer("completed_epochs", torch.zeros((), dtype=torch.int64))
        self._noted: Tensor | None = None

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        entries = self.entries(logits, target)
        # rho as a tensor: torch.compile can't read a number of it.
        return _loss(
            entries, self.multipliers, self.rho, self.margin, self.class_weight, self.reduction
        )

    @torch.no_grad()
    def note_validation(self, logits: Tensor, target: Tensor) -> None:
        """Note the slopes of the penalty on validation predictions, (N, C, ...) and (N, ...)."""
        logits = logits.to(self.multipliers.device)
        entries = self.entries(logits, target.to(logits.device), soft=False)
        plain, rho = entries.plain(), float(self.rho)
        rows = plain.logits.movedim(1, -1).flatten(0, -2)  # (entries, C)
        rows = rows if plain.valid is None else rows[plain.valid.flatten()]
        constraints = (rows.amax(1, keepdim=True) - rows) / self.margin - 1
        slopes = (self.multipliers + rho * constraints).relu()
        total = to_float64(slopes.clamp(_LEAST, _LARGEST)).sum(0)
        penalty = to_float64(slopes.square() - self.multipliers.square()).sum() / (2 * rho)
        count = penalty.new_tensor(len(rows))
        noted = torch.cat([total, torch.stack([penalty, count])])
        self._noted = noted if self._noted is None else self._noted + noted

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Move multipliers and rho to what was noted; call it once after each epoch."""
        if self._noted is None:
            raise RuntimeError(
                "CALSLoss learns from the validation set: call note_validation(logits, target) "
                "with its predictions before end_epoch()"
            )
        # One sum of everything that was noted: a single message, whatever the number of classes.
        if are_many_processes():
            distributed.all_reduce(self._noted)
        noted, self._noted = self._noted, None
        self.completed_epochs += 1
        if noted[-1] == 0:  # all entries were ignored
            return
        means = noted / noted[-1]
        self.multipliers.copy_(means[:-2].clamp(_LEAST, _LARGEST))
        penalty, before = float(means[-2]), float(self.previous_penalty)
        is_due = int(self.completed_epochs) % self.rho_every == 0
        # The first epoch has nothing to compare with: rho stays.
        if is_due and before > 0 and penalty > self.improvement * before:
            self.rho.mul_(self.rho_factor).clamp_(max=self.rho_max)
        self.previous_penalty.fill_(penalty)


def _check(rho: float, margin: float) -> None:
    check_number("rho", rho, low=0.0, open_low=True)
    check_number("margin", margin, low=0.0, open_low=True)


def _checked(multipliers: Tensor | None, entries: Entries) -> Tensor:
    """The multipliers in the precision of the logits, (C,)."""
    if multipliers is None:
        return entries.like.new_full((entries.num_classes,), _LEAST)
    check_floating("multipliers", multipliers)
    if multipliers.shape != (entries.num_classes,):
        raise ValueError(
            f"multipliers must have shape ({entries.num_classes},), one per class, "
            f"got {tuple(multipliers.shape)}"
        )
    return multipliers.to(entries.like)


def _loss(
    entries: Entries,
    multipliers: Tensor | None,
    rho: float | Tensor,
    margin: float,
    class_weight: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    multipliers = _checked(multipliers, entries)
    fidelity = cross_entropy_fidelity(
        entries, class_weight=class_weight, margin=_margins(multipliers, rho, margin)
    )
    penalty = _class_penalty(fidelity.softmax, multipliers, rho, margin)
    return fidelity.plus(penalty, reduction)


def _margins(multipliers: Tensor, rho: float | Tensor, margin: float) -> Tensor:
    """Beyond which a class costs: l + rho h > 0 where the logit is further below the largest."""
    return margin - multipliers * factor_like(margin / rho, multipliers)


def _class_penalty(
    softmax: SoftmaxSummary, multipliers: Tensor, rho: float | Tensor, margin: float
) -> Tensor:
    """The penalty of each entry; l + rho h is rho / M times the excess over the class's margin."""
    # The numbers hold the top constant; here all squares grow with it, and exactly as they do.
    rise = softmax.highest - softmax.highest.detach()  # 0, with slope 1
    squares = softmax.squares + (2 * softmax.excess + softmax.number * rise) * rise
    factor = factor_like(rho / (2 * margin**2), squares)
    return squares * factor - multipliers.square().sum() / factor_like(2 * rho, multipliers)
