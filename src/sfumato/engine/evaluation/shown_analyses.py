"""Analyses that show images, maps and samples: covariance, activation maps, the regulariser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sfumato import analysis
from sfumato._core.evaluation_mode import evaluating
from sfumato.engine.evaluation.subject import Effort, Subject
from sfumato.labels import ACLSLoss
from sfumato.labels.acls_regulariser import acls_penalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RADIUS = 4
_SHOWN = 4


@dataclass(frozen=True)
class ShownMaps:
    """Activation maps with the images that they are of."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    boxes: Tensor | None
    found: analysis.ActivationMaps

    def as_numbers(self) -> dict[str, Any]:
        """What `analysis.json` keeps: the maps on their own grid, not the pictures."""
        return {
            "module": self.found.module,
            "raw": self.found.raw.tolist(),
            "target": self.found.target.tolist(),
            "probs": self.found.probs.tolist(),
            "labels": self.labels.tolist(),
        }


def measure_covariance(subject: Subject, effort: Effort) -> analysis.FeatureCovariance:
    """At the end of the first stage, as far around the centre as its maps go."""
    images = subject.loader.batch(0)["image"]
    name = analysis.stage_ends(subject.network, images)[0]
    sides: list[int] = []
    handle = subject.network.get_submodule(name).register_forward_hook(
        lambda _module, _inputs, output: sides.extend(output.shape[2:])
    )
    try:
        with evaluating(subject.network):
            subject.network(images[:1])
    finally:
        handle.remove()
    return analysis.feature_covariance(
        subject.network,
        subject.loader,
        module=name,
        radius=min(_RADIUS, (min(sides) - 1) // 2),
        batches=effort.spectrum_batches,
        generator=torch.Generator().manual_seed(0),
    )


def measure_maps(subject: Subject, effort: Effort) -> ShownMaps:
    """Grad-CAM++ of the first test images, without dropout."""
    standardised, test = subject.test.batch(0)["image"][:_SHOWN], subject.test.dataset
    found = analysis.grad_cam_plus_plus(subject.network, standardised)
    boxes = None if test.boxes is None else test.boxes[:_SHOWN]
    return ShownMaps(test.images[:_SHOWN], test.labels[:_SHOWN], test.classes, boxes, found)


def draw_maps(results: Mapping[str, ShownMaps]) -> Figure:
    """All networks side by side: those that were shown the images of the first."""
    first = next(iter(results.values()))
    same = {
        title: each.found
        for title, each in results.items()
        if torch.equal(each.images, first.images)
    }
    return analysis.plot_activation_maps(
        first.images, same, labels=first.labels, classes=first.classes, boxes=first.boxes
    )


def measure_regulariser(subject: Subject, effort: Effort) -> analysis.RegulariserValues | None:
    """Of each sample of some training batches; only ACLS has one that may do nothing."""
    loss = subject.loss.loss
    if not isinstance(loss, ACLSLoss):
        return None
    values = []
    with evaluating(subject.network):
        for images, target in islice(subject.batches, effort.spectrum_batches):
            logits = subject.loss.average(subject.network(images))
            known, index = subject.loss.split(target, logits.dtype)
            correctness = None
            if loss.history is not None and index is not None:
                correctness = loss.history.correctness(index)
            values.append(
                acls_penalty(
                    logits,
                    known,
                    margin=loss.margin,
                    predicted_weight=loss.predicted_weight,
                    other_weight=loss.other_weight,
                    form=loss.form,
                    smoothing=loss.smoothing,
                    condition=loss.condition,
                    correctness=correctness,
                    reduction="none",
                )
            )
    return analysis.RegulariserValues(torch.cat(values))
