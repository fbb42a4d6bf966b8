"""From predictions to what the metrics need of each sample: confidence, correctness, likelihood.

Every metric of a top label reads its numbers here, so that the definitions of confidence, of a
correct prediction and of a valid sample can't drift apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.arrays import numpy_to_tensor
from sfumato._core.checks import check_class_indices, check_floating
from sfumato.ops.distribution import read_distribution
from sfumato.ops.softmax_kernel import plan_pass, read_numbers

_TOLERANCE = {torch.bfloat16: 1e-2}
_DEFAULT_TOLERANCE = 1e-3
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_FINITE = "logits must be finite, got NaN or infinity"


class Samples(NamedTuple):
    """One entry for each sample that counts, in the order of the input.

    Args:
        confidence: probability of the predicted class.
        correct: true where the predicted class (the first, if several tie) is the label.
        log_likelihood: log probability of the label.
    """

    confidence: Tensor  # (M,)
    correct: Tensor  # (M,) bool
    log_likelihood: Tensor  # (M,)


def score(
    predictions: Tensor,
    target: Tensor,
    *,
    from_logits: bool = False,
    ignore_index: int = -100,
    validate: bool = True,
) -> Samples:
    """Confidence, correctness and log likelihood of every sample that is not ignored.

    Args:
        predictions: logits or probabilities, as `from_logits` says.
        target: class indices.
        from_logits: what `predictions` are.
        ignore_index: label of entries that count for nothing.
        validate: check the values; shapes and labels, which are read as addresses, always are.

    Shape:
        predictions: (N, C) or (N, C, d1, ...); target: (N,) or (N, d1, ...).

    Raises:
        ValueError: for rows that don't sum to one, negative, NaN, or labels out of range.
    """
    predictions, target = numpy_to_tensor(predictions), numpy_to_tensor(target)
    values, label, valid = _prepare(
        predictions, target, from_logits=from_logits, ignore_index=ignore_index
    )
    label = label if valid is None else label.where(valid, 0)
    read = _read_logits if from_logits else _read_probs
    found = read(values, label)
    if validate and not from_logits and not found.is_known_sound:
        check_distribution("probs", predictions, valid=valid)
    if validate and from_logits:
        _check_rows(found.confidence.isfinite(), valid, _FINITE)
    confidence, correct, log_likelihood, _ = found
    if valid is not None:
        return Samples(confidence[valid], correct[valid], log_likelihood[valid])
    if confidence.ndim == 1:
        return Samples(confidence, correct, log_likelihood)
    return Samples(confidence.flatten(), correct.flatten(), log_likelihood.flatten())


class _Readings(NamedTuple):
    """`Samples` of all entries, in the shape of the target."""

    confidence: Tensor
    correct: Tensor
    log_likelihood: Tensor
    is_known_sound: bool = True  # nothing negative and the right sums, or nothing to check


def _read_probs(probs: Tensor, label: Tensor) -> _Readings:
    found = read_distribution(probs, label)
    if found is None:
        top, own, correct = _compare_with_label(probs, label)
        own = own.where(~top.isnan(), torch.nan)  # a row with a NaN says nothing of any class
        return _Readings(top, correct, own.log(), False)
    low, high = (float(end) for end in found.sum.aminmax())
    is_sound = abs(low - 1) <= _DEFAULT_TOLERANCE and abs(high - 1) <= _DEFAULT_TOLERANCE
    is_sound = is_sound and float(found.smallest.amin()) >= 0
    top, own = found.largest, found.own
    if math.isnan(low):  # the kernel's largest value passes over a NaN
        known = ~found.sum.isnan()
        top, own = top.where(known, torch.nan), own.where(known, torch.nan)
    return _Readings(top, found.correct, own.log(), is_sound)


def _read_logits(logits: Tensor, label: Tensor) -> _Readings:
    plan = plan_pass(logits, label)
    if plan is not None:
        found = read_numbers(plan, wants_predicted=True)
        predicted = found.predicted_classes()
        log_top = found.of("top")
        return _Readings(log_top.double().exp(), predicted == label, found.of("label"))
    top, own, correct = _compare_with_label(logits, label)
    below = logits - top.unsqueeze(1)
    at_top = below == 0
    # Without the largest term, 1: in single precision 1 + rest can't tell 0.999999 from 0.9999999.
    rest = below.exp().masked_fill_(at_top, 0).sum(1) + (at_top.sum(1) - 1)
    log_top = -rest.log1p()
    return _Readings(log_top.double().exp(), correct, own - top + log_top)


def _compare_with_label(values: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest value, that of the label, and whether the label is the first of the largest.

    The label's entry is compared with the best of the others: two vectorised passes, where an
    `argmax` over the class axis would be several times slower on a CPU.
    """
    column = label.unsqueeze(1)
    own = values.gather(1, column).squeeze(1)
    other = values.scatter(1, column, -torch.inf).amax(1)
    return torch.maximum(own, other), own, _resolve_ties(values, label, own > other, own == other)


