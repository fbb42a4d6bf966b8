"""Metrics of a stream that need more of a prediction than its confidence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sfumato._core.checks import check_choice, check_integer
from sfumato.metrics.accuracy import label_in_top
from sfumato.metrics.brier import squared_errors
from sfumato.metrics.classwise import (
    CELLS,
    Binning,
    Reduction,
    class_cells,
    class_gaps,
    mass_gaps_of_cells,
    reduce_classes,
)
from sfumato.metrics.scored_samples import flat_rows
from sfumato.metrics.segmentation import confusion_matrix, iou_of_matrix


class TopKAccuracy(Metric):
    """Top-k `accuracy` of a stream.

    Args:
        top_k: how many classes may be named.
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = TopKAccuracy(top_k=2)
        >>> metric.update(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]), torch.tensor([2, 2]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    def __init__(
        self,
        *,
        top_k: int = 5,
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("top_k", top_k, low=1)
        self.top_k = top_k
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.validate = validate
        # Collections merge metrics whose states agree after one batch; top-1 and top-5 may.
        self.state = f"top{top_k}_hits"
        self.add_state(self.state, torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        rows, labels = flat_rows(
            predictions,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
        )
        hits = label_in_top(rows, labels, self.top_k)
        getattr(self, self.state).add_(torch.stack([hits.sum(), torch.ones_like(hits).sum()]))

    def compute(self) -> Tensor:
        hits, total = getattr(self, self.state)
        return hits / total


class BrierScore(Metric):
    """`brier_score` of a stream.

    Args:
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = BrierScore()
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.8125, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    brier_sum: Tensor
    brier_count: Tensor

    def __init__(
        self,
        *,
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.validate = validate
        zero = torch.zeros((), dtype=torch.float64)
        self.add_state("brier_sum", zero, dist_reduce_fx="sum")
        self.add_state("brier_count", zero.clone(), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        rows, labels = flat_rows(
            predictions,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
        )
        self.brier_sum += squared_errors(rows, labels).sum()
        self.brier_count += len(labels)

    def compute(self) -> Tensor:
        return self.brier_sum / self.brier_count


class ClasswiseCalibrationError(Metric):
    """`classwise_calibration_error` of a stream; exact, C x B sums in memory.

    Bins of equal mass are cut from 4,000 cells for each class (96 kB): probabilities of one cell
    count as equal.

    Args:
        num_classes: number of classes C.
        num_bins: as in `classwise_calibration_error`.
        binning: as in `classwise_calibration_error`.
        reduction: as in `classwise_calibration_error`.
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = ClasswiseCalibrationError(2, num_bins=5)
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> metric.update(probs, torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.3000, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    class_count: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        num_bins: int = 15,
        binning: Binning = "width",
        reduction: Reduction = "mean",
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("num_classes", num_classes, low=2)
        check_integer("num_bins", num_bins, low=1)
        check_choice("binning", binning, ("width", "mass"))
        check_choice("reduction", reduction, ("mean", "none"))
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.binning: Binning = binning
        self.reduction: Reduction = reduction
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.validate = validate
        size = (num_bins,) if binning == "width" else (CELLS, 3)
        # Collections merge metrics whose states have one name and agree after a batch.
        self.state = "class_gap" if binning == "width" else "class_cells"
        sums = torch.zeros(num_classes, *size, dtype=torch.float64)
        self.add_state(self.state, sums, dist_reduce_fx="sum")
        self.add_state("class_count", sums.new_zeros(()), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        rows, labels = flat_rows(
            predictions,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
        )
        if rows.shape[1] != self.num_classes:
            raise ValueError(f"predictions have {rows.shape[1]} classes, not {self.num_classes}")
        sums = getattr(self, self.state)
        if self.binning == "width":
            sums += class_gaps(rows, labels, self.num_bins)
        else:
            sums += class_cells(rows, labels)
        self.class_count += len(labels)

    def compute(self) -> Tensor:
        gaps = getattr(self, self.state)
        if self.binning == "mass":
            gaps = mass_gaps_of_cells(gaps, self.num_bins)
        return reduce_classes(gaps, self.class_count, self.reduction)


class MeanIoU(Metric):
    """`mean_iou` of a stream, from one confusion matrix over all batches.

    Args:
        num_classes: number of classes C.
        reduction: as in `mean_iou`.
        ignore_index: label of pixels that count for nothing.
        validate: check labels on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = MeanIoU(2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.5833, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    matrix: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("num_classes", num_classes, low=2)
        check_choice("reduction", reduction, ("mean", "none"))
        self.num_classes = num_classes
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.validate = validate
        matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("matrix", matrix, dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        if predictions.ndim > 1 and predictions.shape[1] != self.num_classes:
            raise ValueError(
                f"predictions have {predictions.shape[1]} classes, not {self.num_classes}"
            )
        self.matrix += confusion_matrix(
            predictions, target, ignore_index=self.ignore_index, validate=self.validate
        )

    def compute(self) -> Tensor:
        return iou_of_matrix(self.matrix, self.reduction)
