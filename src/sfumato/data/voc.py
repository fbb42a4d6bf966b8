"""PASCAL VOC 2012 semantic segmentation, through torchvision."""

from __future__ import annotations

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
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """PASCAL VOC 2012 segmentation: 20 classes and background, borders of objects void.

    The labels of the test images were never published, so VOC's `val` (1,449 images) is the test
    set here and validation comes from its `train` (1,464 images). Images are scaled to cover a
    square, bilinear, and its centre is taken; labels move along, by the nearest pixel.

    Args:
        root: the folder in which torchvision keeps `VOCdevkit`.
        download: fetch it (2 GB) if it is not there. Nothing is fetched without it.
        size: side of the square in pixels.
        validation: share or count of training images.
        limit_train: size of the training set. None keeps all.
        seed: of the split.

    Raises:
        FileNotFoundError: the files are not in `root` and `download` is off.
    """
    check_integer("size", size, low=16)
    folder = Path(root).expanduser()
    train, test = (_part(folder, part, download, size) for part in ("train", "val"))
    return with_test(train, test, validation=validation, limit_train=limit_train, seed=seed)


def _part(root: Path, part: str, download: bool, size: int) -> ArrayDataset:
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
        images[position] = _fit(image.convert("RGB"), size, Image.Resampling.BILINEAR)
        labels[position] = _fit(mask, size, Image.Resampling.NEAREST)
    target = torch.from_numpy(labels).long()
    return ArrayDataset(
        torch.from_numpy(images).permute(0, 3, 1, 2),
        target.masked_fill_(target == _FILE_VOID, VOID),
        VOC_CLASSES,
        void=VOID,
        background=(0,),
    )


def _fit(image: Any, size: int, method: Image.Resampling) -> np.ndarray:
    return np.asarray(ImageOps.fit(image, (size, size), method))
