"""Labels that a run makes from what is left of the object after the loader's crops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_number
from sfumato.augment.protocol import BatchAugment, LocatedAugment, Sample
from sfumato.labels.objectness import box_objectness, mask_objectness, window_objectness
from sfumato.labels.targets import objectness_labels

LabelSample = Callable[[Sample], Tensor]
"""From a batch after its crops to the probabilities (N, num_classes) that it is trained on."""


@dataclass(frozen=True)
class ObjectnessLabels:
    """How labels follow the objectness of the crop, as a study's `labels` section says.

    Args:
        beta: 1 full adaptive smoothing, 0 hard labels (Eq. 6).
        by: measure the object by its "box" (the paper's) or by its "mask".
        absent: label where nothing is left of the object, as in `objectness_labels`.
    """

    beta: float = 1.0
    by: Literal["box", "mask"] = "box"
    absent: Literal["uniform", "others"] = "uniform"

    def __post_init__(self) -> None:
        check_number("beta", self.beta, low=0.0, high=1.0)
        check_choice("by", self.by, ("box", "mask"))
        check_choice("absent", self.absent, ("uniform", "others"))


class Annotated(Protocol):
    """What `label_samples` looks at in a training set."""

    @property
    def num_classes(self) -> int: ...

    @property
    def boxes(self) -> Tensor | None: ...

    @property
    def masks(self) -> Tensor | None: ...

    @property
    def context(self) -> Tensor | None: ...


@dataclass(frozen=True)
class LabelledAugment:
    """An augmentation whose samples carry a `soft_label` (N, num_classes) beside their `label`.

    Boxes are measured where they are exact: after the crop, or, where the crop is turned, before
    it, inside the turned window. Samples marked as `context` get uniform labels whatever the rest.
    """

    num_classes: int
    labels: ObjectnessLabels | LabelSample | None = None
    inner: LocatedAugment | None = None

    @property
    def draws(self) -> int:
        return 0 if self.inner is None else self.inner.draws

    @property
    def cuts_originals(self) -> bool:
        """Whether it shows parts at full size, which are best cut from files."""
        return bool(getattr(self.inner, "cuts_originals", False))

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The augmented batch with `soft_label`, and `objectness` where it decides the label."""
        source = {key: value for key, value in sample.items() if key not in self._unused()}
        moved = source
        if self.inner is not None:
            moved = self.inner.apply(source, uniforms, void=void)
        soft_label = torch.nn.functional.one_hot(moved["label"], self.num_classes).float()
        if isinstance(self.labels, ObjectnessLabels):
            moved = {**moved, "objectness": self._objectness(source, moved, uniforms)}
            soft_label = objectness_labels(
                soft_label,
                moved["objectness"],
                beta=self.labels.beta,
                absent=self.labels.absent,
            )
        elif self.labels is not None:
            soft_label = self._labelled(moved, self.labels)
        if "context" in moved:
            soft_label[moved["context"]] = 1 / self.num_classes
        return {**moved, "soft_label": soft_label}

    def _unused(self) -> tuple[str, ...]:
        """Annotations that need not be moved with the image."""
        if isinstance(self.labels, ObjectnessLabels) and self.labels.by == "mask":
            return ("objectness",)
        is_by_box = self.labels is None or isinstance(self.labels, ObjectnessLabels)
        return ("objectness", "masks") if is_by_box else ("objectness",)

    def _labelled(self, sample: Sample, label: LabelSample) -> Tensor:
        found, expected = label(sample), (len(sample["label"]), self.num_classes)
        if not isinstance(found, Tensor) or found.shape != expected:
            shape = tuple(found.shape) if isinstance(found, Tensor) else ""
            raise ValueError(
                f"labels must give probabilities {expected}, one for each class of each image, "
                f"got {type(found).__name__} {shape}"
            )
        return found.clone()  # context-only images are written into it

    def _objectness(self, source: Sample, moved: Sample, uniforms: Tensor) -> Tensor:
        if "masks" in moved:
            return mask_objectness(moved["masks"])
        height, width = source["image"].shape[-2:]
        if self.inner is None or not self.inner.rotates:
            return box_objectness(moved["boxes"], (height, width))
        corners = self.inner.corners(uniforms, height, width).to(source["boxes"].device)
        return window_objectness(source["boxes"], corners)


def label_samples(
    labels: ObjectnessLabels | LabelSample | None, train: Annotated, augment: BatchAugment | None
) -> BatchAugment | None:
    """The augmentation that a training set needs for its labels; as it is where they are hard.

    Raises:
        ValueError: labels that need boxes or masks, which the set doesn't have.
    """
    if labels is None and train.context is None:
        return augment
    if isinstance(labels, ObjectnessLabels):
        needed = "boxes" if labels.by == "box" else "masks"
        if getattr(train, needed) is None:
            raise ValueError(
                f"labels: objectness by {labels.by} needs data with {needed}, which this has not: "
                "use scenes, tiny_imagenet, annotated, or an npz with them"
            )
    return LabelledAugment(train.num_classes, labels, cast(LocatedAugment | None, augment))
