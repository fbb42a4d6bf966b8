"""The one form in which samples travel, and how they become what a network takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sfumato._core.checks import check_class_indices, check_integer, check_number
from sfumato._core.statistics import spread_evenly
from sfumato._core.tokens import PADDING
from sfumato.augment.protocol import Sample
from sfumato.data.files import FileTensor
from sfumato.data.text.vocabulary import Vocabulary

_FILES = 4096
_AT_A_TIME = 256


def channel_statistics(images: Tensor | FileTensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the [0, 1] scale.

    Exact, from counts of the 256 grey levels. A constant channel has standard deviation 1, so that
    dividing by it is safe. Of more than 4,096 files, 4,096 that are spread evenly are looked at.

    Example:
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> channel_statistics(images)
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for counts in _grey_levels(images):
        share = counts / counts.sum()
        mean = (share * levels).sum()
        variance = (share * (levels - mean).square()).sum()
        means.append(float(mean))
        deviations.append(float(variance.sqrt()) if variance > 0 else 1.0)
    return tuple(means), tuple(deviations)


def _grey_levels(images: Tensor | FileTensor) -> Tensor:
    if isinstance(images, FileTensor):
        chosen = images.select(spread_evenly(len(images), _FILES))
        none = torch.zeros(images.shape[1], 256, dtype=torch.float64)
        return sum(map(_grey_levels, chosen.split(_AT_A_TIME)), none)
    channels = images.unbind(1)
    counted = [torch.bincount(each.reshape(-1), minlength=256).double() for each in channels]
    return torch.stack(counted)


# The label of images whose class is not known, with `void` saying so.
UNLABELLED = -100
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
            # The class is frozen, and this default needs the number of images.
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
        # Here and not where calibration is measured against it, which is after the training.
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
        """True if the classes of the images are known."""
        return self.void != UNLABELLED

    @property
    def is_file_backed(self) -> bool:
        """True if images or segmentation masks are decoded when they are asked for."""
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
        return {"image": self.images[positions], **self._annotations(positions)}

    def batch_to_cut(self, positions: Tensor) -> Sample:
        """Like `batch`, but where images are files, `image` is `Originals` to cut crops from.

        Crops may show all of a file where nothing is drawn on the image. Boxes, masks and label
        maps are known for what the set's image shows, and so are the crops.
        """
        is_plain = self.boxes is None and self.masks is None and self.labels.ndim == 1
        if isinstance(self.images, FileTensor):
            opened = self.images.originals(positions, whole=is_plain)
            if opened is not None:
                return {"image": cast(Tensor, opened), **self._annotations(positions)}
        return self.batch(positions)

    def _annotations(self, positions: Tensor | int) -> Sample:
        sample = {"label": self.labels[positions], "index": self.index[positions]}
        given = {name: getattr(self, name) for name in _OPTIONAL}
        return sample | {name: each[positions] for name, each in given.items() if each is not None}

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


class Normalise(nn.Module):
    """Images with the mean and spread of each channel taken out: x * scale - shift.

    What it holds moves with a network but is no part of its weights.

    Example:
        >>> normalise = Normalise(1, mean=(0.5,), std=(0.25,))
        >>> normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item()
        2.0
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, channels: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        mean = (0.0,) * channels if mean is None else mean
        std = (1.0,) * channels if std is None else std
        for name, values, low in (("mean", mean, -math.inf), ("std", std, 0.0)):
            if len(values) != channels:
                raise ValueError(
                    f"{name} must have {channels} entries (channels), got {len(values)}"
                )
            for value in values:
                check_number(name, value, low=low, open_low=True)
        # In float64 and rounded once, so that no processor finds other factors.
        scale = [1 / (255 * spread) for spread in std]
        shift = [center / spread for center, spread in zip(mean, std, strict=True)]
        for name, values in (("scale", scale), ("shift", shift)):
            each = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, each, persistent=False)

    def forward(
        self, images: Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        """The images as a network takes them."""
        channels = len(self.scale)
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"images must be (N, {channels}, H, W), got {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            floats = images.to(self.scale.dtype, memory_format=memory_format)
            return floats.mul_(self.scale).sub_(self.shift)
        if not images.is_floating_point():
            raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
        return images.to(memory_format=memory_format) * (255 * self.scale) - self.shift


Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class CutPadding(nn.Module):
    """Tokens as int64 for an embedding, without the columns that are padding in every row.

    Example:
        >>> CutPadding()(torch.tensor([[5, 0, 0], [7, 2, 0]], dtype=torch.int32)).tolist()
        [[5, 0], [7, 2]]
    """

    def forward(
        self, tokens: Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        """The tokens as a network takes them; `memory_format` is one of images and changes none."""
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ValueError(
                f"tokens must be integers (N, T), got {tokens.dtype} {tuple(tokens.shape)}"
            )
        used = int((tokens != PADDING).any(0).sum())
        return tokens[:, : max(1, used)].long()


def preparation(
    vocabulary: Vocabulary | None,
    channels: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> nn.Module:
    """Build what prepares a batch for the network: tokens are cut, images are standardised."""
    return CutPadding() if vocabulary is not None else Normalise(channels, mean, std)


def image_shape(dataset: ArrayDataset) -> tuple[int, tuple[int, int]]:
    """Channels, and height and width, of a set's images; zeros of texts, which have none."""
    if dataset.vocabulary is not None:
        return 0, (0, 0)
    channels, height, width = dataset.images.shape[1:]
    return channels, (height, width)


def input_statistics(train: ArrayDataset) -> Statistics:
    """Mean and spread of each channel of images; nothing of texts, whose tokens stay numbers."""
    return ((), ()) if train.vocabulary is not None else channel_statistics(train.images)


def check_global_batch(batch_size: int, world_size: int) -> None:
    if batch_size % world_size:
        raise ValueError(
            f"batch_size is the global batch and must be a multiple of world_size, "
            f"got batch_size={batch_size}, world_size={world_size}"
        )


def median_frequency_weights(
    labels: Tensor | FileTensor, num_classes: int, *, void: int | None = None
) -> Tensor:
    r"""Weights that let rare classes count as much as common ones.

        w_c = median(f) / f_c,   f_c = pixels of class c / pixels of all images that show c

    Void pixels count for neither. A class that never occurs gets weight 1: nothing is known.

    Args:
        labels: (N, H, W) segmentation masks of the training set.
        num_classes: number of classes C.
        void: label of pixels that count for nothing.

    Example:
        >>> labels = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [0, 0]]])
        >>> median_frequency_weights(labels, 2)  # f = 7/8 and 1/4, their median 9/16
        tensor([0.6429, 2.2500])

    Reference:
        Eigen and Fergus, ICCV 2015, section 6.3.2; for CamVid in SegNet,
        Badrinarayanan et al. 2017.
    """
    check_integer("num_classes", num_classes, low=1)
    if isinstance(labels, Tensor):
        check_class_indices("labels", labels, num_classes, ignore_index=void)
    if labels.ndim != 3:
        raise ValueError(f"labels must be segmentation masks (N, H, W), got {tuple(labels.shape)}")
    own = torch.zeros(num_classes, dtype=torch.float64)
    shown = torch.zeros(num_classes, dtype=torch.float64)
    for image in labels:
        known = image if void is None else image[image != void]
        counts = torch.bincount(known.flatten(), minlength=num_classes).double()
        own += counts
        shown[counts > 0] += counts.sum()
    seen = own > 0
    frequency = own[seen] / shown[seen]
    weights = torch.ones(num_classes, dtype=torch.float64)
    weights[seen] = torch.quantile(frequency, 0.5) / frequency
    return weights.float()
