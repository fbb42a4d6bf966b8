"""Metrics as `torchmetrics.Metric` classes: streams of any length in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from sfumato._core.checks import (
    by_convention,
    check_choice,
    check_integer,
    check_logit_values,
    check_matplotlib,
    check_number,
    float64_device,
)
from sfumato._core.statistics import row_weights
from sfumato.metrics.calibration import (
    CELLS,
    Binning,
    Norm,
    Reduction,
    ReliabilityBins,
    SignedError,
    accuracy_of_groups,
    average_confidence,
    check_binning,
    class_cells,
    class_gaps,
    error_of_groups,
    ks_calibration_error,
    mass_error_bound,
    mass_gaps_of_cells,
    overconfidence,
    reduce_classes,
    reliability_of_groups,
    signed_error_of_groups,
    smooth_calibration_error,
    underconfidence,
)
from sfumato.metrics.detection import check_bins, detection_sums, error_of_cells
from sfumato.metrics.evaluate import (
    centred_interval,
    check_resampling,
    interval_of,
    metrics_of_groups,
    normal_interval,
    share_interval,
)
from sfumato.metrics.groups import (
    Groups,
    OfPredictions,
    add_samples,
    as_tensors,
    cell_edges,
    cells_per_unit,
    empty_sums,
    flat_rows,
    groups_of_sums,
    resample_groups,
    score,
)
from sfumato.metrics.scores import (
    LOG_TEMPERATURES,
    SCORES,
    Score,
    ScoreSplit,
    accuracy_at_coverage_of_groups,
    augrc,
    aurc,
    confidence_auroc,
    confusion_matrix,
    excess_aurc,
    iou_of_matrix,
    label_in_top,
    split_of_losses,
    squared_errors,
    sum_losses,
)


class Float64Metric(Metric):
    """Base of the streaming metrics, whose sums are float64.

    A metric stays on the processor where it is to go to a device without float64; `update` takes
    tensors of that device.
    """

    full_state_update = False
    is_differentiable = False

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        device = fn(torch.empty(0, device=self.device)).device
        return self if device != float64_device(device) else super()._apply(fn, exclude_state)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or values over steps, as torchmetrics does; the figure and its axes.

        Args: val: of `compute` or `forward`, or a list of such, None for now; ax: of matplotlib.
        """
        check_matplotlib()
        value = self.compute() if val is None else val
        drawn = [_numbers(each) for each in value] if type(value) in (list, tuple) else None
        return self._plot(_numbers(value) if drawn is None else drawn, ax)


def _numbers(value: Any) -> Any:
    """A result as torchmetrics draws it: a tensor, or tensors by name."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, dict):
        return {name: torch.as_tensor(each) for name, each in value.items() if each is not None}
    return value


class PredictionMetric(Float64Metric):
    """Base of the metrics that `update(preds, target)`: how predictions are to be read.

    Args:
        from_logits: inputs are logits rather than probabilities.
        class_dim: dimension of the classes in what `update` takes.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update (rows sum to one, labels in range).
        any_logits: accept logits that look like probabilities (rows that are not negative and sum
            to 1), which are refused otherwise.
        kwargs: `torchmetrics.Metric` options (`sync_on_compute`, `dist_sync_fn`, ...).
    """

    def __init__(
        self,
        *,
        from_logits: bool = False,
        class_dim: int = 1,
        ignore_index: int = -100,
        validate: bool = True,
        any_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("class_dim", class_dim, low=-(2**63))
        self.from_logits, self.ignore_index = from_logits, ignore_index
        self.class_dim = class_dim
        self.validate, self.any_logits = validate, any_logits

    def checked(self, preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Both as tensors, classes in dimension 1; raise if probabilities are passed as logits."""
        preds, target = as_tensors(preds, target, self.class_dim)
        # Probabilities passed as logits would be softmaxed twice, and look underconfident.
        is_refused = self.from_logits and self.validate and not self.any_logits
        if is_refused and isinstance(preds, Tensor):
            check_logit_values("preds", preds, instead="leave out from_logits=True")
        return preds, target


_MANY = 1e6  # samples, as which weights that are no counts are measured


class ConfidenceMetric(PredictionMetric):
    """Base of the metrics that need of each prediction its confidence and correctness only.

    Each cell of a fine grid holds counts and sums of confidences, wrong and correct ones apart:
    0.5 MB however many predictions come. Subclasses with the same grid share one state in a
    `MetricCollection` (one compute group), so ten cost little more than one. They name the metric
    that they are a stream `of`, or write `measure`.

    Args:
        num_bins: bin count whose edges must lie on the grid.
        kwargs: as in `PredictionMetric`.
    """

    hits = 0.0  # the part of the predictions that the metric is a share of; 0 where it is none
    of: ClassVar[Callable[[Groups], Any]]

    def __init_subclass__(
        cls,
        *,
        of: OfPredictions[Any] | Callable[[Groups], Any] | None = None,
        higher_is_better: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if of is not None:
            cls.of = staticmethod(getattr(of, "of_groups", of))
            cls.higher_is_better = higher_is_better

    @by_convention
    def __init__(self, *, num_bins: int = 15, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integer("num_bins", num_bins, low=1)
        self.num_bins = num_bins
        self.cells = cells_per_unit(num_bins)
        # A collection merges metrics whose states agree after one batch, so the name says what the
        # batch can't; one tensor, because it passes every state of every member on at each update.
        kind = "logits" if self.from_logits else "probs"
        self.state_name = f"sums_of_{kind}_along_{self.class_dim}_ignoring_{self.ignore_index}"
        self.add_state(self.state_name, empty_sums(self.cells), dist_reduce_fx="sum")

    @property
    def sums(self) -> Tensor:
        """Count and confidence of each cell (wrong, correct), then log likelihood and square."""
        sums: Tensor = getattr(self, self.state_name)
        return sums

    def update(self, preds: Tensor, target: Tensor, sample_weight: Any = None) -> None:
        """Add a batch: preds (N, C, ...), target (N, ...), how often each sample counts (N,)."""
        samples = score(
            *self.checked(preds, target),
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
            sample_weight=sample_weight,
            is_stream=True,
        )
        add_samples(self.sums, samples, self.cells)

    def groups(self) -> Groups:
        """The cells that hold predictions, ascending, as the exact functions see them."""
        groups = groups_of_sums(self.sums, self.cells)
        if not self._holds_shares:
            return groups
        # Curves and coverages go over samples one by one, and shares may sum to a single one.
        factor = _MANY / groups.count.sum()
        sums = {name: factor * each for name, each in vars(groups).items() if name != "upper"}
        return replace(groups, **sums)

    @property
    def _holds_shares(self) -> bool:
        return bool((self.sums[:-1, 0] % 1 != 0).any())

    def _refuse_shares(self) -> None:
        if self._holds_shares:
            raise ValueError(
                "the interval of a stream needs weights that are whole numbers: give the rows to "
                "evaluate_predictions(..., sample_weight=, resamples=)"
            )

    def measure(self, groups: Groups) -> Any:
        """The value of the metric for grouped predictions."""
        return type(self).of(groups)

    def compute(self) -> Any:
        """The value of the metric for everything seen so far."""
        return self.measure(self.groups())

    def interval(
        self,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Interval (low, high) of the metric, as if the predictions were independent.

        Exact (Clopper and Pearson) for accuracies, else a bootstrap that draws the count of every
        cell from a Poisson distribution. For pixels, which depend on each other, and for weights
        that are no counts, `evaluate_predictions` draws whole images or rows.
        """
        self._refuse_shares()
        groups = self.groups()
        value: Any = self.measure(groups)
        count = int(groups.count.sum())
        if not isinstance(value, Tensor | dict):
            raise TypeError(f"{type(self).__name__} has no single value to give an interval of")
        check_resampling(count, resamples, level)
        # A bootstrap of 50 hits in 50 has no spread; the exact interval has.
        if self.hits and isinstance(value, Tensor):
            return share_interval(float(value), None, units=self.hits * count, level=level)
        draws = [self.measure(part) for part in resample_groups(groups, resamples, generator)]
        return self.interval_of_draws(value, draws, count, level)

    def interval_of_draws(self, value: Any, draws: list[Any], count: int, level: float) -> Any:
        """The interval of a value from those of resampled histograms, in parts."""
        return centred_interval(torch.cat(draws), float(value), level=level)

    def mean_log_likelihood(self) -> Tensor:
        """Mean log probability of the labels seen so far."""
        return self.sums[-1, 0] / self.sums[:-1, 0].sum()

    def likelihood_interval(self, level: float) -> tuple[float, float]:
        """Normal interval of the mean negative log likelihood."""
        total, square = self.sums[-1].tolist()
        return normal_interval(-total, square, float(self.sums[:-1, 0].sum()), level=level)


class Accuracy(ConfidenceMetric, of=accuracy_of_groups, higher_is_better=True):
    """Top-1 `accuracy` of a stream; shares its state with the calibration metrics.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    hits = 1.0


class NegativeLogLikelihood(ConfidenceMetric):
    """`negative_log_likelihood` of a stream; shares its state with the calibration metrics.

    Example:
        >>> metric = NegativeLogLikelihood(from_logits=True)
        >>> metric.update(torch.zeros(3, 10), torch.tensor([0, 1, 2]))
        >>> metric.compute()
        tensor(2.3026, dtype=torch.float64)
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        return -self.mean_log_likelihood()

    def interval(
        self,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> tuple[float, float]:
        """Normal interval of the mean; there is nothing to resample."""
        self._refuse_shares()
        return self.likelihood_interval(level)


class AverageConfidence(ConfidenceMetric, of=average_confidence):
    """`average_confidence` of a stream."""


class Overconfidence(ConfidenceMetric, of=overconfidence, higher_is_better=False):
    """`overconfidence` of a stream."""


class Underconfidence(ConfidenceMetric, of=underconfidence, higher_is_better=False):
    """`underconfidence` of a stream."""


class StreamingEvaluation(ConfidenceMetric):
    """The numbers of `evaluate_predictions` that one confidence histogram can give, of a stream.

    For the others `BrierScore` and `ClasswiseCalibrationError` keep their own sums.

    Example:
        >>> metric = StreamingEvaluation()
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> metric.update(probs, torch.tensor([0, 0, 1, 1]))
        >>> round(float(metric.compute()["ece"]), 3)
        0.35
    """

    def measure(self, groups: Groups) -> dict[str, Tensor]:
        return metrics_of_groups(groups, self.num_bins)

    def compute(self) -> dict[str, Tensor]:
        return {**self.measure(self.groups()), "nll": -self.mean_log_likelihood()}

    def interval_of_draws(self, value: Any, draws: list[Any], count: int, level: float) -> Any:
        found = {}
        for name, each in value.items():
            drawn = torch.cat([part[name] for part in draws])
            found[name] = interval_of(
                name, float(each), drawn, units=count, one_each=True, level=level
            )
        return {**found, "nll": self.likelihood_interval(level)}


class CalibrationError(ConfidenceMetric):
    """`calibration_error` of a stream, in memory that doesn't grow.

    Equal-width values are exact. Equal-mass edges are moved up to the next edge of the grid;
    `bound()` says how far this can have moved the value (some 1e-4 for 5,000 predictions).

    Args as in `calibration_error`, and those of `PredictionMetric`.

    Example:
        >>> metric = CalibrationError(num_bins=5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False

    @by_convention
    def __init__(
        self,
        *,
        num_bins: int = 15,
        norm: Norm = "l1",
        binning: Binning = "width",
        **kwargs: Any,
    ) -> None:
        check_binning(num_bins, norm, binning)
        super().__init__(num_bins=num_bins, **kwargs)
        self.norm: Norm = norm
        self.binning: Binning = binning

    def measure(self, groups: Groups) -> Tensor:
        return error_of_groups(groups, self.num_bins, self.norm, self.binning)

    def bound(self) -> Tensor:
        """Largest possible distance of `compute()` from `calibration_error`; for norm l1."""
        groups = self.groups()
        if self.binning == "width" or not len(groups.upper):
            return groups.count.new_zeros(())
        if self.norm != "l1":
            raise ValueError(f"bound() is known for norm='l1' only, got norm={self.norm!r}")
        edges = cell_edges(self.cells, groups.upper.device)
        lower = edges[torch.searchsorted(edges, groups.upper) - 1]
        return mass_error_bound(groups, lower, self.num_bins)


class Reliability(ConfidenceMetric):
    """`reliability` of a stream: exact bins, in memory that doesn't grow.

    Example:
        >>> metric = Reliability(num_bins=5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.compute().counts
        tensor([0., 0., 0., 1., 1.], dtype=torch.float64)
    """

    def measure(self, groups: Groups) -> ReliabilityBins:
        return reliability_of_groups(groups, self.num_bins)

    def plot(self, val: ReliabilityBins | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw the reliability diagram of `val`, by default that of now, in axes of matplotlib."""
        from sfumato.metrics.figures import draw_reliability

        return draw_reliability(self.compute() if val is None else val, ax)


class SignedCalibrationError(ConfidenceMetric):
    """`signed_calibration_error` of a stream; exact."""

    def measure(self, groups: Groups) -> SignedError:
        return signed_error_of_groups(groups, self.num_bins)


class SmoothCalibrationError(ConfidenceMetric, of=smooth_calibration_error, higher_is_better=False):
    """`smooth_calibration_error` of a stream, in memory that doesn't grow.

    Example:
        >>> metric = SmoothCalibrationError()
        >>> metric.update(torch.tensor([[0.8, 0.2]]).repeat(100, 1), torch.arange(100) // 60)
        >>> metric.compute()
        tensor(0.2000, dtype=torch.float64)
    """


class KSCalibrationError(ConfidenceMetric, of=ks_calibration_error, higher_is_better=False):
    """`ks_calibration_error` of a stream; off by at most the mass of one cell."""


class AURC(ConfidenceMetric, of=aurc, higher_is_better=False):
    """`aurc` of a stream; predictions of one cell count as equally confident."""


class AUGRC(ConfidenceMetric, of=augrc, higher_is_better=False):
    """`augrc` of a stream; predictions of one cell count as equally confident."""


class ExcessAURC(ConfidenceMetric, of=excess_aurc, higher_is_better=False):
    """`excess_aurc` of a stream; predictions of one cell count as equally confident."""


class AccuracyAtCoverage(ConfidenceMetric):
    """`accuracy_at_coverage` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = True

    def __init__(self, *, coverage: float = 0.8, **kwargs: Any) -> None:
        check_number("coverage", coverage, low=0.0, high=1.0, open_low=True)
        super().__init__(**kwargs)
        self.coverage = self.hits = coverage

    def measure(self, groups: Groups) -> Tensor:
        return accuracy_at_coverage_of_groups(groups, self.coverage)


class ConfidenceAUROC(ConfidenceMetric, of=confidence_auroc, higher_is_better=True):
    """`confidence_auroc` of a stream; predictions of one cell count as equally confident."""


class RowMetric(PredictionMetric):
    """Base of the metrics that are `of_sums` of sums over the rows of predictions.

    Args:
        kwargs: as in `PredictionMetric`.
    """

    reads_softmax: ClassVar[bool] = True

    def add_sums(self, name: str, *shape: int) -> None:
        """Add the state: float64 sums, and how many rows they are of."""
        # A collection merges metrics whose states have one name and agree after a batch.
        self.state = name
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        zero = torch.zeros((), dtype=torch.float64)
        self.add_state(f"{name}_count", zero, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, sample_weight: Any = None) -> None:
        """Add a batch: preds (N, C, ...), target (N, ...), how often each sample counts (N,)."""
        preds, target = self.checked(preds, target)
        rows, labels = flat_rows(
            preds,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
            softmax=self.reads_softmax,
        )
        # As given, since other batches share the scale.
        weight = row_weights(sample_weight, target, self.ignore_index, is_stream=True)
        getattr(self, self.state).add_(self.sum_of(rows, labels, weight))
        counted = len(labels) if weight is None else weight.sum()
        getattr(self, f"{self.state}_count").add_(counted)

    def sum_of(self, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Return what a batch adds to the running totals."""
        raise NotImplementedError

    def of_sums(self, sums: Tensor, count: Tensor) -> Any:
        """The value of the metric."""
        return sums / count

    def compute(self) -> Any:
        """The value of the metric for everything seen so far."""
        return self.of_sums(getattr(self, self.state), getattr(self, f"{self.state}_count"))


class StreamingScoreSplit(RowMetric):
    """`score_split` of a stream, exactly: 33 sums.

    Args:
        score: "nll" or "brier".
        kwargs: as in `PredictionMetric`.
    """

    higher_is_better = False
    reads_softmax = False

    def __init__(self, *, score: Score = "nll", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("score", score, SCORES)
        self.score: Score = score
        self.add_sums(f"{score}_sums", len(LOG_TEMPERATURES))

    def sum_of(self, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        sums = sum_losses(rows, labels, are_logits=self.from_logits, weight=weight)
        return sums[0, SCORES.index(self.score)]

    def of_sums(self, sums: Tensor, count: Tensor) -> ScoreSplit:
        return split_of_losses(sums / count)


class TopKAccuracy(RowMetric):
    """Top-k `accuracy` of a stream.

    Args:
        top_k: how many classes may be named.
        kwargs: as in `PredictionMetric`.

    Example:
        >>> metric = TopKAccuracy(top_k=2)
        >>> metric.update(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]), torch.tensor([2, 2]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def __init__(self, *, top_k: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integer("top_k", top_k, low=1)
        self.top_k = top_k
        self.add_sums(f"top{top_k}_hits")

    def sum_of(self, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        hits = label_in_top(rows, labels, self.top_k)
        return hits.sum() if weight is None else (hits * weight).sum()


class BrierScore(RowMetric):
    """`brier_score` of a stream.

    Example:
        >>> metric = BrierScore()
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.8125, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sums("brier")

    def sum_of(self, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        errors = squared_errors(rows, labels)
        return errors.sum() if weight is None else errors @ weight


class ClasswiseCalibrationError(RowMetric):
    """`classwise_calibration_error` of a stream; exact, C x B sums in memory.

    Bins of equal mass are cut from 4,000 cells for each class (96 kB): probabilities of one cell
    count as equal.

    Args:
        num_classes: number of classes C.
        num_bins, binning, reduction: as in `classwise_calibration_error`.
        kwargs: as in `PredictionMetric`.

    Example:
        >>> metric = ClasswiseCalibrationError(2, num_bins=5)
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> metric.update(probs, torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.3000, dtype=torch.float64)
    """

    higher_is_better = False

    @by_convention
    def __init__(
        self,
        num_classes: int,
        *,
        num_bins: int = 15,
        binning: Binning = "width",
        reduction: Reduction = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("num_classes", num_classes, low=2)
        check_integer("num_bins", num_bins, low=1)
        check_choice("binning", binning, ("width", "mass"))
        check_choice("reduction", reduction, ("mean", "none"))
        self.num_classes, self.num_bins = num_classes, num_bins
        self.binning: Binning = binning
        self.reduction: Reduction = reduction
        if binning == "width":
            self.add_sums("class_gap", num_classes, num_bins)
        else:
            self.add_sums("class_cells", num_classes, CELLS, 3)

    def sum_of(self, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        if rows.shape[1] != self.num_classes:
            raise ValueError(f"preds have {rows.shape[1]} classes, not {self.num_classes}")
        if self.binning == "mass":
            return class_cells(rows, labels, weight)
        return class_gaps(rows, labels, self.num_bins, weight=weight)

    def of_sums(self, sums: Tensor, count: Tensor) -> Tensor:
        gaps = sums if self.binning == "width" else mass_gaps_of_cells(sums, self.num_bins)
        return reduce_classes(gaps, count, self.reduction)


class MeanIoU(Float64Metric):
    """`mean_iou` of a stream, from one confusion matrix over all batches.

    Args:
        num_classes: number of classes C.
        reduction, class_dim: as in `mean_iou`.
        ignore_index: label of pixels that count for nothing.
        validate: check labels and predictions on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = MeanIoU(2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.5833, dtype=torch.float64)
    """

    higher_is_better = True
    matrix: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        reduction: Reduction = "mean",
        class_dim: int = 1,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("num_classes", num_classes, low=2)
        check_integer("class_dim", class_dim, low=-(2**63))
        self.class_dim = class_dim
        check_choice("reduction", reduction, ("mean", "none"))
        self.num_classes = num_classes
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.validate = validate
        matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("matrix", matrix, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: preds (N, C, ...), target (N, ...)."""
        preds, target = as_tensors(preds, target, self.class_dim)
        if preds.ndim > 1 and preds.shape[1] != self.num_classes:
            raise ValueError(f"preds have {preds.shape[1]} classes, not {self.num_classes}")
        self.matrix += confusion_matrix(
            preds, target, ignore_index=self.ignore_index, validate=self.validate
        )

    def compute(self) -> Tensor:
        return iou_of_matrix(self.matrix, self.reduction)


class DetectionCalibrationError(Float64Metric):
    """`detection_calibration_error` of a stream, exactly.

    Args:
        num_bins: of equal width on each axis, or five numbers with boxes.
        with_boxes: whether position and size count too; `update` then takes boxes.
        least: cells with fewer detections count for nothing.
        kwargs: `torchmetrics.Metric` options.
    """

    higher_is_better = False
    sums: Tensor

    @by_convention
    def __init__(
        self,
        *,
        num_bins: int | Sequence[int] = 20,
        with_boxes: bool = False,
        least: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("least", least, low=1)
        self.sizes = check_bins(num_bins, with_boxes=with_boxes)
        self.with_boxes, self.least = with_boxes, least
        zeros = torch.zeros(math.prod(self.sizes), 3, dtype=torch.float64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")

    def update(self, preds: Any, target: Any, boxes: Any = None) -> None:
        """Add a batch: confidences (N,), correct or not (N,), boxes (N, 4) where they count."""
        if (boxes is not None) != self.with_boxes:
            raise ValueError(f"boxes must be {'given' if self.with_boxes else 'left out'} here")
        self.sums += detection_sums(preds, target, boxes, self.sizes).to(self.sums)

    def compute(self) -> Tensor:
        """The error of everything seen so far."""
        return error_of_cells(self.sums, self.least)

    def interval(
        self,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> tuple[float, float]:
        """Bootstrap interval (low, high) by Poisson counts, as if detections were independent."""
        count, hits, total = self.sums[self.sums[:, 0] > 0].unbind(1)
        check_resampling(int(count.sum()), resamples, level)
        found = torch.poisson(hits.expand(resamples, -1), generator=generator)
        drawn = found + torch.poisson((count - hits).expand(resamples, -1), generator=generator)
        sums = torch.stack([drawn, found, drawn * (total / count)], -1)
        return centred_interval(
            error_of_cells(sums, self.least), float(self.compute()), level=level
        )
