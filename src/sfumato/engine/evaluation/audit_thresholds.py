"""From which confidence on predictions may be accepted: what an audit says of a target risk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sfumato.engine.evaluation.audit_class_counts import ClassCounts
from sfumato.engine.evaluation.audit_images import ImageSample
from sfumato.engine.evaluation.audit_outcomes import Outcomes
from sfumato.engine.evaluation.audit_tallies import Tallies
from sfumato.metrics.confidence_sums import counts_of_sums
from sfumato.metrics.fine_cells import cell_edges
from sfumato.predictions.decision_thresholds import class_risk_thresholds
from sfumato.predictions.risk_threshold import (
    MOST_PER_IMAGE,
    THRESHOLDS,
    RiskThreshold,
    risk_threshold,
    risk_threshold_of_counts,
    risk_threshold_of_images,
)


@dataclass(frozen=True)
class Target:
    """What is asked of a threshold.

    Args:
        risk: error that what is accepted may have.
        delta: how often, over draws of the data, all promises together may be broken.
        escalate_risk: error that what is not rejected may have; None for one threshold.
        per_class: a threshold for each predicted class, too.
        most_per_image: as how many accepted detections an image counts at most.
    """

    risk: float
    delta: float = 0.05
    escalate_risk: float | None = None
    per_class: bool = False
    most_per_image: int = MOST_PER_IMAGE

    def risks(self) -> list[float]:
        """Of one threshold or two; each has an equal share of delta."""
        return [self.risk] if self.escalate_risk is None else [self.risk, self.escalate_risk]


def thresholds_of_rows(
    found: Outcomes, classes: Sequence[str] | None, target: Target
) -> dict[str, Any]:
    """Thresholds of predictions in memory."""
    share = target.delta / len(target.risks())
    chosen = [
        risk_threshold(found.confidence, found.correct, target_risk=risk, delta=share)
        for risk in target.risks()
    ]
    result = _described(chosen, target)
    if target.per_class and found.predicted is not None:
        by_class = class_risk_thresholds(
            found.confidence,
            found.correct,
            found.predicted,
            target_risk=target.risk,
            delta=target.delta,
        )
        counts = torch.bincount(found.predicted).tolist()
        result["classes"] = [
            {
                "name": classes[number] if classes else str(number),
                "count": counts[number],
                **_plain(threshold),
            }
            for number, threshold in sorted(by_class.items())
        ]
    return result


def thresholds_of_images(sample: ImageSample, target: Target) -> dict[str, Any]:
    """Thresholds of predictions that come in images, of a sample of these where they are many."""
    most = sample.most(target.most_per_image)
    share = target.delta / len(target.risks())
    steps, total = sample.steps()
    chosen = [
        risk_threshold_of_images(steps, total, target_risk=risk, delta=share, most_per_image=most)
        for risk in target.risks()
    ]
    result = _described(chosen, target)
    if target.per_class and sample.classes:
        result["classes"] = _classes_of_images(sample, target, most)
    return result


def _classes_of_images(sample: ImageSample, target: Target, most: int) -> list[dict[str, Any]]:
    seen = sample.parts[4].unique().tolist()
    found = []
    for number in sorted(seen, key=lambda place: sample.classes[place]):
        steps, total = sample.steps(number)
        chosen = risk_threshold_of_images(
            steps,
            total,
            target_risk=target.risk,
            delta=target.delta / len(seen),
            most_per_image=most,
        )
        found.append({"name": sample.classes[number], "count": total, **_plain(chosen)})
    return found


def thresholds_of_sums(tallies: Tallies, target: Target) -> dict[str, Any]:
    """Thresholds of a histogram; each is moved up to where the next cell begins.

    The cells are as fixed beforehand as the thresholds are, so that the promise holds as well. It
    is the moved threshold that is reported: exactly what is counted has at least that confidence.
    """
    edges = cell_edges(tallies.cells, tallies.sums.device)
    cell = torch.searchsorted(edges, torch.tensor(THRESHOLDS, dtype=torch.float64))
    moved = dict(zip(THRESHOLDS, tallies.lowest()[cell].tolist(), strict=True))
    wrong, right = counts_of_sums(tallies.sums)
    kept, errors = (
        torch.cat([each.flip(0).cumsum(0).flip(0), each.new_zeros(1)]).long()[cell]
        for each in (wrong + right, wrong)
    )
    share = target.delta / len(target.risks())
    chosen = []
    for risk in target.risks():
        found = risk_threshold_of_counts(kept, errors, tallies.count, target_risk=risk, delta=share)
        if found.confidence is not None:
            found = replace(found, confidence=moved[found.confidence])
        chosen.append(found)
    return _described(chosen, target)


def thresholds_of_classes(counts: ClassCounts, target: Target) -> list[dict[str, Any]]:
    """A threshold for each class, of counts at the thresholds that are tested: that of the rows."""
    classes = counts.kept()
    found = []
    for name, (kept, wrong) in classes.items():
        total = int(kept[-1])
        share = target.delta / len(classes)
        chosen = risk_threshold_of_counts(kept, wrong, total, target_risk=target.risk, delta=share)
        found.append({"name": name, "count": total, **_plain(chosen)})
    return found


def _described(chosen: Sequence[RiskThreshold], target: Target) -> dict[str, Any]:
    return {
        "delta": target.delta,
        "accept": _plain(chosen[0]),
        "escalate": _plain(chosen[1]) if len(chosen) > 1 else None,
        "classes": None,
    }


def _plain(threshold: RiskThreshold) -> dict[str, Any]:
    accepted = threshold.accepted
    return {
        "target_risk": threshold.target_risk,
        "confidence": threshold.confidence,
        "coverage": threshold.coverage,
        "risk_bound": threshold.risk_bound,
        "risk": threshold.errors / accepted if accepted else None,
        "accepted": accepted,
        "errors": threshold.errors,
        "images": threshold.images,
        "most_per_image": threshold.most_per_image,
    }
