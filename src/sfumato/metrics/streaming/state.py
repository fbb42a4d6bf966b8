"""The shared state of the streaming metrics: a confidence histogram of fixed size."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sfumato._core.checks import check_integer
from sfumato.metrics.confidence_sums import (
    add_samples,
    empty_sums,
    groups_of_sums,
    resample_groups,
)
from sfumato.metrics.fine_cells import cells_per_unit
from sfumato.metrics.histogram import Groups
from sfumato.metrics.intervals import centred_interval, check_resampling
from sfumato.metrics.scored_samples import score

_CHUNK = 1_000_000


class ConfidenceMetric(Metric):
    """Base of the metrics that need of each prediction its confidence and correctness only.

    Counts and sums of confidences are kept for every cell of a fine grid, apart for wrong and
    correct predictions, with the summed log likelihood: 0.5 MB however many predictions come. All
    subclasses with the same grid share one state in a `MetricCollection` (one compute group), so
    ten of them cost little more than one. Sums are float64 and add up over processes.
    Subclasses say in `measure` what they make of the groups.

    Args:
        num_bins: bin count whose edges must lie on the grid.
        from_logits: inputs are logits rather than probabilities.
        ignore_index: label of entries that count for nothing.
        validate: check values on every update (rows sum to one, labels in range).
        kwargs: `torchmetrics.Metric` options (`sync_on_compute`, `dist_sync_fn`, ...).
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        ignore_index: int = -100,
        validate: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integer("num_bins", num_bins, low=1)
        self.num_bins = num_bins
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.validate = validate
        self.cells = cells_per_unit(num_bins)
        # A collection merges metrics whose states agree after one batch, so the name says what the
        # batch can't; one tensor, because it passes every state of every member on at each update.
        kind = "logits" if from_logits else "probs"
        self.state_name = f"sums_of_{kind}_ignoring_{ignore_index}"
        self.add_state(self.state_name, empty_sums(self.cells), dist_reduce_fx="sum")

    @property
    def sums(self) -> Tensor:
        """Count and confidence of each cell (wrong, correct), then log likelihood and square."""
        sums: Tensor = getattr(self, self.state_name)
        return sums

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch: predictions (N, C, ...), target (N, ...)."""
        samples = score(
            predictions,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
        )
        add_samples(self.sums, samples, self.cells)

    def groups(self) -> Groups:
        """The cells that hold predictions, ascending, as the exact functions see them."""
        return groups_of_sums(self.sums, self.cells)

    def measure(self, groups: Groups) -> Any:
        """The value of the metric for grouped predictions."""
        raise NotImplementedError

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
        """Bootstrap interval (low, high) of the metric, as if the predictions were independent.

        The histogram is resampled, not the predictions: the count of every cell is drawn from a
        Poisson distribution with its own mean. Pixels of one image are not independent; for them
        `evaluate_predictions` draws whole images.

        Args:
            resamples: number of resamples.
            level: probability that the interval is to cover.
            generator: source of randomness, on the device of the metric.
        """
        value = self.measure(self.groups())
        if not isinstance(value, Tensor):
            raise TypeError(f"{type(self).__name__} has no single value to give an interval of")
        draws = torch.cat(self.draw(resamples, level, generator))
        return centred_interval(draws, float(value), level=level)

    def draw(self, resamples: int, level: float, generator: torch.Generator | None) -> list[Any]:
        """Values of the metric for resampled histograms, in parts."""
        groups = self.groups()
        check_resampling(int(groups.count.sum()), resamples, level)
        step = max(1, _CHUNK // len(groups.upper))
        sizes = [min(step, resamples - start) for start in range(0, resamples, step)]
        return [self.measure(resample_groups(groups, size, generator)) for size in sizes]

    def mean_log_likelihood(self) -> Tensor:
        """Mean log probability of the labels seen so far."""
        return self.sums[-1, 0] / self.sums[:-1, 0].sum()

    def likelihood_interval(self, level: float) -> tuple[float, float]:
        """Normal interval of the mean negative log likelihood."""
        total = float(self.sums[:-1, 0].sum())
        mean, square = (float(x) / total for x in self.sums[-1])
        if not math.isfinite(mean):
            return -mean, -mean
        error = math.sqrt(max(square - mean**2, 0.0) / total)
        half = NormalDist().inv_cdf((1 + level) / 2) * error
        return -mean - half, -mean + half
