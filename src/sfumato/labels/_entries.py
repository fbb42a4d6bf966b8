"""What every loss does first and last: check logits and target, mark valid entries, reduce.

An *entry* is one prediction: a row of `[N, C]` logits, a pixel of `[N, C, d1, ...]` logits. The
class dimension is always dimension 1 and is never moved, so formulas written with `dim=1` serve
images and dense prediction alike. A loss reads

    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    with full_precision(logits):
        values = ...  # one number per entry, shape (N, ...), from entries.logits and entries.target
        return reduce_entries(values, entries.valid, reduction)

Entries that are ignored carry class 0 in `entries.target`, so that gathering is safe everywhere;
`reduce_entries` drops them from the sum and from the denominator.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._checks import check_choice, check_class_indices, check_floating, check_integer

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Entries(NamedTuple):
    """Checked logits and target of one call.

    Attributes:
        logits: (N, C, ...) in float32 or float64; half precision comes in as float32.
        target: class indices (N, ...) int64, class 0 where ignored; or soft targets (N, C, ...) in
            the precision of `logits`; or None where a penalty was called without a target.
        valid: (N, ...) bool, False where ignored; one expanded True where it is known beforehand
            that nothing is.
    """

    logits: Tensor
    target: Tensor | None
    valid: Tensor

    @property
    def is_soft(self) -> bool:
        """Whether the target holds probabilities instead of class indices."""
        return self.target is not None and self.target.is_floating_point()

    @property
    def is_complete(self) -> bool:
        """Whether it is known without looking that no entry is ignored."""
        return not is_traced() and not any(self.valid.stride())

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def indices(self) -> Tensor:
        """The class indices; for losses that were prepared with `soft=False`."""
        if self.target is None or self.is_soft:
            raise TypeError("target must hold class indices here")
        return self.target

    def rows(self) -> Entries:
        """The same entries with logits (E, C) and target, valid (E,); copies contiguous maps."""
        classes = self.num_classes

        def flat(tensor: Tensor) -> Tensor:
            return tensor.movedim(1, -1).reshape(-1, classes)

        target = self.target
        if target is not None:
            target = flat(target) if self.is_soft else target.reshape(-1)
        return Entries(flat(self.logits), target, self.valid.reshape(-1))


def is_traced() -> bool:
    """Whether values can't be looked at: under torch.compile, torch.export or torch.func."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def full_precision(logits: Tensor) -> AbstractContextManager[object]:
    """Autocast off, so that products of float32 tensors stay float32."""
    return torch.autocast(device_type=logits.device.type, enabled=False)


def check_reduction(reduction: str) -> None:
    """Raise unless `reduction` is "mean", "sum" or "none"."""
    check_choice("reduction", reduction, REDUCTIONS)


def prepare_entries(
    logits: Tensor, target: Tensor | None, *, ignore_index: int = -100, soft: bool = True
) -> Entries:
    """Check logits and target and mark the valid entries.

    Label ranges are looked at in eager mode on the CPU only: it costs one pass over the labels,
    never over the logits. An accelerator's own gather catches them without a synchronisation.

    Args:
        logits: (N, C) or (N, C, d1, ...), floating point, C >= 2.
        target: class indices (N, d1, ...), soft targets shaped like `logits`, or None (all valid).
        ignore_index: class index whose entries are skipped; for class indices only.
        soft: whether this loss is defined for soft targets.

    Raises:
        TypeError: wrong kind of tensor, or soft targets where the loss has no meaning for them.
        ValueError: shapes that don't fit, or labels outside [0, C).
    """
    _check_logits(logits)
    check_integer("ignore_index", ignore_index, low=-(2**63))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    entry_shape = logits.shape[:1] + logits.shape[2:]
    everywhere = logits.new_ones((), dtype=torch.bool).expand(entry_shape)
    if target is None:
        return Entries(logits, None, everywhere)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if target.is_floating_point():
        _check_soft_target(logits, target, ignore_index, allowed=soft)
        return Entries(logits, target.to(logits.dtype), everywhere)
    return _hard_entries(logits, target, everywhere, ignore_index)


def reduce_entries(
    values: Tensor, valid: Tensor, reduction: Reduction, *, entry_weight: Tensor | None = None
) -> Tensor:
    """Reduce one value per entry; ignored entries count neither above nor below the line.

    An empty or all-ignored batch gives 0 with zero gradient, connected to the graph.

    Args:
        values: (N, ...), one number per entry.
        valid: (N, ...) bool.
        reduction: "mean" over the valid entries, "sum", or "none" (0 at ignored entries).
        entry_weight: (N, ...), the denominator of the mean when entries weigh differently (the
            values are already multiplied by it), as in `F.cross_entropy(weight=...)`.
    """
    values = torch.where(valid, values, torch.zeros_like(values))
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    return values.sum() / mean_denominator(values, valid, entry_weight)


def mean_denominator(values: Tensor, valid: Tensor, entry_weight: Tensor | None = None) -> Tensor:
    """Number (or total weight) of the valid entries, at least 1 (or any positive number)."""
    if entry_weight is None:
        return valid.sum().clamp(min=1).to(values.dtype)
    total = torch.where(valid, entry_weight, torch.zeros_like(entry_weight)).sum()
    return torch.where(total > 0, total, torch.ones_like(total))


def _check_logits(logits: Tensor) -> None:
    check_floating("logits", logits, hint="Pass the network's raw outputs")
    if logits.ndim < 2:
        raise ValueError(
            f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(logits.shape)}. "
            "For a single sample use logits[None]."
        )
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits must have at least 2 classes in dimension 1, got shape {tuple(logits.shape)}. "
            "For a binary task with one output z pass torch.stack([torch.zeros_like(z), z], 1)."
        )


def _check_soft_target(logits: Tensor, target: Tensor, ignore_index: int, *, allowed: bool) -> None:
    if not allowed:
        raise TypeError(
            f"target must hold class indices for this loss, got soft targets ({target.dtype}). "
            "Pass the labels before smoothing or mixing."
        )
    if target.shape != logits.shape:
        raise ValueError(
            f"soft target must have the shape of logits {tuple(logits.shape)}, "
            f"got {tuple(target.shape)}"
        )
    if ignore_index >= 0:
        raise ValueError(
            f"ignore_index={ignore_index} marks class indices, but target holds soft targets. "
            "Leave ignore_index at -100, or pass class indices."
        )


def _hard_entries(logits: Tensor, target: Tensor, everywhere: Tensor, ignore_index: int) -> Entries:
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target must hold integer class indices, got {target.dtype}")
    if target.shape != everywhere.shape:
        raise ValueError(
            f"target must have shape {tuple(everywhere.shape)} (class indices) or "
            f"{tuple(logits.shape)} (soft targets, floating point) for logits of shape "
            f"{tuple(logits.shape)}, got {tuple(target.shape)}"
        )
    # Before any comparison: uint8 labels would wrap a negative ignore_index.
    target = target.long()
    classes = logits.shape[1]
    if not is_traced() and target.device.type == "cpu" and target.numel() > 0:
        low, high = target.aminmax()
        if low < 0 or high >= classes:
            check_class_indices("target", target, classes, ignore_index=ignore_index)
        elif not 0 <= ignore_index < classes:
            return Entries(logits, target, everywhere)
    valid = target != ignore_index
    return Entries(logits, torch.where(valid, target, 0), valid)
