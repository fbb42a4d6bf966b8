"""The one form in which samples travel: tensors or files, each sample with its index."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sfumato._core.checks import check_class_indices
from sfumato._core.tokens import PADDING
from sfumato.augment.protocol import Sample
from sfumato.data.file_tensor import FileTensor
from sfumato.data.text.vocabulary import Vocabulary

UNLABELLED = -100
"""The label of images whose class is not known, with `void` saying so."""

_OF_PIXELS = ("boxes", "masks", "objectness", "stream", "context")
_OPTIONAL = ("boxes", "masks", "objectness", "posterior", "stream", "context")


@dataclass(frozen=True, eq=False)
class ArrayDataset(Dataset[Sample]):
    """Images, or texts as tokens, with labels, a stable index, and annotations.

    A sample is a dict with keys `image`, `label`, `index` and one key for each annotation
    present; a batch is the same dict with a leading batch axis.

    Args:
        images: uint8, (N, C, H, W), in memory or as files that are decoded when needed; for texts
            their tokens, int32 (N, T), each row ending in padding, and `vocabulary` says so.
        labels: int64, (N,) class indices, or (N, H, W) for segmentation (`void` = ignored pixels),
            which may be files too.
        classes: one name per class.
        index: int64, (N,), the sample's position in its source; stays the same in every subset.
        boxes: float32, (N, B, 4) as x1, y1, x2, y2 in pixels; a missing box is all zeros.
        masks: bool, (N, H, W), true where the labelled object is.
        objectness: float32, (N,), share of the image that the object covers.
        posterior: float32, (N, K), the true class probabilities where they are known.
        stream: int64, (N,), number of the video that a frame belongs to; frames of one video
            follow each other in the set, in order.
        void: the label of pixels that count for nothing (segmentation), or of images without a
            label (`UNLABELLED`); None where everything is labelled.
        context: bool, (N,), true where every object was painted over; trained with uniform labels.
        background: the classes that are not objects, where segmentation tells them apart.
        vocabulary: the words behind the tokens of texts; None for images.
    """

    images: Tensor | FileTensor
    labels: Tensor | FileTensor
    classes: tuple[str, ...]
    index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    boxes: Tensor | None = None
    masks: Tensor | None = None
    objectness: Tensor | None = None
    posterior: Tensor | None = None
    stream: Tensor | None = None
    void: int | None = None
    context: Tensor | None = None
    background: tuple[int, ...] = ()
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if self.vocabulary is not None:
            self._check_tokens(self.vocabulary)
        elif self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 (N, C, H, W), got {self.images.dtype} "
                f"{tuple(self.images.shape)}. Convert with (x * 255).round().to(torch.uint8)."
            )
        if not len(self.index) and len(self.images):
            object.__setattr__(self, "index", torch.arange(len(self.images)))
        for name in ("labels", "index", *_OPTIONAL):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.images):
                raise ValueError(f"{name} has {len(value)} entries for {len(self.images)} images")
        self._check_shapes()
        self._check_posterior()
        if isinstance(self.labels, Tensor):  # files say what is wrong when they are read
            check_class_indices("labels", self.labels, self.num_classes, ignore_index=self.void)

    def _check_tokens(self, vocabulary: Vocabulary) -> None:
        if self.images.dtype != torch.int32 or self.images.ndim != 2:
            raise ValueError(
                f"tokens must be int32 (N, T), got {self.images.dtype} {tuple(self.images.shape)}; "
                "vocabulary.encode(texts) makes them"
            )
        check_class_indices("tokens", self.images[:], vocabulary.size)
        for name in _OF_PIXELS:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} are of images; a set with a vocabulary has none")

    def _check_shapes(self) -> None:
        area = self.images.shape[2:]
        if self.vocabulary is not None and self.labels.ndim != 1:
            raise ValueError(f"labels of texts must be (N,), got {tuple(self.labels.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape[1:] not in ((), area):
            raise ValueError(
                f"labels must be int64 (N,) or (N, {area[0]}, {area[1]}), "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if self.boxes is not None and (self.boxes.ndim != 3 or self.boxes.shape[2] != 4):
            raise ValueError(f"boxes must be (N, B, 4), got {tuple(self.boxes.shape)}")
        if self.masks is not None and self.masks.shape[1:] != area:
            raise ValueError(
                f"masks must be (N, {area[0]}, {area[1]}), got {tuple(self.masks.shape)}"
            )

    def _check_posterior(self) -> None:
        """Here and not where calibration is measured against it, which is after the training."""
        if self.posterior is None:
            return
        expected = (len(self.images), self.num_classes)
        if self.posterior.shape != expected:
            raise ValueError(
                f"posterior must be {expected} (one probability for each class), "
                f"got {tuple(self.posterior.shape)}"
            )
        bad = ~((self.posterior >= 0).all(1) & ((self.posterior.sum(1) - 1).abs() < 1e-3))
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                "posterior must hold probabilities that sum to one over the classes, "
                f"got {self.posterior[first].tolist()} for sample {first}"
            )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def is_labelled(self) -> bool:
        """Whether the classes of the images are known."""
        return self.void != UNLABELLED

    @property
    def is_file_backed(self) -> bool:
        """Whether images or label maps are decoded when they are asked for."""
        return isinstance(self.images, FileTensor) or isinstance(self.labels, FileTensor)

    @property
    def lengths(self) -> Tensor | None:
        """int64, (N,), tokens of each text without padding; None for images, all of one size."""
        return None if self.vocabulary is None else (self.images[:] != PADDING).sum(1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> Sample:
        return self.batch(position)

    def batch(self, positions: Tensor | int) -> Sample:
        """The samples at `positions` as one dict of tensors."""
        return {"image": self.images[positions], **self._beside_image(positions)}

    def batch_to_cut(self, positions: Tensor) -> Sample:
        """As `batch`, but where images are files, `image` is `Originals` to cut crops from.

        Crops may show all of a file where nothing is drawn on the image. Boxes, masks and label
        maps are known for what the set's image shows, and so are the crops.
        """
        if not isinstance(self.images, FileTensor):
            return self.batch(positions)
        is_plain = self.boxes is None and self.masks is None and self.labels.ndim == 1
        opened = self.images.originals(positions, whole=is_plain)
        if opened is None:
            return self.batch(positions)
        return {"image": cast(Tensor, opened), **self._beside_image(positions)}

    def _beside_image(self, positions: Tensor | int) -> Sample:
        sample = {
            "label": self.labels[positions],
            "index": self.index[positions],
        }
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                sample[name] = value[positions]
        return sample

    def subset(self, positions: Tensor) -> ArrayDataset:
        """The same set restricted to `positions`; `index` keeps pointing into the source."""
        chosen: dict[str, Any] = {
            name: chosen_rows(getattr(self, name), positions)
            for name in ("images", "labels", "index", *_OPTIONAL)
        }
        return dataclasses.replace(self, **chosen)


def chosen_rows(values: Any, positions: Tensor) -> Any:
    """Some rows of a tensor or of files, which are not decoded; None stays None."""
    if values is None:
        return None
    return values.select(positions) if isinstance(values, FileTensor) else values[positions]


@dataclass(frozen=True)
class DataSplits:
    """Train, validation and test sets of one source.

    `skipped` is what was left out of them because it can't be decoded: file to reason.
    """

    train: ArrayDataset
    validation: ArrayDataset
    test: ArrayDataset
    skipped: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes
