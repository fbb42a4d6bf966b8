"""All metrics of predictions at once, their bootstrap intervals, and two models compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import (
    by_convention,
    check_integer,
    check_logit_values,
    check_number,
    given_scores,
)
from sfumato._core.seeds import draw_seed
from sfumato._core.statistics import bin_index, clopper_pearson, row_weights
from sfumato.metrics.calibration import (
    accuracy_of_groups,
    average_confidence,
    class_bin_index,
    class_gaps,
    class_mass_index,
    error_of_bins,
    overconfidence,
    underconfidence,
)
from sfumato.metrics.groups import (
    Groups,
    Samples,
    as_tensors,
    cell_edges,
    cell_index,
    cells_per_unit,
    flat_rows,
    group_by_value,
    mass_bins,
    mean_of,
    score,
    width_bins,
)
from sfumato.metrics.scores import (
    SCORES,
    accuracy_at_coverage_of_groups,
    augrc,
    aurc,
    split_of_losses,
    squared_errors,
    sum_losses,
)

_CHUNK = 1_000_000
_CELLS = 16_000
_UPPER = {"nll": math.inf, "entropy": math.inf, "brier": 2.0}
_UPPER |= {"nll_calibration": math.inf, "nll_refinement": math.inf}
_UPPER |= {"brier_calibration": 2.0, "brier_refinement": 2.0}

# Metrics that are shares of hits, with the part of the units that each is a share of.
_HITS = {"accuracy": 1.0, "accuracy_at_80": 0.8}
_HITS |= dict.fromkeys(("error", "consistency", "label_consistency", "flip_rate"), 1.0)


class Comparison(NamedTuple):
    """A metric of two models on the same samples; difference = second - first.

    The models differ where the interval (low, high) of the difference excludes zero.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float


