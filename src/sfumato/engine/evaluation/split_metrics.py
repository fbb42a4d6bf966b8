"""Every metric of a split's predictions, whole and resampled, with what they are read against."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato.data import ArrayDataset
from sfumato.engine.evaluation.replicates import Replicates, describe_units
from sfumato.engine.runs.directory import Predictions
from sfumato.metrics import calibration_floor, relative_confidence, reliability
from sfumato.metrics.intervals import check_resampling, draw_in_parts, intervals_of
from sfumato.metrics.resampling import Evaluation

BINS = 15
_CHEAP = 2_000_000  # logits up to which the parts of the scores are measured, too
Value = TypeVar("Value", float, Tensor)
_OF_BINS = ("ece", "aece", "mce")


def measure_split(
    found: Predictions,
    *,
    posterior: Tensor | None = None,
    replicates: Replicates | None = None,
    split: str = "test",
    names: Collection[str] | None = None,
    bins: Sequence[int] = (BINS,),
) -> dict[str, Any]:
    """Metrics of predictions and, where they are resampled, their intervals.

    Args:
        found: logits and labels.
        posterior: true class probabilities of the same samples, where they are known.
        replicates: where the resampled metrics go; None measures without resamples.
        split: what they are called there.
        names: the metrics that are wanted, or None for all.
        bins: numbers of bins; calibration errors of all but the first have it in their names.

    Returns:
        Metrics as `evaluate_predictions` names them, without its `splits` beyond 2 million logits
        and where `names` are given; `relative_confidence`, Eq. (40) of the spatial smoothing paper;
        `ece_floor`, the ECE that a perfectly calibrated network with these confidences would show;
        with a posterior `true_calibration_error`, sample by sample, and `true_ece`, in the bins of
        `ece`.
    """
    probs = found.logits.softmax(1)
    splits = names is None and found.logits.numel() <= _CHEAP
    evaluations = {
        count: _evaluation(found, count, splits=splits and count == bins[0]) for count in bins
    }
    means = [_Means.of_confidence(probs, found.labels)]
    if posterior is not None:
        means.append(_Means.of_truth(probs, posterior, bins[0]))
    values: dict[str, float] = {}
    for count, evaluation in evaluations.items():
        values |= _named(evaluation.measure(), None if count == bins[0] else count)
    for each in means:
        values |= {name: float(value) for name, value in each.measure(None).items()}
    wanted = [name for name in values if names is None or _plain(name, bins) in names]
    values = {name: values[name] for name in wanted}
    floor = float(calibration_floor(probs, num_bins=bins[0]))
    result: dict[str, Any] = {**values, "ece_floor": floor}
    if replicates is None or not replicates.resamples:
        return result
    units = len(found.labels)
    check_resampling(units, replicates.resamples, 0.95)
    draws: dict[str, Tensor] = {}
    for count, evaluation in evaluations.items():
        drawn = evaluation.resample(replicates.resamples, generator=replicates.generator(units))
        draws |= _named(drawn, None if count == bins[0] else count)
    for each in means:
        draws |= each.resample(replicates)
    draws = {name: draws[name] for name in wanted}
    replicates.add(split, describe_units(units, found.labels), draws)
    return result | intervals_of(values, draws)


def posterior_of(data: ArrayDataset) -> Tensor | None:
    """True class probabilities in the order of saved predictions, where the data has them."""
    if data.posterior is None:
        return None
    return data.posterior[data.index.argsort(stable=True)].cpu()


def reliability_bins(found: Predictions, num_bins: int = BINS) -> dict[str, list[float]]:
    """The bins of the reliability diagram as plain data."""
    bins = reliability(found.logits.softmax(1), found.labels, num_bins=num_bins)
    return {
        "counts": bins.counts.tolist(),
        "confidence": bins.confidences.tolist(),
        "accuracy": bins.accuracies.tolist(),
    }


def _evaluation(found: Predictions, bins: int, *, splits: bool) -> Evaluation:
    return Evaluation(
        found.logits,
        found.labels,
        from_logits=True,
        num_bins=bins,
        ignore_index=-100,
        validate=True,
        splits=splits,
    )


def _named(values: Mapping[str, Value], bins: int | None) -> dict[str, Value]:
    """All of them or, of a further number of bins, what depends on it under names of its own."""
    if bins is None:
        return dict(values)
    return {f"{name}_{bins}": values[name] for name in _OF_BINS}


def _plain(name: str, bins: Sequence[int]) -> str:
    """`ece` of `ece_10`, where 10 is a further number of bins."""
    metric, _, count = name.rpartition("_")
    return metric if metric in _OF_BINS and count in map(str, bins[1:]) else name


class _Means:
    """Metrics that are means over samples, or sums of absolute means, for any resample.

    Args:
        parts: columns (N, K) of each metric; it is the sum of the absolute means of its columns.
    """

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        self.parts = parts

    @classmethod
    def of_confidence(cls, probs: Tensor, labels: Tensor) -> _Means:
        """Probability of the label over that of the predicted class."""
        return cls({"relative_confidence": relative_confidence(probs, labels).double()[:, None]})

    @classmethod
    def of_truth(cls, probs: Tensor, posterior: Tensor, bins: int) -> _Means:
        """Confidence less the true probability of being right, without bins and in bins."""
        confidence, predicted = probs.max(1)
        expected = posterior.gather(1, predicted.unsqueeze(1)).squeeze(1)
        gap = confidence.double() - expected.double()
        member = bin_index(confidence, bins).unsqueeze(1)
        by_bin = gap.new_zeros(len(gap), bins).scatter_(1, member, gap.unsqueeze(1))
        return cls({"true_calibration_error": gap.abs().unsqueeze(1), "true_ece": by_bin})

    def measure(self, weights: Tensor | None) -> dict[str, Tensor]:
        """Each metric, (R,) for weights (R, N); (1,) for None."""
        units = len(next(iter(self.parts.values())))
        if weights is None:
            weights = torch.ones(1, units, dtype=torch.float64)
        total = weights.sum(1, keepdim=True)
        return {name: (weights @ part / total).abs().sum(1) for name, part in self.parts.items()}

    def resample(self, replicates: Replicates) -> dict[str, Tensor]:
        """All of them on the resamples that the other metrics see."""
        units = len(next(iter(self.parts.values())))
        weights = draw_in_parts(units, replicates.resamples, generator=replicates.generator(units))
        parts = [self.measure(part) for part in weights]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
