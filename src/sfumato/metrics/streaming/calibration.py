"""Calibration metrics of a stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato.metrics.calibration import (
    Binning,
    Norm,
    ReliabilityBins,
    check_binning,
    error_of_groups,
    mass_error_bound,
    reliability_of_groups,
)
from sfumato.metrics.fine_cells import cell_edges
from sfumato.metrics.histogram import Groups
from sfumato.metrics.signed_calibration import SignedError, signed_error_of_groups
from sfumato.metrics.smooth import ks_error_of_groups, smooth_error_of_groups
from sfumato.metrics.streaming.state import ConfidenceMetric


class CalibrationError(ConfidenceMetric):
    """`calibration_error` of a stream, in memory that doesn't grow.

    Equal-width values are exact. Equal-mass edges are moved up to the next edge of the grid;
    `bound()` says how far this can have moved the value (some 1e-4 for 5,000 predictions).

    Args:
        num_bins: as in `calibration_error`.
        norm: as in `calibration_error`.
        binning: as in `calibration_error`.
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update.
        kwargs: `torchmetrics.Metric` options.

    Example:
        >>> metric = CalibrationError(num_bins=5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(
        self,
        *,
        num_bins: int = 15,
        norm: Norm = "l1",
        binning: Binning = "width",
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        check_binning(num_bins, norm, binning)
        super().__init__(
            num_bins=num_bins,
            from_logits=from_logits,
            ignore_index=ignore_index,
            validate=validate,
            **kwargs,
        )
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


class SignedCalibrationError(ConfidenceMetric):
    """`signed_calibration_error` of a stream; exact."""

    def measure(self, groups: Groups) -> SignedError:
        return signed_error_of_groups(groups, self.num_bins)


class SmoothCalibrationError(ConfidenceMetric):
    """`smooth_calibration_error` of a stream, in memory that doesn't grow.

    Example:
        >>> metric = SmoothCalibrationError()
        >>> metric.update(torch.tensor([[0.8, 0.2]]).repeat(100, 1), torch.arange(100) // 60)
        >>> metric.compute()
        tensor(0.2000, dtype=torch.float64)
    """

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return smooth_error_of_groups(groups)


class KSCalibrationError(ConfidenceMetric):
    """`ks_calibration_error` of a stream; off by at most the mass of one cell."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return ks_error_of_groups(groups)