def _resolve_ties(values: Tensor, label: Tensor, correct: Tensor, tied: Tensor) -> Tensor:
    """Where the label ties with another class, the first of the tied classes is predicted."""
    if bool(tied.any()):
        rows = values.movedim(1, -1)[tied]  # (T, C)
        correct = correct.masked_scatter(tied, rows.argmax(1) == label[tied])
    return correct


def flat_rows(
    predictions: Tensor,
    target: Tensor,
    *,
    from_logits: bool = False,
    ignore_index: int = -100,
    validate: bool = True,
    softmax: bool = True,
) -> tuple[Tensor, Tensor]:
    """Probabilities (M, C) and labels (M,) of the samples that are not ignored.

    With `softmax=False` logits stay logits.
    """
    predictions, target = numpy_to_tensor(predictions), numpy_to_tensor(target)
    values, label, valid = _prepare(
        predictions, target, from_logits=from_logits, ignore_index=ignore_index
    )
    if validate and not from_logits:
        check_distribution("probs", predictions, valid=valid)
    if from_logits and softmax:
        values = values.softmax(1)
        if validate:
            _check_rows(values.select(1, 0).isfinite(), valid, _FINITE)
    rows = values.movedim(1, -1)
    if valid is None:
        return rows.reshape(-1, rows.shape[-1]), label.flatten()
    return rows[valid], label[valid]


def _prepare(
    predictions: Tensor, target: Tensor, *, from_logits: bool, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Checked values in float32 or float64, labels, and which entries count (None: all)."""
    name = "logits" if from_logits else "probs"
    check_shapes(name, predictions, target)
    if predictions.requires_grad:
        predictions = predictions.detach()
    valid = entries_that_count(target, predictions.shape[1], ignore_index=ignore_index)
    values = predictions if predictions.dtype == torch.float64 else predictions.float()
    return values, target.long(), valid


def check_shapes(name: str, predictions: Tensor, target: Tensor) -> None:
    """Raise unless `predictions` is (N, C, ...) with C >= 2 and `target` is (N, ...)."""
    check_floating(name, predictions)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if predictions.ndim < 2 or predictions.shape[1] < 2:
        raise ValueError(
            f"{name} must be (N, C) or (N, C, d1, ...) with C >= 2 classes, "
            f"got {tuple(predictions.shape)}. "
            "For one probability per sample pass torch.stack([1 - p, p], 1)."
        )
    expected = (predictions.shape[0], *predictions.shape[2:])
    if tuple(target.shape) != expected:
        raise ValueError(
            f"target must be {expected} for {name} {tuple(predictions.shape)}, "
            f"got {tuple(target.shape)}. Targets are class indices, one for each sample."
        )


def entries_that_count(
    target: Tensor, num_classes: int, *, ignore_index: int, validate: bool = True
) -> Tensor | None:
    """Mask of the entries that count, or None where all do."""
    if target.is_floating_point() or target.dtype == torch.bool:
        check_class_indices("target", target, num_classes)
    if not target.numel():
        return None
    target = target.long()  # in uint8, 156 equals -100
    low, high = (int(end) for end in target.aminmax())
    inside = low >= 0 and high < num_classes
    if inside and not 0 <= ignore_index < num_classes:
        return None
    if validate and not inside:
        check_class_indices("target", target, num_classes, ignore_index=ignore_index)
    return target != ignore_index


def check_distribution(name: str, probs: Tensor, *, valid: Tensor | None = None) -> None:
    """Raise unless every row along axis 1 is non-negative and sums to one.

    The sum may be off by 1e-3 (1e-2 in bfloat16), so that rounded tables pass and logits don't.
    """
    if not probs.numel():
        return
    probs = probs.detach()
    tolerance = _TOLERANCE.get(probs.dtype, _DEFAULT_TOLERANCE)
    # Sign bits, read as integers: the fastest way to bring the values into the cache, too.
    signed = int(probs.view(_SIGNED[probs.element_size()]).amin()) < 0
    if signed:  # first: a row with a negative entry rarely has the right sum either
        lowest = probs.amin(1)
        what = f"{name} must not be negative"
        _check_rows(~(lowest < 0), valid, what, shown=lowest, hint="For raw scores pass logits.")
    sums = probs.sum(1, dtype=torch.float64 if probs.dtype == torch.float64 else torch.float32)
    low, high = (float(end) for end in sums.aminmax())
    if not 1 - tolerance <= low <= high <= 1 + tolerance:
        what = f"{name} must sum to one over the classes (within {tolerance:g}) and hold no NaN"
        good = (sums - 1).abs() <= tolerance
        _check_rows(good, valid, what, shown=sums, hint="For raw scores pass logits.")


def _check_rows(
    good: Tensor, valid: Tensor | None, what: str, *, shown: Tensor | None = None, hint: str = ""
) -> None:
    """Raise with the position of the first row that counts and is not good."""
    if bool(good.all()):
        return
    bad = ~good if valid is None else ~good & valid
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        value = "" if shown is None else f", got {float(shown[where]):.6g}"
        raise ValueError(f"{what}{value} at sample {where}. {hint}".rstrip(". "))
