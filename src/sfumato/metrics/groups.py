"""Score predictions and group them by confidence: what all metrics of a top label start from.

`score` gives confidence, correctness and likelihood of each sample. Groups of equal confidence,
bins and the cells of a stream are sums over those, so a function, its streaming class and a
thousand bootstrap resamples are one piece of code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from sfumato._core.checks import (
    by_convention,
    check_class_indices,
    check_floating,
    classes_second,
    numpy_to_tensor,
)
from sfumato._core.statistics import bin_edges, bin_index, edge_slack, row_weights
from sfumato.ops.library import can_deposit, deposit, read_distribution
from sfumato.ops.softmax import plan_pass, read_numbers

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
        weight: how often each counts; None where all count once.
    """

    confidence: Tensor  # (M,)
    correct: Tensor  # (M,) bool
    log_likelihood: Tensor  # (M,)
    weight: Tensor | None = None  # (M,) float64


def score(
    predictions: Tensor,
    target: Tensor,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    is_stream: bool = False,
) -> Samples:
    """Confidence, correctness and log likelihood of every sample that is not ignored."""
    predictions, target = as_tensors(predictions, target, class_dim)
    values, label, valid = _prepare(predictions, target, from_logits, ignore_index)
    # Labels are read as addresses by the kernel, so an ignored one must be a class too.
    label = label if valid is None else label.where(valid, 0)
    if from_logits:
        found = _read_logits(values, label)
        if validate:
            _check_rows(found.confidence.isfinite(), valid, _FINITE)
    else:
        found, is_sound = _read_probs(values, label)
        if validate and not is_sound:
            check_distribution("probs", predictions, valid=valid)
    weight = row_weights(sample_weight, target, ignore_index, is_stream=is_stream)
    confidence, correct, log_likelihood = (
        each.flatten() if valid is None else each[valid] for each in found[:3]
    )
    return Samples(confidence, correct, log_likelihood, weight)


def _read_probs(probs: Tensor, label: Tensor) -> tuple[Samples, bool]:
    """`Samples` in the shape of the target, and whether every row is known to be a distribution."""
    found = read_distribution(probs, label)
    if found is None:
        top, own, correct = _compare_with_label(probs, label)
        own = own.where(~top.isnan(), torch.nan)  # a row with a NaN says nothing of any class
        return Samples(top, correct, own.log()), False
    low, high = (float(end) for end in found.sum.aminmax())
    is_sound = abs(low - 1) <= _DEFAULT_TOLERANCE and abs(high - 1) <= _DEFAULT_TOLERANCE
    is_sound = is_sound and float(found.smallest.amin()) >= 0
    top, own = found.largest, found.own
    if math.isnan(low):  # the kernel's largest value passes over a NaN
        known = ~found.sum.isnan()
        top, own = top.where(known, torch.nan), own.where(known, torch.nan)
    return Samples(top, found.correct, own.log()), is_sound


def _read_logits(logits: Tensor, label: Tensor) -> Samples:
    """`Samples` in the shape of the target."""
    plan = plan_pass(logits, label)
    if plan is not None:
        found = read_numbers(plan, wants_predicted=True)
        predicted = found.predicted_classes()
        log_top = found.of("top")
        return Samples(log_top.double().exp(), predicted == label, found.of("label"))
    top, own, correct = _compare_with_label(logits, label)
    below = logits - top.unsqueeze(1)
    at_top = below == 0
    # Without the largest term, 1: in single precision 1 + rest can't tell 0.999999 from 0.9999999.
    rest = below.exp().masked_fill_(at_top, 0).sum(1) + (at_top.sum(1) - 1)
    log_top = -rest.log1p()
    return Samples(log_top.double().exp(), correct, own - top + log_top)


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
    """Predict the first of the tied classes where the label ties with another one."""
    if bool(tied.any()):
        rows = values.movedim(1, -1)[tied]  # (T, C)
        correct = correct.masked_scatter(tied, rows.argmax(1) == label[tied])
    return correct


def flat_rows(
    predictions: Tensor,
    target: Tensor,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
    *,
    from_logits: bool = False,
    softmax: bool = True,
) -> tuple[Tensor, Tensor]:
    """Probabilities (M, C) and labels (M,) of the samples that are not ignored.

    With `softmax=False` logits stay logits.
    """
    predictions, target = as_tensors(predictions, target, class_dim)
    values, label, valid = _prepare(predictions, target, from_logits, ignore_index)
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


