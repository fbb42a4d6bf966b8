"""Accuracy, likelihood and mean confidence of a stream, and all numbers of one at once."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.metrics.confidence import (
    accuracy_of_groups,
    average_of_groups,
    overconfidence_of_groups,
    underconfidence_of_groups,
)
from sfumato.metrics.histogram import Groups
from sfumato.metrics.intervals import centred_interval
from sfumato.metrics.resampling import metrics_of_groups
from sfumato.metrics.streaming.state import ConfidenceMetric


class Accuracy(ConfidenceMetric):
    """Top-1 `accuracy` of a stream; shares its state with the calibration metrics.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def measure(self, groups: Groups) -> Tensor:
        return accuracy_of_groups(groups)


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
        return self.likelihood_interval(level)


class AverageConfidence(ConfidenceMetric):
    """`average_confidence` of a stream."""

    def measure(self, groups: Groups) -> Tensor:
        return average_of_groups(groups)


class Overconfidence(ConfidenceMetric):
    """`overconfidence` of a stream."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return overconfidence_of_groups(groups)


class Underconfidence(ConfidenceMetric):
    """`underconfidence` of a stream."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return underconfidence_of_groups(groups)


class StreamingEvaluation(ConfidenceMetric):
    """The numbers of `evaluate_predictions` that one confidence histogram can give, of a stream.

    All keys but brier and classwise_ece, for which `BrierScore` and `ClasswiseCalibrationError`
    keep their own sums. One pass over the predictions, 0.5 MB of memory.

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

    def interval(
        self,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> dict[str, tuple[float, float]]:
        """Interval of every number; see `ConfidenceMetric.interval`."""
        parts = self.draw(resamples, level, generator)
        intervals = {
            name: centred_interval(
                torch.cat([part[name] for part in parts]), float(value), level=level
            )
            for name, value in self.measure(self.groups()).items()
        }
        return {**intervals, "nll": self.likelihood_interval(level)}
