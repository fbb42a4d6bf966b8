"""Images with several labelled boxes each, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import check_class_indices, check_integer
from sfumato.data.dataset import check_global_batch

Target = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one image.

    Args:
        boxes: float32, (B, 4) as x1, y1, x2, y2 in the pixels of the image as given.
        labels: int64, (B,) class indices.
        areas: float32, (B,), as COCO counts them (of the mask), in the original's pixels.
        crowd: bool, (B,): a box around many objects, not trained on and not missed.
    """

    boxes: Tensor
    labels: Tensor
    areas: Tensor
    crowd: Tensor


@dataclass(frozen=True, eq=False)
class DetectionDataset:
    """Images of any size with their objects.

    Args:
        images: a sequence of uint8 (3, H, W) tensors, or one (N, 3, H, W) tensor; a sequence may
            read its files only when asked.
        objects: one entry for each image.
        classes: one name per class.
        scales: for each image, sides of the original over sides of the image as given. Detections
            are measured in the original's pixels, because COCO's small, medium and large count
            pixels.
    """

    images: Sequence[Tensor] | Tensor
    objects: Sequence[Objects]
    classes: tuple[str, ...]
    scales: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("objects", "scales"):
            count = len(getattr(self, name))
            if count != len(self.images):
                raise ValueError(f"{name} has {count} entries for {len(self.images)} images")
        for number, each in enumerate(self.objects):
            if each.boxes.shape != (len(each.labels), 4):
                raise ValueError(
                    f"boxes of image {number} must be ({len(each.labels)}, 4), "
                    f"got {tuple(each.boxes.shape)}"
                )
            check_class_indices(f"labels of image {number}", each.labels, len(self.classes))
            if bool((each.boxes[:, 2:] <= each.boxes[:, :2]).any()):
                raise ValueError(f"image {number} has a box without area: {each.boxes.tolist()}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_objects(self) -> int:
        return sum(int((~each.crowd).sum()) for each in self.objects)


@dataclass(frozen=True)
class DetectionSplits:
    """Train, validation and test sets of one source; `skipped` as in `DataSplits`."""

    train: DetectionDataset
    validation: DetectionDataset
    test: DetectionDataset
    skipped: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes


@dataclass(frozen=True)
class DetectionBatch:
    """Images in [0, 1], what is in them, and where they stand in their set."""

    images: list[Tensor]
    objects: list[Objects]
    index: list[int]


@dataclass(eq=False, repr=False)
class DetectionLoader:
    """Batches of images with their objects; order and flips are pure functions of (seed, epoch).

    `batch_size` is the batch over all processes, of which each takes its slice.

    Args:
        dataset: the samples.
        batch_size: images per step over all ranks; a multiple of `world_size`.
        shuffle: a new order in every epoch; the last batch is left out where it is not full.
        flip: mirror each image with probability 1/2.
        seed: of order and flips.
        rank: this process.
        world_size: number of processes.
        device: where batches go.
    """

    dataset: DetectionDataset
    batch_size: int
    _: KW_ONLY
    shuffle: bool = False
    flip: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    device: torch.device | str = "cpu"
    epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, low=1)
        check_global_batch(self.batch_size, self.world_size)
        if self.world_size == 1:
            self.batch_size = min(self.batch_size, len(self.dataset))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        total = len(self.dataset)
        return total // self.batch_size if self.shuffle else -(-total // self.batch_size)

    def __iter__(self) -> Iterator[DetectionBatch]:
        total = len(self.dataset)
        draw = np.random.default_rng((self.seed, self.epoch))
        order = draw.permutation(total) if self.shuffle else np.arange(total)
        flips = draw.random(total) < 0.5
        share = self.batch_size // self.world_size
        for step in range(len(self)):
            start = step * self.batch_size + self.rank * share
            chosen = order[start : start + share].tolist()
            pairs = [self._sample(each, self.flip and bool(flips[each])) for each in chosen]
            yield DetectionBatch([p[0] for p in pairs], [p[1] for p in pairs], chosen)

    def _sample(self, position: int, mirrored: bool) -> tuple[Tensor, Objects]:
        image = self.dataset.images[position].to(self.device).float() / 255
        objects = self.dataset.objects[position]
        return flip_objects(image, objects) if mirrored else (image, objects)


def flip_objects(image: Tensor, objects: Objects) -> tuple[Tensor, Objects]:
    left, top, right, bottom = objects.boxes.unbind(1)
    width = image.shape[2]
    boxes = torch.stack([width - right, top, width - left, bottom], 1)
    return image.flip(2), Objects(boxes, objects.labels, objects.areas, objects.crowd)
