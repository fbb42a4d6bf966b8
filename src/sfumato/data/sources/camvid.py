"""CamVid road scenes in the layout of SegNet: 11 classes, and void pixels that don't count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.statistics import spread_evenly
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import File, FileTensor, Picture, ReadImage, ReadLabels
from sfumato.data.splits import Shared, source

CAMVID_CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "cyclist",
)
VOID = -100

_BACKGROUND = tuple(
    CAMVID_CLASSES.index(name) for name in ("sky", "building", "road", "pavement", "tree", "fence")
)

_FILE_VOID = len(CAMVID_CLASSES)
_PARTS = ("train", "val", "test")
_FRAME = re.compile(r"^(?P<sequence>.*?)_f?(?P<number>\d+)$")


@source("in_memory", "on_bad_image")
def load_camvid(
    shared: Shared,
    *,
    root: str | Path,
    limit_train: int | None = None,
    size: tuple[int, int] | None = None,
    unlabelled: bool | None = None,
) -> DataSplits:
    """Train, validation and test sets of CamVid, as published (367 / 101 / 233 frames).

    Frames stay in the order of their video: `stream` numbers the stretches of a sequence
    without a gap. The common 1 Hz subset is too slow for temporal smoothing to help; it may
    be tried all the same. The papers don't say what CamVid's background is; here it is
    what has no count (sky, building, road, pavement, tree, fence), and the foreground pole, sign,
    car, pedestrian and cyclist. A video with a bad frame left out goes on as another one.

    Args:
        root: a .tar file, or the folder that holds `train`, `trainannot`, `val`, ...
        limit_train: keep this many training frames, evenly spread. None keeps all.
        size: height and width to which frames (bilinear) and labels (nearest pixel) are scaled.
            None keeps their own.
        unlabelled: test images without labels, frames of the video between the labelled ones, are
            kept with void labels: temporal smoothing sees them, metrics don't count them. Without
            it an image without labels is an error. Training and validation leave them out.
    """
    for side in size or ():
        check_integer("size", side, low=1)
    if not Path(root).expanduser().exists():
        raise FileNotFoundError(f"root={str(root)!r}: no such folder or tar file of CamVid")

    def read(folder: Path) -> DataSplits:
        train, *others = (_part(folder, part, size, bool(unlabelled)) for part in _PARTS)
        if limit_train is not None:
            check_integer("limit_train", limit_train, low=1, high=len(train))
            train = train.subset(spread_evenly(len(train), limit_train))
        return DataSplits(train, *others)

    return shared.of_archive(root, read)


def _part(root: Path, part: str, size: tuple[int, int] | None, unlabelled: bool) -> ArrayDataset:
    found = {path.name: path for path in _pictures(root, part)}
    if not found:
        raise FileNotFoundError(
            f"root={str(root)!r} has no images in {part!r}; CamVid needs the folders train, val, "
            "test and trainannot, valannot, testannot of PNG files"
        )
    labels: dict[str, File] = {path.name: path for path in _pictures(root, f"{part}annot")}
    missing = [name for name in found if name not in labels]
    if missing and not (unlabelled and len(missing) < len(found)):
        raise ValueError(
            f"{part}annot/{missing[0]}: no labels for this image; unlabelled: true takes images "
            "without labels for frames between the others"
        )
    # Frames without labels neither train nor choose an epoch.
    if part != "test":
        found = {name: path for name, path in found.items() if name in labels}
    images = FileTensor.of(list(found.values()), ReadImage(stretched=size))
    if part == "test":
        labels |= {name: _void_labels(name, images.row_shape[1:]) for name in missing}
    return ArrayDataset(
        images,
        FileTensor.of(
            [labels[name] for name in found],
            ReadLabels(len(CAMVID_CLASSES), _FILE_VOID, VOID, stretched=size),
        ),
        CAMVID_CLASSES,
        void=VOID,
        stream=stream_numbers([Path(name).stem for name in found]),
        background=_BACKGROUND,
    )


def _void_labels(name: str, area: tuple[int, ...]) -> Picture:
    """The segmentation mask of a frame without labels: void, and as large as the images."""
    encoded = BytesIO()
    Image.new("L", (area[1], area[0]), _FILE_VOID).save(encoded, format="PNG")
    return Picture(f"labels of {name}", encoded.getvalue())


def _pictures(root: Path, folder: str) -> list[Path]:
    found = [path for path in root.rglob("*.png") if path.parent.name == folder]
    return sorted(found, key=lambda path: path.name)


def stream_numbers(stems: Sequence[str]) -> Tensor:
    """A number for each frame (N,), the same along a sequence until frames are missing.

    The name of a frame is its sequence and its number (`0001TP_008550`, `Seq05VD_f00840`); a gap
    is a step longer than the usual one of the sequence.
    """
    frames = []
    for stem in stems:
        found = _FRAME.match(stem)
        frames.append((found["sequence"], int(found["number"])) if found else (stem, 0))
    usual: dict[str, float] = {}
    for name in {name for name, _ in frames}:
        steps = np.diff([number for other, number in frames if other == name])
        # Sequences were filmed at different rates: each has a usual step of its own.
        usual[name] = float(np.median(steps)) if len(steps) else 0.0
    begins = [0] * len(frames)
    for place, (before, after) in enumerate(pairwise(frames), 1):
        is_next = after[0] == before[0] and after[1] - before[1] <= usual[after[0]]
        begins[place] = int(not is_next)
    return torch.tensor(begins, dtype=torch.int64).cumsum(0)
