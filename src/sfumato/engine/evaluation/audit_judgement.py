"""From tallies to a judgement: over- or underconfident, where, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.binomial import clopper_pearson_upper
from sfumato._core.confidence_bins import bin_index
from sfumato.engine.evaluation.audit_images import ImageSample
from sfumato.engine.evaluation.audit_sums import gap_of, gaps_of
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Tallies
from sfumato.metrics.calibration import reliability_of_groups
from sfumato.metrics.floor import binomial_deviation
from sfumato.metrics.histogram import Groups, width_bins
from sfumato.predictions.risk_threshold import MOST_PER_IMAGE

POINTS = 600  # of the risk-coverage curve
_COARSE = 960
_DRAWS = 500


def judge(
    name: str,
    tallies: Tallies,
    groups: Groups,
    metrics: Mapping[str, Any],
    generator: torch.Generator,
    thresholds: Mapping[str, Any] | None = None,
    most_per_image: int = MOST_PER_IMAGE,
    lowest: Tensor | None = None,
) -> dict[str, Any]:
    """Verdict, reliability bins with what chance would show, curve, and every breakdown.

    Args:
        name: of the model.
        tallies: its predictions.
        groups: the same by confidence, exactly where the rows are in memory.
        metrics: what was measured.
        generator: of the sets of labels that an honest model would have.
        thresholds: what was found for a target risk; points of the curve.
        most_per_image: as how many accepted predictions an image counts in the curve's bounds.
        lowest: smallest confidence of each group; None where each is of one confidence.
    """
    overall = gap_of("all", tallies.whole())
    honest = honest_draws(groups, generator, _DRAWS)
    share = honest.share(float(metrics["ece"]))
    bins = reliability_of_groups(groups, NUM_BINS)
    low, high = honest.band()
    return {
        "name": name,
        "samples": tallies.count,
        "images": tallies.images.images if tallies.images.is_clustered else None,
        "most_per_image": most_per_image if _has_crowds(tallies) else None,
        "is_histogram": not tallies.batches,
        "images_sampled": None if tallies.images.is_whole else tallies.images.size,
        "metrics": dict(metrics),
        "ece_floor": _floor(groups),
        "gap": overall,
        "verdict": _verdict(overall, share),
        "honest_share": share,
        "worst_range": _worst_range(bins.edges, bins.counts, bins.confidences - bins.accuracies),
        "by_class": gaps_of(tallies.by_class.parts),
        "by_group": gaps_of(tallies.by_group.parts),
        "by_time": _periods(tallies),
        "is_dated": tallies.is_dated,
        "reliability": {
            "counts": bins.counts.tolist(),
            "confidence": bins.confidences.tolist(),
            "accuracy": bins.accuracies.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
        "curve": curve(groups, _chosen(thresholds), tallies.images, most_per_image, lowest),
        "thresholds": thresholds,
        "mistakes": [mistake._asdict() for mistake in tallies.mistakes],
        "zero_labels": tallies.zeros,
        "skipped": dict(tallies.skipped),
    }


class Honest(NamedTuple):
    """What a model whose every confidence is true would show, by chance.

    Args:
        right: correct predictions in each bin, (R, B).
        mass: summed confidence in each bin, (B,).
        size: predictions in each bin, (B,).
    """

    right: Tensor
    mass: Tensor
    size: Tensor

    def share(self, error: float) -> float:
        """How often it would show this ECE or more."""
        errors = (self.mass - self.right).abs().sum(1) / self.size.sum()
        return (1 + int((errors >= error).sum())) / (1 + len(errors))

    def band(self) -> tuple[Tensor, Tensor]:
        """Between which accuracies 95 % of its bins would lie, (B,) each; NaN where empty."""
        accuracy = self.right / self.size
        ends = torch.quantile(accuracy.nan_to_num(), torch.tensor([0.025, 0.975]).double(), dim=0)
        low, high = (end.where(self.size > 0, torch.nan) for end in ends)
        return low, high


def honest_draws(groups: Groups, generator: torch.Generator, draws: int) -> Honest:
    """Labels drawn anew from the confidences themselves.

    The number of right predictions in a narrow cell of confidences is binomial with their mean.
    """
    cell = bin_index(groups.upper, _COARSE) if len(groups.upper) > 2 * _COARSE else None
    count, mass = (
        each if cell is None else each.new_zeros(_COARSE).index_add_(0, cell, each)
        for each in (groups.count, groups.confidence)
    )
    edges = (torch.arange(_COARSE, dtype=torch.float64) + 1) / _COARSE
    upper = groups.upper if cell is None else edges
    sure = (mass / count.clamp(min=1)).clamp(0, 1)
    right = torch.binomial(
        count.expand(draws, -1).contiguous(),
        sure.expand(draws, -1).contiguous(),
        generator=generator,
    )
    place = bin_index(upper, NUM_BINS)
    bins = width_bins(groups, NUM_BINS)
    drawn = right.new_zeros(draws, NUM_BINS).index_add_(1, place, right)
    return Honest(drawn, bins.confidence, bins.count)


def curve(
    groups: Groups,
    also: Sequence[float] = (),
    images: ImageSample | None = None,
    most_per_image: int = MOST_PER_IMAGE,
    lowest: Tensor | None = None,
) -> dict[str, list[float]]:
    """Risk against coverage at up to 600 thresholds and those of `also`, from all kept to few.

    `kept` and `wrong` count the predictions with at least the confidence `threshold`; `bound` is
    the largest error of theirs that 19 of 20 test sets leave possible, for one threshold that was
    chosen beforehand: over images where several predictions are of one. `lowest` is the smallest
    confidence of each group, where a group has several.
    """
    kept, wrong = (x.flip(0).cumsum(0).flip(0) for x in (groups.count, groups.wrong))
    places = torch.arange(len(kept))
    if len(places) > POINTS:
        steps = torch.linspace(0, 1, POINTS // 2, dtype=torch.float64)
        by_mass = torch.searchsorted(groups.count.cumsum(0), steps * groups.count.sum())
        by_place = (steps * (len(kept) - 1)).long()
        places = torch.cat([by_mass.clamp(max=len(kept) - 1), by_place]).unique()
    threshold = groups.upper.double() if lowest is None else lowest
    more = torch.searchsorted(threshold, torch.tensor(also, dtype=torch.float64))
    places = torch.cat([places, more.clamp(max=len(kept) - 1)]).unique()
    kept, wrong = kept[places], wrong[places]
    threshold = threshold[places]
    if images is not None and images.is_clustered:
        bound = images.bounds(threshold, 0.05, most_per_image)
    else:
        bound = clopper_pearson_upper(wrong, kept, 0.05)
    columns = {"threshold": threshold, "kept": kept, "wrong": wrong, "bound": bound}
    return {name: column.tolist() for name, column in columns.items()}


def _chosen(thresholds: Mapping[str, Any] | None) -> list[float]:
    found = [] if thresholds is None else [thresholds["accept"], thresholds["escalate"]]
    return [
        each["confidence"] for each in found if each is not None and each["confidence"] is not None
    ]


def _floor(groups: Groups) -> float:
    """The ECE that these confidences would have on average if every one of them were true."""
    bins = width_bins(groups, NUM_BINS)
    deviation = binomial_deviation(bins.count, bins.confidence / bins.count.clamp(min=1))
    return float(deviation.sum() / bins.count.sum())


def _has_crowds(tallies: Tallies) -> bool:
    """Whether bounds count crowded images as smaller ones: of detections, not of pixels."""
    return tallies.images.is_clustered and not tallies.images.pixels


def _periods(tallies: Tallies) -> list[dict[str, Any]]:
    found = tallies.by_time.starts()
    length = 2.0**tallies.by_time.power
    rows = [gap_of(f"{start:g}", sums, tests=len(found)) for start, sums in found]
    return [
        {**row, "start": start, "end": start + length}
        for row, (start, _) in zip(rows, found, strict=True)
    ]


def _verdict(overall: Mapping[str, Any], honest_share: float) -> str:
    if any(math.isnan(end) for end in overall["interval"]):  # one prediction, or one image
        return "can't tell"
    if overall["direction"] != "can't tell":
        return str(overall["direction"])
    if honest_share < 0.05:
        return "right on average, wrong in places"
    return "no miscalibration found"


def _worst_range(edges: Tensor, counts: Tensor, gaps: Tensor) -> dict[str, float] | None:
    """The bin that contributes most to the calibration error."""
    weight = (gaps.nan_to_num() * counts).abs()
    if not float(weight.sum()):
        return None
    place = int(weight.argmax())
    return {
        "low": float(edges[place]),
        "high": float(edges[place + 1]),
        "gap": float(gaps[place]),
        "share": float(counts[place] / counts.sum()),
    }
