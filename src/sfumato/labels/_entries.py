"""What every loss does first and last: check logits and target, reduce the values of the entries.

An *entry* is one prediction: a row of `[N, C]` logits, a pixel of `[N, C, d1, ...]` logits. The
class dimension is always dimension 1 and is never moved, so formulas written with `dim=1` serve
images and dense prediction alike. A loss of single entries reads

    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    softmax = entries.softmax()  # the one pass over the logits
    values = ...  # one number per entry, (N, ...), from softmax.label, softmax.top, ...
    return reduce_entries(values, softmax, reduction)

and one that needs the logits themselves takes `entries.plain()`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_floating, check_integer
from sfumato.ops.library import REAL
from sfumato.ops.plain_softmax import PlainSoftmax, valid_entries
from sfumato.ops.softmax import Also, SoftmaxSummary, softmax_summary

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Counted(Protocol):
    """Entries of which some may be ignored."""

    @property
    def valid(self) -> Tensor | None: ...
    @property
    def count(self) -> int | Tensor: ...


class Entries(NamedTuple):
    """Checked logits and target of one call.

    Attributes:
        logits: (N, C, ...) in float32 or float64; half precision comes in as float32.
        target: class indices (N, ...) int64, or None.
        soft_target: (N, C, ...) in the precision of `logits`, or None.
        ignore_index: class index of entries that are skipped.
    """

    logits: Tensor
    target: Tensor | None
    soft_target: Tensor | None
    ignore_index: int

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def shape(self) -> torch.Size:
        """(N, ...), one number per entry."""
        return self.logits.shape[:1] + self.logits.shape[2:]

    @property
    def indices(self) -> Tensor:
        """The class indices; for losses that were prepared with `soft=False`."""
        if self.target is None:
            raise TypeError("target must hold class indices here")
        return self.target

    @property
    def safe_indices(self) -> Tensor:
        """The class indices with 0 for ignored ones, so that they can be gathered with."""
        target, _ = valid_entries(self.indices, self.num_classes, self.ignore_index)
        return self.indices if target is None else target

    def softmax(
        self,
        *,
        table: Tensor | None = None,
        margin: float | Tensor | None = None,
        also: Also | None = None,
        only: tuple[str, ...] | None = None,
        wants_predicted: bool = False,
        wants_totals: bool = False,
    ) -> SoftmaxSummary:
        """The numbers of each entry that losses are functions of."""
        return softmax_summary(
            self.logits,
            self.target,
            self.soft_target,
            table=table,
            margin=margin,
            ignore_index=self.ignore_index,
            also=also,
            only=only,
            wants_predicted=wants_predicted,
            wants_totals=wants_totals,
        )

    def plain(self) -> PlainSoftmax:
        """The same with the logits themselves, for losses that need more than numbers."""
        target, valid = valid_entries(self.target, self.num_classes, self.ignore_index)
        return PlainSoftmax(self.logits, target, self.soft_target, valid=valid)


def full_precision(logits: Tensor) -> AbstractContextManager[object]:
    """Autocast off, so that products of float32 tensors stay float32."""
    return torch.autocast(device_type=logits.device.type, enabled=False)


def check_reduction(reduction: str) -> None:
    """Raise unless `reduction` is "mean", "sum" or "none"."""
    check_choice("reduction", reduction, REDUCTIONS)


def prepare_entries(
    logits: Tensor, target: Tensor | None, *, ignore_index: int = -100, soft: bool = True
) -> Entries:
    """Check logits and target; labels out of range are found when they are read.

    Args:
        logits: (N, C) or (N, C, d1, ...), floating point, C >= 2.
        target: class indices (N, d1, ...), soft targets shaped like `logits`, or None.
        ignore_index: class index whose entries are skipped; for class indices only.
        soft: whether this loss is defined for soft targets.

    Raises:
        TypeError: wrong kind of tensor, or soft targets where the loss has no meaning for them.
        ValueError: shapes that don't fit.
    """
    _check_logits(logits)
    check_integer("ignore_index", ignore_index, low=-(2**63))
    # Types are looked at, because a conversion costs something where there is nothing to convert.
    if logits.dtype not in REAL:
        logits = logits.float()
    if target is None:
        return Entries(logits, None, None, ignore_index)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if target.is_floating_point():
        _check_soft_target(logits, target, ignore_index, allowed=soft)
        return Entries(logits, None, target.to(logits.dtype), ignore_index)
    _check_hard_target(logits, target)
    if target.dtype != torch.int64:
        # Before any comparison: uint8 labels would wrap a negative ignore_index.
        target = target.long()
    return Entries(logits, target, None, ignore_index)


def reduce_entries(
    values: Tensor, counted: Counted, reduction: Reduction, *, weight: Tensor | None = None
) -> Tensor:
    """Reduce one value per entry; ignored entries count neither above nor below the line.

    An empty or all-ignored batch gives 0 with zero gradient, connected to the graph.

    Args:
        values: (N, ...), one number per entry.
        counted: which entries count, and how many they are.
        reduction: "mean" over the valid entries, "sum", or "none" (0 at ignored entries).
        weight: (N, ...), whose sum is the denominator of the mean when entries weigh differently
            (the values are already multiplied by it), as in `F.cross_entropy(weight=...)`.
    """
    valid = counted.valid
    if valid is not None:
        values = torch.where(valid, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if weight is not None:
        total = (weight if valid is None else torch.where(valid, weight, 0.0)).sum()
        return values.sum() / torch.where(total > 0, total, 1.0)
    if valid is None and values.numel():
        return values.mean()
    return values.sum() / at_least_one(counted.count)


def at_least_one(count: int | Tensor) -> int | Tensor:
    """A number of entries to divide by."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(1, count)


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


def _check_hard_target(logits: Tensor, target: Tensor) -> None:
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target must hold integer class indices, got {target.dtype}")
    samples, _, *positions = logits.shape
    expected = (samples, *positions)
    if target.shape != expected:
        raise ValueError(
            f"target must have shape {expected} (class indices) or "
            f"{tuple(logits.shape)} (soft targets, floating point) for logits of shape "
            f"{tuple(logits.shape)}, got {tuple(target.shape)}"
        )
