"""PASCAL VOC 2012 semantic segmentation, through torchvision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from sfumato._core.checks import check_integer
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.split import with_test

VOC_CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "dining table",
    "dog",
    "horse",
    "motorbike",
    "person",
    "potted plant",
    "sheep",
    "sofa",
    "train",
    "tv monitor",
)
VOID = -100
_FILE_VOID = 255


def load_voc_segmentation(
    *,
    root: str | Path,
    download: bool = False,
    size: int = 256,
    whole: bool | None = None,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """PASCAL VOC 2012 segmentation: 20 classes and background, borders of objects void.

    The labels of the test images were never published, so VOC's `val` (1,449 images) is the test
    set here and validation comes from its `train` (1,464 images). Images are scaled to cover a
    square, bilinear, and its centre is taken; labels move along, by the nearest pixel. With `whole`
    nothing is cut off: the longer side becomes the square's, and black void pixels fill the rest,
    so that metrics are those of uncropped images.

    Args:
        root: the folder in which torchvision keeps `VOCdevkit`.
        download: fetch it (2 GB) if it is not there. Nothing is fetched without it.
        size: side of the square in pixels.
        whole: pad images to the square instead of cropping them.
        validation: share or count of training images.
        limit_train: size of the training set. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: the files are not in `root` and `download` is off.
    """
    check_integer("size", size, low=16)
    folder = Path(root).expanduser()
    fit = _pad if whole else _cover
    train, test = (_part(folder, part, download, size, fit) for part in ("train", "val"))
    return with_test(train, test, validation=validation, limit_train=limit_train, seed=seed)


Fit = Callable[[Any, int, Image.Resampling, int], np.ndarray]


def _part(root: Path, part: str, download: bool, size: int, fit: Fit) -> ArrayDataset:
    from torchvision.datasets import VOCSegmentation

    try:
        source = VOCSegmentation(str(root), year="2012", image_set=part, download=download)
    except RuntimeError as error:
        if download:
            raise
        raise FileNotFoundError(
            f"PASCAL VOC 2012 is not in root={str(root)!r} ({error}). Say download: true to fetch "
            "it there, or point root at the folder that holds VOCdevkit"
        ) from error
    images = np.empty((len(source), size, size, 3), dtype=np.uint8)
    labels = np.empty((len(source), size, size), dtype=np.uint8)
    for position in range(len(source)):
        image, mask = source[position]
        images[position] = fit(image.convert("RGB"), size, Image.Resampling.BILINEAR, 0)
        labels[position] = fit(mask, size, Image.Resampling.NEAREST, _FILE_VOID)
    target = torch.from_numpy(labels).long()
    return ArrayDataset(
        torch.from_numpy(images).permute(0, 3, 1, 2),
        target.masked_fill_(target == _FILE_VOID, VOID),
        VOC_CLASSES,
        void=VOID,
        background=(0,),
    )


def _cover(image: Any, size: int, method: Image.Resampling, _: int) -> np.ndarray:
    """The middle of an image that covers the square."""
    return np.asarray(ImageOps.fit(image, (size, size), method))


def _pad(image: Any, size: int, method: Image.Resampling, fill: int) -> np.ndarray:
    """The whole image in the square's upper left, the rest `fill`.

    By hand: Pillow's own padding colours label maps, which have a palette, by its entries.
    """
    longest = max(image.size)
    width, height = (max(1, round(side * size / longest)) for side in image.size)
    scaled = np.asarray(image.resize((width, height), method))
    padded = np.full((size, size, *scaled.shape[2:]), fill, dtype=np.uint8)
    padded[:height, :width] = scaled
    return padded
