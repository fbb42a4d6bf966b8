"""PASCAL VOC 2012 semantic segmentation, through torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.files import is_file, read_text
from sfumato.data.archives import from_torchvision
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import FileTensor, ReadImage, ReadLabels
from sfumato.data.splits import Shared, source

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


@source("limit_train", "seed", "in_memory", "on_bad_image")
def load_voc_segmentation(
    shared: Shared,
    *,
    root: str | Path,
    download: bool = False,
    size: int = 256,
    whole: bool | None = None,
    train_list: Literal["train", "trainaug"] | None = None,
    validation: float | int | Literal["val"] = 0.1,
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
        validation: share or count of training images, or "val" for VOC's own: all of the training
            list trains, and the images that choose the epoch are those that test. MbLS and ACLS
            do so; numbers are then somewhat too good.
    """
    check_integer("size", size, low=16)
    if train_list is not None:
        check_choice("train_list", train_list, ("train", "trainaug"))
    folder = Path(root).expanduser()
    own, tested = (_files(folder, part, download) for part in ("train", "val"))
    learnt = _augmented_files(folder) if train_list == "trainaug" else own
    train, test = (_part(*files, size, whole=bool(whole)) for files in (learnt, tested))
    if isinstance(validation, str):
        check_choice("validation", validation, ("val",))
    share = 0 if validation == "val" else validation
    parts = shared.with_test(train, test, validation=share)
    if validation == "val":
        parts = replace(parts, validation=parts.test)
    return shared.held(parts)


def _files(root: Path, part: str, download: bool) -> tuple[list[Path], list[Path]]:
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
    folder = root / "VOCdevkit" / "VOC2012"
    listed, labels = folder / "ImageSets/Segmentation/trainaug.txt", folder / "SegmentationClassAug"
    for path in (listed, labels):
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: not there; train_list: trainaug needs the list and the segmentation "
                "masks of SBD in VOC's layout, which torchvision does not download"
            )
    names = [Path(line.split()[0]).stem for line in read_text(listed).splitlines() if line.strip()]
    files = (
        [folder / "JPEGImages" / f"{name}.jpg" for name in names],
        [labels / f"{name}.png" for name in names],
    )
    missing = next((path for path in (*files[0], *files[1]) if not is_file(path)), None)
    if not names or missing is not None:
        raise FileNotFoundError(f"{listed}: names no image, or {missing}, which is not there")
    return files


def _part(images: Sequence[Path], masks: Sequence[Path], size: int, *, whole: bool) -> ArrayDataset:
    return ArrayDataset(
        FileTensor.of(images, ReadImage(size, padded=whole, draft=False)),
        FileTensor.of(masks, ReadLabels(len(VOC_CLASSES), _FILE_VOID, VOID, size, padded=whole)),
        VOC_CLASSES,
        void=VOID,
        background=(0,),
    )
