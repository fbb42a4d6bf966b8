"""Every metric of a split's predictions, whole and resampled, with what they are read against."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato.data import ArrayDataset
from sfumato.engine.evaluation.replicates import Replicates, describe_units
from sfumato.engine.runs.directory import Predictions
from sfumato.metrics import calibration_floor, reliability
from sfumato.metrics.intervals import check_resampling, draw_in_parts, intervals_of
from sfumato.metrics.resampling import Evaluation

BINS = 15
_CHEAP = 2_000_000  # logits up to which the parts of the scores are measured, too


def measure_split(
    found: Predictions,
    *,
    posterior: Tensor | None = None,
    replicates: Replicates | None = None,
    split: str = "test",
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Metrics of predictions and, where they are resampled, their intervals.

    Args:
        found: logits and labels.
        posterior: true class probabilities of the same samples, where they are known.
        replicates: where the resampled metrics go; None measures without resamples.
        split: what they are called there.
        names: the metrics that are wanted, or None for all.

    Returns:
        Metrics as `evaluate_predictions` names them, without its `splits` beyond 2 million logits
        and where `names` are given; `ece_floor`, the ECE that a perfectly calibrated network with
        these confidences would show; with a posterior `true_calibration_error`, sample by sample,
        and `true_ece`, in the bins of `ece`.
    """
    evaluation = Evaluation(
        found.logits,
        found.labels,
        from_logits=True,
        num_bins=BINS,
        ignore_index=-100,
        validate=True,
        splits=names is None and found.logits.numel() <= _CHEAP,
    )
    probs = found.logits.softmax(1)
    values = evaluation.measure()
    truth = None if posterior is None else _Truth(probs, posterior)
    if truth is not None:
        values |= {name: float(value) for name, value in truth.measure(None).items()}
    wanted = [name for name in values if names is None or name in names]
    values = {name: values[name] for name in wanted}
    result: dict[str, Any] = {**values, "ece_floor": float(calibration_floor(probs, num_bins=BINS))}
    if replicates is None or not replicates.resamples:
        return result
    units = len(found.labels)
    check_resampling(units, replicates.resamples, 0.95)
    draws = evaluation.resample(replicates.resamples, generator=replicates.generator(units))
    if truth is not None:
        draws |= truth.resample(replicates)
    draws = {name: draws[name] for name in wanted}
    replicates.add(split, describe_units(units, found.labels), draws)
    return result | intervals_of(values, draws)


def posterior_of(data: ArrayDataset) -> Tensor | None:
    """True class probabilities in the order of saved predictions, where the data has them."""
    if data.posterior is None:
        return None
    return data.posterior[data.index.argsort(stable=True)].cpu()


def reliability_bins(found: Predictions) -> dict[str, list[float]]:
    """The bins of the reliability diagram as plain data."""
    bins = reliability(found.logits.softmax(1), found.labels, num_bins=BINS)
    return {
        "counts": bins.counts.tolist(),
        "confidence": bins.confidences.tolist(),
        "accuracy": bins.accuracies.tolist(),
    }


class _Truth:
    """Confidence less the true probability of being right, for the sample and its resamples."""

    def __init__(self, probs: Tensor, posterior: Tensor) -> None:
        confidence, predicted = probs.max(1)
        expected = posterior.gather(1, predicted.unsqueeze(1)).squeeze(1)
        gap = confidence.double() - expected.double()
        member = bin_index(confidence, BINS).unsqueeze(1)
        by_bin = gap.new_zeros(len(gap), BINS).scatter_(1, member, gap.unsqueeze(1))
        self.gaps = torch.cat([gap.abs().unsqueeze(1), by_bin], 1)  # (N, 1 + B)

    def measure(self, weights: Tensor | None) -> dict[str, Tensor]:
        """`true_calibration_error` without bins and `true_ece`, (R,) for weights (R, N)."""
        if weights is None:
            weights = self.gaps.new_ones(1, len(self.gaps))
        sums = weights @ self.gaps / weights.sum(1, keepdim=True)
        return {"true_calibration_error": sums[:, 0], "true_ece": sums[:, 1:].abs().sum(1)}

    def resample(self, replicates: Replicates) -> dict[str, Tensor]:
        """Both on the resamples that the other metrics see."""
        units = len(self.gaps)
        weights = draw_in_parts(units, replicates.resamples, generator=replicates.generator(units))
        parts = [self.measure(part) for part in weights]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
