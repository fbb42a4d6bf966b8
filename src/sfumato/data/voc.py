"""PASCAL VOC 2012 semantic segmentation, through torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from sfumato._core.checks import check_choice, check_integer
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import ReadImage, ReadLabels
from sfumato.data.fetched import from_torchvision
from sfumato.data.file_tensor import FileTensor
from sfumato.data.holding import InMemory, OnBadImage, held
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
    train_list: Literal["train", "trainaug"] | None = None,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
    in_memory: InMemory = None,
    on_bad_image: OnBadImage = None,
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
        train_list: "train" (None is the same), or "trainaug": the 10,582 images with the labels of
            SBD, as `ImageSets/Segmentation/trainaug.txt` and `SegmentationClassAug` beside VOC's
            own `SegmentationClass`, the layout in which they are passed on.
        validation: share or count of training images.
        limit_train: size of the training set. None keeps all.
        seed: of the split.
        in_memory: keep decoded images and label maps in memory; without it files are decoded when
            needed. "auto" where they fit into 2 GB, which those of the original do at 256 pixels.
        on_bad_image: "error", or "skip" to leave out files that can't be decoded, as `folder`.

    Raises:
        FileNotFoundError: the files are not in `root`, and `download` is off or fails, or those of
            SBD are not there, which nothing downloads.
    """
    check_integer("size", size, low=16)
    if train_list is not None:
        check_choice("train_list", train_list, ("train", "trainaug"))
    folder = Path(root).expanduser()
    own, tested = (_files(folder, part, download) for part in ("train", "val"))
    learnt = _augmented_files(folder) if train_list == "trainaug" else own
    train, test = (_part(*files, size, whole=bool(whole)) for files in (learnt, tested))
    parts = with_test(train, test, validation=validation, limit_train=limit_train, seed=seed)
    return held(parts, in_memory, on_bad_image)


def _files(root: Path, part: str, download: bool) -> tuple[list[Path], list[Path]]:
    """Images and label maps of a part of VOC."""
    from torchvision.datasets import VOCSegmentation

    source = from_torchvision(
        VOCSegmentation,
        root,
        download=download,
        name="PASCAL VOC 2012",
        holds="the folder that holds VOCdevkit",
        year="2012",
        image_set=part,
    )
    return [Path(each) for each in source.images], [Path(each) for each in source.masks]


def _augmented_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Images and label maps of the list of SBD."""
    folder = root / "VOCdevkit" / "VOC2012"
    listed, labels = folder / "ImageSets/Segmentation/trainaug.txt", folder / "SegmentationClassAug"
    for path in (listed, labels):
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: not there; train_list: trainaug needs the list and the label maps of "
                "SBD in VOC's layout, which torchvision does not download"
            )
    names = [Path(line.split()[0]).stem for line in listed.read_text().splitlines() if line.strip()]
    files = (
        [folder / "JPEGImages" / f"{name}.jpg" for name in names],
        [labels / f"{name}.png" for name in names],
    )
    missing = next((path for path in (*files[0], *files[1]) if not path.is_file()), None)
    if not names or missing is not None:
        raise FileNotFoundError(f"{listed}: names no image, or {missing}, which is not there")
    return files


def _part(images: Sequence[Path], masks: Sequence[Path], size: int, *, whole: bool) -> ArrayDataset:
    return ArrayDataset(
        FileTensor.of(images, ReadImage(size, padded=whole, draft=False)),
        FileTensor.of(
            masks,
            ReadLabels(len(VOC_CLASSES), _FILE_VOID, VOID, size, padded=whole),
            dtype=torch.int64,
        ),
        VOC_CLASSES,
        void=VOID,
        background=(0,),
    )