@by_convention
def bootstrap_interval(
    metric: Callable[..., Tensor],
    *tensors: Tensor,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """Interval of `metric(*tensors)` over resamples, with replacement, of the first axis.

    The quantiles are moved so that the mean of the resampled values is the measured one: a resample
    has more label noise than the sample, so its calibration error is larger. The interval is for
    what the metric is, on average, on test sets of this size.

    Args:
        metric: function of the tensors that returns a scalar.
        tensors: predictions, targets, ...; resampled together along axis 0, so that images of a
            segmentation stay whole.
        resamples: number of resamples.
        level: probability that the interval is to cover.
        generator: source of randomness.

    Example:
        >>> from sfumato.metrics import accuracy
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
        >>> target = torch.tensor([0, 1] * 40 + [1, 0] * 10)
        >>> generator = torch.Generator().manual_seed(0)
        >>> low, high = bootstrap_interval(accuracy, probs, target, generator=generator)
        >>> low < 0.8 < high
        True
    """
    units = len(tensors[0]) if tensors else 0
    check_resampling(units, resamples, level)
    if any(len(t) != units for t in tensors):
        raise ValueError(f"tensors must have one length, got {[len(t) for t in tensors]}")
    device = tensors[0].device
    source = generator.device if generator is not None else device
    values = []
    for _ in range(resamples):
        drawn = torch.randint(units, (units,), generator=generator, device=source).to(device)
        values.append(metric(*(t[drawn] for t in tensors)))
    return centred_interval(torch.stack(values), float(metric(*tensors)), level=level)


@by_convention
def paired_difference(
    metric: Callable[[Tensor, Tensor], Tensor],
    first: Tensor,
    second: Tensor,
    target: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Comparison:
    """`metric(second, target) - metric(first, target)`, with an interval from shared resamples.

    Both models are resampled together: what is hard for both cancels, and the interval is narrower
    than that of two separate ones.

    Args:
        metric: function of predictions and target that returns a scalar.
        first, second: predictions of both models on the same samples.
        target: class indices.
        resamples, level, generator: as in `bootstrap_interval`.

    Example:
        >>> from sfumato.metrics import accuracy
        >>> first = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
        >>> target = torch.tensor([0, 1] * 40 + [1, 0] * 10)
        >>> result = paired_difference(accuracy, first, first.flip(1), target, resamples=100)
        >>> round(result.difference, 4), result.high < 0
        (-0.6, True)
    """

    def difference(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
        return metric(second, target) - metric(first, target)

    tensors = (first, second, target)
    low, high = bootstrap_interval(
        difference, *tensors, resamples=resamples, level=level, generator=generator
    )
    before, after = float(metric(first, target)), float(metric(second, target))
    return Comparison(before, after, after - before, low, high)


def centred_interval(
    draws: Tensor,
    value: float,
    *,
    level: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float]:
    """Quantiles of `draws`, moved so that their mean is `value`, kept inside `bounds`."""
    draws = draws[~draws.isnan()]
    if not len(draws) or math.isnan(value):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low = float(torch.quantile(draws, tail, interpolation="lower"))
    high = float(torch.quantile(draws, 1 - tail, interpolation="higher"))
    shift = value - float(draws.mean())
    # An infinite resample would push the whole interval to infinity.
    if math.isfinite(shift):
        low, high = low + shift, high + shift
    return max(low, bounds[0]), min(high, bounds[1])


def share_interval(
    value: float, draws: Tensor | None, *, units: float, level: float
) -> tuple[float, float]:
    """Interval of a share of hits: Clopper and Pearson's, which a share of 0 or 1 has too.

    Resamples of 50 hits among 50 are all the same, so a bootstrap would be certain of it.

    Args:
        value: the share.
        draws: of resamples, where hits are dependent (pixels of an image): as many trials are
            assumed as would scatter like these. None where each unit is one trial.
        units: what is drawn.
        level: probability that the interval is to cover.

    Reference: Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of
    Positive Counts Estimated from Survey Data, Survey Methodology 1998.
    """
    if math.isnan(value) or not units:
        return math.nan, math.nan
    variance = 0.0 if draws is None else float(draws[~draws.isnan()].double().var(correction=0))
    if variance > 0 and 0 < value < 1:
        units = value * (1 - value) / variance
    return clopper_pearson(value * units, units, level)


def interval_of(
    name: str, value: float, draws: Tensor, *, units: float, one_each: bool, level: float
) -> tuple[float, float]:
    """Interval of the metric `name`: exact for shares of hits, else of its resamples."""
    if name in _HITS:
        is_exact = one_each and name.startswith("accuracy")
        trials = units * _HITS[name]
        return share_interval(value, None if is_exact else draws, units=trials, level=level)
    bounds = (0.0, _UPPER.get(name, 1.0))
    return centred_interval(draws, value, level=level, bounds=bounds)


def normal_interval(
    total: float, square: float, count: float, *, level: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean, from the sum of the numbers and the sum of their squares."""
    mean = total / count
    # A label of probability 0: the mean is infinite, and so is every resample with it.
    if not math.isfinite(mean):
        return mean, mean
    error = math.sqrt(max(square / count - mean**2, 0.0) / count)
    half = NormalDist().inv_cdf((1 + level) / 2) * error
    return mean - half, mean + half


def intervals_of(
    values: Mapping[str, float],
    draws: Mapping[str, Tensor],
    *,
    units: float,
    one_each: bool = True,
    level: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """`<name>_interval` of each metric that was resampled, inside the metric's bounds."""
    return {
        f"{name}_interval": interval_of(
            name, values[name], drawn, units=units, one_each=one_each, level=level
        )
        for name, drawn in draws.items()
    }


Draws = dict[str, Tensor]  # values of a metric by its name, one for each resample


def draw_in_parts(
    units: int,
    resamples: int,
    *,
    generator: torch.Generator | None,
    device: torch.device | None = None,
) -> Iterator[Tensor]:
    """`draw_weights` of all resamples, a few (R, U) at a time, so that they fit the memory.

    How many depends on the numbers of units and resamples only: equal generators give everything
    that is measured the same resamples.
    """
    step = max(1, _CHUNK // max(units, _CELLS))
    for start in range(0, resamples, step):
        yield draw_weights(
            units,
            min(step, resamples - start),
            generator=generator,
            device=torch.device("cpu") if device is None else device,
        )


def draw_weights(
    units: int, resamples: int, *, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Count how often each of `units` is drawn in each resample, (R, U), float64; rows sum to U."""
    source = generator.device if generator is not None else device
    drawn = torch.randint(units, (resamples, units), generator=generator, device=source)
    drawn += torch.arange(resamples, device=source).unsqueeze(1) * units
    counts = torch.bincount(drawn.flatten(), minlength=resamples * units)
    return counts.view(resamples, units).to(device=device, dtype=torch.float64)


def measure_resamples(
    measure: Callable[[Tensor], Draws],
    units: int,
    resamples: int,
    *,
    generator: torch.Generator | None,
    device: torch.device | None = None,
) -> Draws:
    """Measure all resamples, a few weights (R, U) at a time, (R,) each."""
    weights = draw_in_parts(units, resamples, generator=generator, device=device)
    parts = [measure(part) for part in weights]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def check_resampling(units: int, resamples: int, level: float) -> None:
    """Raise unless there is something to resample."""
    check_integer("resamples", resamples, low=1)
    check_number("level", level, low=0.0, high=1.0, open_low=True)
    if units < 2:
        raise ValueError(
            f"resamples need at least 2 samples (images, for dense predictions), got {units}. "
            "Pass resamples=0 to leave the intervals out."
        )


_IMPOSSIBLE = -1e300


def metrics_of_groups(groups: Groups, num_bins: int) -> dict[str, Tensor]:
    """The metrics that need only confidence and correctness, each (...)."""
    bins = width_bins(groups, num_bins)
    return {
        "accuracy": accuracy_of_groups(groups),
        "ece": error_of_bins(bins, "l1"),
        "aece": error_of_bins(mass_bins(groups, num_bins), "l1"),
        "mce": error_of_bins(bins, "max"),
        "overconfidence": overconfidence.of_groups(groups),
        "underconfidence": underconfidence.of_groups(groups),
        "average_confidence": average_confidence.of_groups(groups),
        "aurc": aurc.of_groups(groups),
        "augrc": augrc.of_groups(groups),
        "accuracy_at_80": accuracy_at_coverage_of_groups(groups, 0.8),
    }


class Evaluation:
    """Predictions ready to be measured, whole or resampled."""

    def __init__(
        self,
        predictions: Tensor,
        target: Tensor,
        *,
        from_logits: bool,
        num_bins: int,
        ignore_index: int,
        validate: bool,
        splits: bool = False,
        sample_weight: Any = None,
    ) -> None:
        self.num_bins = num_bins
        given: dict[str, Any] = {"from_logits": from_logits, "ignore_index": ignore_index}
        self.weight = row_weights(sample_weight, target, ignore_index)
        found = score(predictions, target, validate=validate, **given)
        self.samples = found._replace(weight=self.weight)
        self.rows, self.labels = flat_rows(predictions, target, validate=False, **given)
        self.splits = splits
        # Of logits the parts are exact where a probability is too small for its precision.
        self.scores = self.rows
        if splits and from_logits:
            self.scores, _ = flat_rows(predictions, target, validate=False, softmax=False, **given)
        self.from_logits = from_logits
        self.one_each = target.ndim == 1
        # Hits of unequal weight are not binomial.
        self.is_exact = self.one_each and self.weight is None
        self.unit = self._units(target, ignore_index)
        self.num_units = len(self.labels) if self.one_each else len(target)

    def _units(self, target: Tensor, ignore_index: int) -> Tensor:
        """Number what is drawn together: the sample, or for dense predictions the whole image."""
        if self.one_each:
            return torch.arange(len(self.labels), device=target.device)
        image = torch.arange(len(target), device=target.device)
        image = image.view(-1, *[1] * (target.ndim - 1)).expand_as(target)
        return image[target.long() != ignore_index]

    def measure(self) -> dict[str, float]:
        """Every metric of the whole sample."""
        numbers = metrics_of_groups(group_by_value(self.samples), self.num_bins)
        weight = self.weight
        numbers["nll"] = -mean_of(self.samples.log_likelihood, weight)
        numbers["brier"] = mean_of(squared_errors(self.rows, self.labels), weight)
        gaps = class_gaps(self.rows, self.labels, self.num_bins, weight=weight)
        total = torch.tensor(float(len(self.labels))) if weight is None else weight.sum()
        numbers["classwise_ece"] = gaps.abs().sum() / total / len(gaps)
        if self.splits:
            gaps = class_gaps(self.rows, self.labels, self.num_bins, "mass", weight=weight)
            numbers["classwise_ace"] = gaps.abs().sum() / total / len(gaps)
            numbers |= _parts(self.sum_losses(None, 1)[0] / total)
        return {name: float(value) for name, value in numbers.items()}

    def sum_losses(self, unit: Tensor | None, num_units: int) -> Tensor:
        """`sum_losses` of `score_split`, (U, 2, 33)."""
        return sum_losses(
            self.scores,
            self.labels,
            are_logits=self.from_logits,
            weight=self.weight,
            unit=unit,
            num_units=num_units,
        )

    def resample(
        self, resamples: int, generator: torch.Generator | None, *, in_blocks: bool = False
    ) -> dict[str, Tensor]:
        """Every metric of every resample, (R,) each; equal generators draw the same ones.

        `in_blocks` draws random blocks of samples where these are many.
        """
        unit, units = self.unit, self.num_units
        in_blocks = in_blocks and self.one_each and units > BLOCKS
        if in_blocks:
            unit, units = blocks_of(units)
            unit = unit.to(self.labels.device)
        counts = CellCounts(self.samples, *self._cells(in_blocks), unit, units, is_dense=in_blocks)
        scores = ScoreSums(self, None if self.one_each and not in_blocks else unit, units)
        return measure_resamples(
            lambda weights: counts.measure(weights, self.num_bins) | scores.measure(weights),
            units,
            resamples,
            generator=generator,
            device=self.labels.device,
        )

    def _cells(self, in_blocks: bool) -> tuple[Tensor, Tensor]:
        """Number of the cell of each prediction, (M,), and the largest confidence of each, (G,)."""
        confidence = self.samples.confidence.nan_to_num(nan=0.0)
        if in_blocks:
            return confidence_cells(confidence, self.num_bins)
        if self.one_each:
            upper, cell = confidence.unique(return_inverse=True)
            return cell, upper
        # Images have many pixels: those of one fine cell count as equally confident.
        cells = cells_per_unit(self.num_bins)
        cell = cell_index(confidence.double(), cells, dtype=confidence.dtype)
        seen, cell = cell.unique(return_inverse=True)
        return cell, cell_edges(cells, cell.device)[seen + 1]


class CellCounts:
    """Predictions, and the correct ones, of each cell of confidence in each unit.

    The metrics of any resample are one product away.

    Args:
        samples: the predictions.
        cell: number of the cell of each, (M,).
        upper: the largest confidence of each cell, ascending, (G,).
        unit: what each is drawn with, (M,).
        units: number of units U.
        is_dense: keep every pair of unit and cell, for few units that fill most cells.
    """

    def __init__(
        self,
        samples: Samples,
        cell: Tensor,
        upper: Tensor,
        unit: Tensor,
        units: int,
        *,
        is_dense: bool,
    ) -> None:
        self.upper, size = upper, len(upper)
        confidence = samples.confidence.nan_to_num(nan=0.0).double()
        mass = torch.bincount(cell, weights=confidence, minlength=size)
        self.values = mass / torch.bincount(cell, minlength=size)
        weight = samples.weight
        one = torch.ones_like(confidence) if weight is None else weight
        kinds = (one, one * samples.correct)
        if not is_dense:
            self.counts = [sparse(cell, unit, each, (size, units)) for each in kinds]
            return
        # Draws and counts are small whole numbers: float32 adds them up without rounding.
        is_exact = weight is None and len(cell) < _EXACT_IN_FLOAT32
        dtype = torch.float32 if is_exact else torch.float64
        place = unit * size + cell
        self.counts = [
            torch.bincount(place, weights=each, minlength=units * size).view(units, size).to(dtype)
            for each in kinds
        ]

    def measure(self, weights: Tensor, num_bins: int) -> dict[str, Tensor]:
        """`metrics_of_groups` of the resamples `weights` (R, U), (R,) each."""
        if self.counts[0].is_sparse:
            drawn = weights.T.contiguous()  # (U, R)
            sums = [torch.sparse.mm(each, drawn).T.contiguous() for each in self.counts]
        else:
            sums = [(weights.to(each.dtype) @ each).double() for each in self.counts]
        count, correct = sums
        groups = Groups(count, correct, count * self.values, correct * self.values, self.upper)
        return metrics_of_groups(groups, num_bins)


class ScoreSums:
    """Sums over each unit for the metrics that need more than the confidence.

    Args:
        evaluation: the predictions.
        unit: what each sample belongs to, (M,); None where every sample is a unit of its own.
        num_units: number of units U.
    """

    def __init__(self, evaluation: Evaluation, unit: Tensor | None, num_units: int) -> None:
        self.num_bins, self.num_units = evaluation.num_bins, num_units
        # An infinite loss times a weight of zero would be NaN.
        likelihood = evaluation.samples.log_likelihood.double().clamp(min=_IMPOSSIBLE)
        brier = squared_errors(evaluation.rows, evaluation.labels)
        self.weight = evaluation.weight
        scores = self._weighted(torch.stack([torch.ones_like(brier), likelihood, brier], 1))
        self.scores = self._by_unit(scores, unit)  # (U, 3)
        self._class_bins(evaluation.rows, evaluation.labels, unit)
        self.losses: Tensor | None = None
        if evaluation.splits:
            places = torch.arange(num_units, device=brier.device) if unit is None else unit
            self.losses = evaluation.sum_losses(places, num_units).flatten(1)  # (U, 66)
            self.mass_gaps = _mass_gaps(evaluation, places, num_units)

    def measure(self, weights: Tensor) -> dict[str, Tensor]:
        """nll, brier, their parts and the classwise errors of the resamples, (R,) each."""
        total, likelihood, brier = (weights @ self.scores).unbind(1)
        parts: dict[str, Tensor] = {}
        if self.losses is not None:
            losses = weights @ self.losses / total.unsqueeze(1)
            gaps = (weights.to(self.mass_gaps.dtype) @ self.mass_gaps).abs_().sum(1).double()
            classes = self.class_total.shape[1]
            parts = {
                **_parts(losses.unflatten(1, (2, -1))),
                "classwise_ace": gaps / total / classes,
            }
        return {
            **parts,
            "nll": torch.where(likelihood > _IMPOSSIBLE / 2, -likelihood / total, torch.inf),
            "brier": brier / total,
            "classwise_ece": self._classwise(weights) / total,
        }

    def _class_bins(self, rows: Tensor, labels: Tensor, unit: Tensor | None) -> None:
        """Gaps of each class in each bin above the first; the first follows from the total.

        With many classes nearly all probabilities are in the first bin, so this is sparse.
        """
        gap = rows.double()
        gap = self._weighted(gap.scatter_add(1, labels.unsqueeze(1), -torch.ones_like(gap[:, :1])))
        self.class_total = self._by_unit(gap, unit)  # (U, C)
        member = class_bin_index(rows, self.num_bins)
        sample, column = ((member % self.num_bins) > 0).nonzero(as_tuple=True)
        self.class_gap = sparse(
            member[sample, column],
            sample if unit is None else unit[sample],
            gap[sample, column],
            (rows.shape[1] * self.num_bins, self.num_units),
        )

    def _weighted(self, values: Tensor) -> Tensor:
        return values if self.weight is None else values * self.weight.unsqueeze(1)

    def _by_unit(self, values: Tensor, unit: Tensor | None) -> Tensor:
        if unit is None:
            return values
        return values.new_zeros(self.num_units, values.shape[1]).index_add_(0, unit, values)

    def _classwise(self, weights: Tensor) -> Tensor:
        drawn = weights.T.contiguous()  # (U, R)
        above = torch.sparse.mm(self.class_gap, drawn).view(-1, self.num_bins, drawn.shape[1])
        first = (weights @ self.class_total).T - above.sum(1)  # (C, R)
        return (above.abs().sum(1) + first.abs()).mean(0)


def _mass_gaps(evaluation: Evaluation, unit: Tensor, num_units: int) -> Tensor:
    """Sums of p - 1[y = c] over each unit, class and equal-mass bin, (U, C B), float32.

    The edges of the bins stay those of the whole sample, so that a resample is one product.
    """
    rows, labels = evaluation.rows, evaluation.labels
    size = rows.shape[1] * evaluation.num_bins
    gaps = torch.zeros(num_units * size, dtype=torch.float32, device=rows.device)
    if len(rows):
        values = rows.float()
        values = values.scatter_add(1, labels.unsqueeze(1), -torch.ones_like(values[:, :1]))
        weight = evaluation.weight
        if weight is not None:
            values = values * weight.unsqueeze(1).float()
        member = class_mass_index(rows, evaluation.num_bins, weight) + unit.unsqueeze(1) * size
        gaps.index_add_(0, member.flatten(), values.flatten())
    return gaps.view(num_units, size)


def _parts(losses: Tensor) -> dict[str, Tensor]:
    """Calibration and refinement of both scores, of mean losses (..., 2, 33)."""
    found: dict[str, Tensor] = {}
    for name, each in zip(SCORES, losses.unbind(-2), strict=True):
        parts = split_of_losses(each)
        found[f"{name}_calibration"] = parts.calibration
        found[f"{name}_refinement"] = parts.refinement
    return found


def sparse(row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Sparse matrix in which entries of the same place add up."""
    indices = torch.stack([row, column])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()


BLOCKS = 2000

_BY_RANK, _BY_WIDTH = 1000, 960

_EXACT_IN_FLOAT32 = 2**24


def blocks_of(total: int) -> tuple[Tensor, int]:
    """Number of the block of each sample, (N,), and how many blocks there are: at most 2,000.

    Rows of a file are often sorted by class; blocks must be alike, and so are random.
    """
    blocks = min(total, BLOCKS)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(total))
    return order % blocks, blocks


def confidence_cells(confidence: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Number of the cell of each prediction, (M,), and the largest confidence of each cell, (G,).

    Neighbouring confidences share a cell unless an edge of a calibration bin, of 1,000 equal parts
    of the samples, or of about 960 equal parts of the unit interval lies between them. Up to 2,000
    distinct confidences have a cell each.
    """
    values, member, count = torch.unique(confidence, return_inverse=True, return_counts=True)
    if len(values) <= BLOCKS:
        return member, values
    rank = (count.cumsum(0) - 1) * _BY_RANK // len(confidence)
    width = bin_index(values, num_bins * -(-_BY_WIDTH // num_bins))  # its edges are bins' edges too
    ends = (rank.diff() > 0) | (width.diff() > 0)
    cell = torch.cat([ends.new_zeros(1), ends]).cumsum(0)
    return cell[member], values[torch.cat([ends, ends.new_ones(1)])]


@by_convention
def evaluate_predictions(
    probs: Any = None,
    target: Any = None,
    *,
    logits: Any = None,
    num_bins: int = 15,
    resamples: int = 0,
    level: float = 0.95,
    splits: bool = True,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
    any_logits: bool = False,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Accuracy, likelihood, calibration and selective classification of saved predictions.

    Keys: accuracy, nll, brier, ece, aece, mce, classwise_ece, overconfidence, underconfidence,
    average_confidence, aurc, augrc, accuracy_at_80, classwise_ace, nll_calibration, nll_refinement,
    brier_calibration, brier_refinement, each a float; with `resamples`, also `<key>_interval`, each
    (low, high): exact (Clopper and Pearson) for accuracy and accuracy_at_80, else a bootstrap.

    Args:
        probs: class probabilities; (N, C) or (N, C, d1, ...). Give either these or `logits`.
        target: class indices; (N,) or (N, d1, ...).
        logits: raw scores, of the same shape as `probs`.
        num_bins: bins of the calibration errors.
        resamples: bootstrap resamples for the intervals; 0 leaves them out. Samples are drawn, or
            whole images where predictions are dense; beyond 2,000 samples, random blocks of them.
        level: probability that the intervals are to cover.
        splits: what takes many passes, too: NLL and Brier score in two parts (`score_split`) and
            classwise_ace, whose edges stay in resamples.
        sample_weight: how often each sample counts, as in `calibration_error`; a resample draws a
            sample with its weight.
        class_dim: dimension of the classes.
        ignore_index: label of entries that count for nothing.
        validate: check the values.
        any_logits: accept logits that look like probabilities (rows that are not negative and sum
            to 1), which are refused otherwise.
        generator: source of randomness of the resamples.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> result = evaluate_predictions(probs, torch.tensor([0, 0, 1, 1]))
        >>> result["accuracy"], round(result["ece"], 3)
        (0.75, 0.35)
    """
    check_integer("resamples", resamples, low=0)
    options = (num_bins, class_dim, ignore_index, validate, splits, any_logits, sample_weight)
    evaluation = _evaluation(target, logits, probs, *options)
    result: dict[str, Any] = dict(evaluation.measure())
    if not resamples:
        return result
    units, is_exact = evaluation.num_units, evaluation.is_exact
    check_resampling(units, resamples, level)
    draws = evaluation.resample(resamples, generator=generator, in_blocks=True)
    return result | intervals_of(result, draws, units=units, one_each=is_exact, level=level)


@by_convention
def compare_predictions(
    probs: tuple[Any, Any] | None = None,
    target: Any = None,
    *,
    logits: tuple[Any, Any] | None = None,
    num_bins: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    splits: bool = True,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
    any_logits: bool = False,
    generator: torch.Generator | None = None,
) -> dict[str, Comparison]:
    """Two models on the same samples: every metric of both, and the interval of the difference.

    The resamples are shared, so what is hard for both models cancels. Keys and Args as in
    `evaluate_predictions`, with a pair (first, second) of logits or of probabilities.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]]).repeat(25, 1)
        >>> target = torch.tensor([0, 0, 1, 1]).repeat(25)
        >>> result = compare_predictions((probs, probs.flip(1)), target, resamples=100)
        >>> result["accuracy"].difference
        -0.5
    """
    for name, pair in (("logits", logits), ("probs", probs)):
        if pair is not None and len(pair) != 2:
            raise ValueError(f"{name} must be a pair (first, second), got {len(pair)}")
    options = (num_bins, class_dim, ignore_index, validate, splits, any_logits, sample_weight)
    pairs = zip(*((None, None) if pair is None else pair for pair in (logits, probs)), strict=True)
    first, second = (_evaluation(target, raw, given, *options) for raw, given in pairs)
    check_resampling(first.num_units, resamples, level)
    return compare_draws(
        (first.measure(), second.measure()),
        [partial(each.resample, resamples, in_blocks=True) for each in (first, second)],
        generator,
        level=level,
    )


def compare_draws(
    values: Sequence[Mapping[str, float]],
    resample: Sequence[Callable[[torch.Generator], Draws]],
    generator: torch.Generator | None,
    *,
    level: float = 0.95,
) -> dict[str, Comparison]:
    """Differences of two models, of whose samples both draw the same ones."""
    # Two generators of one seed: both models see the same resamples.
    seed = draw_seed(generator)
    before, after = (draw(torch.Generator().manual_seed(seed)) for draw in resample)
    result = {}
    for name in (name for name in values[0] if name in before and name in after):
        first, second = values[0][name], values[1][name]
        low, high = centred_interval(after[name] - before[name], second - first, level=level)
        result[name] = Comparison(first, second, second - first, low, high)
    return result


def _evaluation(
    target: Tensor,
    logits: Tensor | None,
    probs: Tensor | None,
    num_bins: int,
    class_dim: int,
    ignore_index: int,
    validate: bool,
    splits: bool,
    any_logits: bool,
    sample_weight: Any,
) -> Evaluation:
    check_integer("num_bins", num_bins, low=1)
    name, given = given_scores(logits, probs)
    predictions, target = as_tensors(given, target, class_dim)
    if name == "logits" and validate and not any_logits and isinstance(predictions, Tensor):
        check_logit_values("logits", predictions)
    return Evaluation(
        predictions,
        target,
        from_logits=logits is not None,
        num_bins=num_bins,
        ignore_index=ignore_index,
        validate=validate,
        splits=splits,
        sample_weight=sample_weight,
    )
