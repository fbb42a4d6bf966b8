"""CamVid road scenes in the layout of SegNet: 11 classes, and void pixels that don't count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.data.archives import unpacked
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import File, Picture, ReadImage, ReadLabels
from sfumato.data.file_tensor import FileTensor
from sfumato.data.holding import InMemory, OnBadImage, held, memory_of_archive, named_by_archive

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


def load_camvid(
    *,
    root: str | Path,
    limit_train: int | None = None,
    size: tuple[int, int] | None = None,
    in_memory: InMemory = None,
    unlabelled: bool | None = None,
    on_bad_image: OnBadImage = None,
) -> DataSplits:
    """Train, validation and test sets of CamVid, as published (367 / 101 / 233 frames).

    Frames stay in the order of their video: `stream` numbers the stretches of a sequence
    without a gap. The common 1 Hz subset is too slow for temporal smoothing to help; it may
    be tried all the same. The papers don't say what CamVid's background is; here it is
    what has no count (sky, building, road, pavement, tree, fence), and the foreground pole, sign,
    car, pedestrian and cyclist.

    Args:
        root: a .tar file, or the folder that holds `train`, `trainannot`, `val`, ...
        limit_train: keep this many training frames, evenly spread. None keeps all.
        size: height and width to which frames (bilinear) and labels (nearest pixel) are scaled.
            None keeps their own.
        in_memory: keep decoded frames and labels in memory; without it files are decoded when
            needed. "auto" where they fit into 2 GB, and always those of an archive.
        unlabelled: test images without labels, frames of the video between the labelled ones, are
            kept with void labels: temporal smoothing sees them, metrics don't count them. Without
            it an image without labels is an error. Training and validation leave them out.
        on_bad_image: "error", or "skip" to leave out frames that can't be decoded, or whose labels
            can't, as `folder`; a video with a frame left out goes on as another one.

    Raises:
        FileNotFoundError: nothing there, or not this layout.
        ValueError: an archive or image that can't be read, an image without labels or of another
            size, or labels outside of 0 to 11.
    """
    for side in size or ():
        check_integer("size", side, low=1)
    path = Path(root).expanduser()
    if path.is_dir():
        parts = _splits(path, limit_train, size, bool(unlabelled))
        return held(parts, in_memory, on_bad_image)
    if not path.is_file():
        raise FileNotFoundError(f"root={str(root)!r}: no such folder or tar file of CamVid")
    with unpacked(path) as folder:
        kept = memory_of_archive(path, in_memory)
        parts = _splits(folder, limit_train, size, bool(unlabelled))
        return named_by_archive(held(parts, kept, on_bad_image), folder, path)


def _splits(
    root: Path, limit_train: int | None, size: tuple[int, int] | None, unlabelled: bool
) -> DataSplits:
    train, validation, test = (_part(root, part, size, unlabelled) for part in _PARTS)
    if limit_train is not None:
        check_integer("limit_train", limit_train, low=1, high=len(train))
        train = train.subset(torch.arange(limit_train) * len(train) // limit_train)
    return DataSplits(train, validation, test)


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
            dtype=torch.int64,
        ),
        CAMVID_CLASSES,
        void=VOID,
        stream=stream_numbers([Path(name).stem for name in found]),
        background=_BACKGROUND,
    )


def _void_labels(name: str, area: tuple[int, ...]) -> Picture:
    """The label map of a frame without labels: void, and as large as the images."""
    encoded = BytesIO()
    Image.new("L", (area[1], area[0]), _FILE_VOID).save(encoded, format="PNG")
    return Picture(f"labels of {name}", encoded.getvalue())


def _pictures(root: Path, folder: str) -> list[Path]:
    """The PNG files of all folders of this name below `root`, sorted by name."""
    found = [path for path in root.rglob("*.png") if path.parent.name == folder]
    return sorted(found, key=lambda path: path.name)


def stream_numbers(stems: Sequence[str]) -> Tensor:
    """A number for each frame (N,), the same along a sequence until frames are missing.

    The name of a frame is its sequence and its number (`0001TP_008550`, `Seq05VD_f00840`); a gap
    is a step longer than the usual one of the sequence.

    Example:
        >>> stream_numbers(["a_0", "a_30", "a_60", "a_150", "a_180", "b_f1"]).tolist()
        [0, 0, 0, 1, 1, 2]
    """
    parsed = [_FRAME.match(stem) for stem in stems]
    names = [
        stem if found is None else found["sequence"]
        for stem, found in zip(stems, parsed, strict=True)
    ]
    numbers = [0 if found is None else int(found["number"]) for found in parsed]
    usual: dict[str, float] = {}
    for name in set(names):
        own = [n for n, other in zip(numbers, names, strict=True) if other == name]
        steps = np.diff(own)
        usual[name] = float(np.median(steps)) if len(steps) else 0.0
    stream, streams = 0, [0] if stems else []
    for before in range(len(stems) - 1):
        after = before + 1
        step = numbers[after] - numbers[before]
        if names[after] != names[before] or step > usual[names[after]]:
            stream += 1
        streams.append(stream)
    return torch.tensor(streams, dtype=torch.int64)