def as_tensors(predictions: Tensor, target: Tensor, class_dim: int) -> tuple[Tensor, Tensor]:
    """Predictions with their classes in dimension 1, and labels, also of numpy arrays."""
    predictions, target = numpy_to_tensor(predictions), numpy_to_tensor(target)
    if class_dim != 1 and isinstance(predictions, Tensor):
        predictions = classes_second(predictions, class_dim)
    return predictions, target


def _prepare(
    predictions: Tensor, target: Tensor, from_logits: bool, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Checked values in float32 or float64, labels, and which entries count (None: all)."""
    check_shapes("logits" if from_logits else "probs", predictions, target)
    valid = entries_that_count(target, predictions.shape[1], ignore_index=ignore_index)
    values = predictions.detach()
    return values if values.dtype == torch.float64 else values.float(), target.long(), valid


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
        last = target.shape == predictions.shape[:-1]
        hint = "Pass class_dim=-1 where the classes are the last dimension."
        raise ValueError(
            f"target must be {expected} for {name} {tuple(predictions.shape)}, "
            f"got {tuple(target.shape)}. "
            + (hint if last else "Targets are class indices, one for each sample.")
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


def check_known(name: str, predictions: Tensor, *, valid: Tensor | None = None) -> None:
    """Raise where a row along axis 1 that counts holds NaN, which has no largest entry."""
    if predictions.numel():
        _check_rows(~predictions.detach().amax(1).isnan(), valid, f"{name} must hold no NaN")


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


@dataclass(frozen=True)
class Bins:
    """Predictions of each bin of a calibration error, (..., B) each; float64.

    Args:
        count: number of predictions.
        correct: number of correct ones.
        confidence: sum of the confidences.
    """

    count: Tensor
    correct: Tensor
    confidence: Tensor

    @property
    def gap(self) -> Tensor:
        """Sum of confidence minus number of correct predictions."""
        return self.confidence - self.correct


@dataclass(frozen=True)
class Groups(Bins):
    """Predictions grouped by confidence, ascending.

    Args:
        confidence_correct: sum of the confidences of the correct ones, (..., G).
        upper: the largest confidence that belongs to each group, (G,).
    """

    confidence_correct: Tensor
    upper: Tensor

    @property
    def wrong(self) -> Tensor:
        """Number of wrong predictions."""
        return self.count - self.correct


def group_by_value(samples: Samples) -> Groups:
    """One group for each distinct confidence that counts."""
    weight = samples.weight
    if weight is not None:
        kept = weight > 0
        samples = Samples(*(each[kept] for each in (*samples[:3], weight)))
    # Each NaN would be a group of its own; `_group` marks them in the counts instead.
    known = samples.confidence.nan_to_num(nan=0.0)
    upper, member = torch.unique(known, return_inverse=True)
    return _group(samples, member, upper)


def group_by_bin(samples: Samples, num_bins: int) -> Groups:
    """One group for each equal-width bin; no sorting."""
    edges = bin_edges(num_bins, samples.confidence)
    return _group(samples, bin_index(samples.confidence, num_bins), edges)


all_in_one = partial(group_by_bin, num_bins=1)


def _group(samples: Samples, member: Tensor, upper: Tensor) -> Groups:
    confidence, correct = samples.confidence.double(), samples.correct.double()
    size = len(upper)
    # A confidence of NaN makes the count NaN, and so every metric.
    one = torch.ones_like(correct) if samples.weight is None else samples.weight
    correct = correct * one
    return Groups(
        count=_sum_by(one.where(~confidence.isnan(), torch.nan), member, size),
        correct=_sum_by(correct, member, size),
        confidence=_sum_by(confidence * one, member, size),
        confidence_correct=_sum_by(confidence * correct, member, size),
        upper=upper,
    )


Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class OfPredictions(Protocol[Value_co]):
    """A metric of predictions; `of_groups` is the same metric of groups (...), (...) each."""

    __name__: str

    @property
    def of_groups(self) -> Callable[[Groups], Value_co]: ...

    def __call__(
        self,
        probs: Tensor,
        target: Tensor,
        *,
        sample_weight: Any = None,
        class_dim: int = 1,
        ignore_index: int = -100,
        validate: bool = True,
    ) -> Value_co: ...


def of_predictions(
    group: Callable[[Samples], Groups],
) -> Callable[[Callable[[Groups], Value]], OfPredictions[Value]]:
    """Make a metric of groups one of predictions, which `group` puts together."""

    def decorate(of_groups: Callable[[Groups], Value]) -> OfPredictions[Value]:
        def metric(
            probs: Tensor,
            target: Tensor,
            *,
            sample_weight: Any = None,
            class_dim: int = 1,
            ignore_index: int = -100,
            validate: bool = True,
        ) -> Value:
            given = (probs, target, class_dim, ignore_index, validate)
            return of_groups(group(score(*given, sample_weight=sample_weight)))

        # Not `wraps`, after which `help` would show the arguments of `of_groups`.
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(metric, name, getattr(of_groups, name))
        found: Any = by_convention(metric)
        found.of_groups = of_groups
        return found

    return decorate


def width_bins(groups: Groups, num_bins: int) -> Bins:
    """Equal-width bins (lo, hi]; the groups must not straddle an edge."""
    # Groups are ascending, so a bin is a stretch of them: no sorting and no scatter.
    bins = torch.arange(num_bins, device=groups.upper.device)
    ends = torch.searchsorted(bin_index(groups.upper, num_bins), bins, right=True)
    return _sum_stretches(groups, ends.expand(*groups.count.shape[:-1], -1))


def mass_bins(groups: Groups, num_bins: int) -> Bins:
    """Equal-mass bins; groups stay whole."""
    return _sum_stretches(groups, mass_ends(groups.count, num_bins))


def mass_ends(count: Tensor, num_bins: int) -> Tensor:
    """Number of groups up to the end of each equal-mass bin, (..., B).

    The k-th edge is the confidence of the sample at position floor(N k / B), counted from 0 in
    ascending order.
    """
    total = count.sum(-1, keepdim=True)
    steps = torch.arange(1, num_bins, dtype=count.dtype, device=count.device)
    position = torch.floor(total * steps / num_bins)  # (..., B - 1)
    ends = torch.searchsorted(count.cumsum(-1), position, right=True) + 1
    last = torch.full_like(total, count.shape[-1], dtype=ends.dtype)
    return torch.cat([ends.clamp_(max=count.shape[-1]), last], -1)


def _sum_stretches(groups: Groups, ends: Tensor) -> Bins:
    """Sums over the stretches of groups that end before `ends`, (..., B)."""
    columns = (groups.count, groups.correct, groups.confidence)
    if not groups.count.shape[-1]:
        return Bins(*(torch.zeros_like(ends, dtype=column.dtype) for column in columns))
    last, filled = (ends - 1).clamp(min=0), ends > 0
    reached = [column.cumsum(-1).gather(-1, last).where(filled, 0) for column in columns]
    return Bins(*(torch.diff(r, dim=-1, prepend=torch.zeros_like(r[..., :1])) for r in reached))


def divisor(count: Tensor) -> Tensor:
    """The counts to divide by: 1 where there are none."""
    return count.where(count != 0, 1.0)


def mean_of(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of values in float64 that count as often as their weights say."""
    values = values.double()
    if weight is None:
        return values.mean()
    return (values.where(weight > 0, 0.0) * weight).sum() / weight.sum()


def _sum_by(values: Tensor, member: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, dtype=values.dtype, device=values.device)
    return out.index_add_(0, member, values)


_CHUNK = 1_000_000
_CELLS = 15_000
_ZOOM = 1000


def cells_per_unit(num_bins: int) -> int:
    """Uniform cells on [0, 1] such that the edges of `num_bins` bins are edges of cells.

    15,000 serves 10, 12, 15, 20, 25, 30, 50, 100 ... bins at once; other counts get the next
    multiple of their own.
    """
    return num_bins * -(-_CELLS // num_bins)


def _num_cells(cells: int) -> int:
    """Number of cells of the whole grid: `cells` - 1 uniform ones and the division of the last."""
    return cells - 1 + _ZOOM


@lru_cache(maxsize=16)
def cell_edges(cells: int, device: torch.device) -> Tensor:
    """Lower edge of every cell, and 1: `cells` uniform cells, the last divided again in 1,000.

    Trained networks put most of their confidences just below 1; the division resolves
    them to the precision of float32.
    """
    steps = torch.arange(cells, dtype=torch.float64, device=device)
    zoom = torch.arange(1, _ZOOM + 1, dtype=torch.float64, device=device)
    zoom = ((cells - 1) * _ZOOM + zoom) / (cells * _ZOOM)
    return torch.cat([steps / cells, zoom])


def cell_index(confidence: Tensor, cells: int, *, dtype: torch.dtype) -> Tensor:
    """Number of the right-closed cell of each confidence, by the rule of `bin_index`.

    The line through the uniform cells and the steeper one through the divided cell cross where
    the division begins, so the larger value is the right one.
    """
    lines = torch.tensor(
        _cell_lines(cells, dtype), dtype=torch.float64, device=confidence.device
    ).unsqueeze(2)
    cell = torch.addcmul(lines[1], lines[0], confidence).amax(0).long()
    return cell.clamp_(max=_num_cells(cells) - 1)


def _cell_lines(cells: int, dtype: torch.dtype) -> tuple[tuple[float, float], tuple[float, float]]:
    """Slopes and starts of both lines."""
    keep = 1 - edge_slack(dtype)
    return (cells * keep, cells * _ZOOM * keep), (0.0, float((1 - cells) * (_ZOOM - 1)))


def empty_sums(cells: int) -> Tensor:
    """(2 G + 1, 2) zeros, for `cells` as given by `cells_per_unit`."""
    return torch.zeros(2 * _num_cells(cells) + 1, 2, dtype=torch.float64)


def add_samples(sums: Tensor, samples: Samples, cells: int) -> None:
    """Add predictions to their cells, in place."""
    weight = samples.weight
    if weight is None and can_deposit(samples.confidence, sums):
        slope, start = _cell_lines(cells, samples.confidence.dtype)
        deposit(*samples[:3], slope=slope, start=start, sums=sums)
        return
    if lost := int(samples.confidence.isnan().sum()):
        raise ValueError(
            f"confidences must be numbers in [0, 1], got NaN or less than 0 for {lost} of them"
        )
    confidence, likelihood = samples.confidence.double(), samples.log_likelihood.double()
    cell = cell_index(confidence, cells, dtype=samples.confidence.dtype)
    cell = torch.add(samples.correct, cell, alpha=2)
    # Count and confidence as one complex number: one pass over the cells instead of two.
    pairs = torch.complex(torch.ones_like(confidence), confidence)
    total = likelihood
    if weight is not None:
        # A label of probability 0 that does not count: 0 times infinity would be NaN.
        likelihood = likelihood.where(weight > 0, 0.0)
        pairs, total = pairs * weight, likelihood * weight
    torch.view_as_complex(sums).index_add_(0, cell, pairs)
    sums[-1, 0].add_(total.sum())
    sums[-1, 1].add_(total.dot(likelihood))


def groups_of_sums(sums: Tensor, cells: int) -> Groups:
    """The cells that hold predictions, ascending, as the exact functions see them."""
    table = _table(sums)
    seen = table[:, :, 0].sum(1) > 0
    upper = cell_edges(cells, table.device)[1:]
    (wrong, wrong_sum), (correct, correct_sum) = table[seen].permute(1, 2, 0)
    return Groups(wrong + correct, correct, wrong_sum + correct_sum, correct_sum, upper[seen])


def counts_of_sums(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong and correct predictions in every cell, empty ones too, (G,) each."""
    wrong, correct = _table(sums)[:, :, 0].unbind(1)
    return wrong, correct


def _table(sums: Tensor) -> Tensor:
    """(G, wrong or correct, count or confidence)."""
    return sums[:-1].view(-1, 2, 2)


def resample_groups(
    groups: Groups, resamples: int, generator: torch.Generator | None
) -> Iterator[Groups]:
    """Counts drawn anew, (R, G), Poisson, in parts that fit the memory."""
    step = max(1, _CHUNK // len(groups.upper))
    for start in range(0, resamples, step):
        yield _drawn(groups, min(step, resamples - start), generator)


def _drawn(groups: Groups, resamples: int, generator: torch.Generator | None) -> Groups:
    """A part of the resamples; confidences follow at the means of their cells."""
    wrong, correct = groups.wrong, groups.correct
    mean_wrong = (groups.confidence - groups.confidence_correct) / divisor(wrong)
    mean_correct = groups.confidence_correct / divisor(correct)
    new_wrong = torch.poisson(wrong.expand(resamples, -1), generator=generator)
    new_correct = torch.poisson(correct.expand(resamples, -1), generator=generator)
    confidence_correct = new_correct * mean_correct
    return Groups(
        count=new_wrong + new_correct,
        correct=new_correct,
        confidence=new_wrong * mean_wrong + confidence_correct,
        confidence_correct=confidence_correct,
        upper=groups.upper,
    )
