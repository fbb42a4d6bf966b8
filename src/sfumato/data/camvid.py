"""CamVid road scenes in the layout of SegNet: 11 classes, and void pixels that don't count."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.data.archives import unpacked
from sfumato.data.dataset import ArrayDataset, DataSplits

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

    Raises:
        FileNotFoundError: nothing there, or not this layout.
        ValueError: an archive or image that can't be read, an image without labels or of another
            size, or labels outside of 0 to 11.
    """
    for side in size or ():
        check_integer("size", side, low=1)
    path = Path(root).expanduser()
    if path.is_dir():
        files = _read_files(path)
    elif path.is_file():
        with unpacked(path) as folder:
            files = _read_files(folder)
    else:
        raise FileNotFoundError(f"root={str(root)!r}: no such folder or tar file of CamVid")
    train, validation, test = (_part(files, part, root, size) for part in _PARTS)
    if limit_train is not None:
        check_integer("limit_train", limit_train, low=1, high=len(train))
        train = train.subset(torch.arange(limit_train) * len(train) // limit_train)
    return DataSplits(train, validation, test)


def _read_files(root: Path) -> dict[str, bytes]:
    """Bytes of every PNG by `folder/name`."""
    found = {}
    for path in sorted(root.rglob("*.png")):
        try:
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: can't be read ({error.strerror}); replace it") from error
    return found


def _part(
    files: Mapping[str, bytes], part: str, root: str | Path, size: tuple[int, int] | None
) -> ArrayDataset:
    names = sorted(key.split("/")[1] for key in files if key.startswith(f"{part}/"))
    if not names:
        raise FileNotFoundError(
            f"root={str(root)!r} has no images in {part!r}; CamVid needs the folders train, val, "
            "test and trainannot, valannot, testannot of PNG files"
        )
    missing = [name for name in names if f"{part}annot/{name}" not in files]
    if missing:
        raise ValueError(f"{part}annot/{missing[0]}: no labels for this image")
    images = _decode_all(files, part, names, "RGB", root, size)
    labels = _decode_all(files, f"{part}annot", names, "L", root, size)
    if labels.max() > _FILE_VOID:
        raise ValueError(f"{part}annot: labels must be 0 to {_FILE_VOID}, got {labels.max()}")
    target = torch.from_numpy(labels).long()
    return ArrayDataset(
        torch.from_numpy(images).permute(0, 3, 1, 2),
        target.masked_fill_(target == _FILE_VOID, VOID),
        CAMVID_CLASSES,
        void=VOID,
        stream=stream_numbers([Path(name).stem for name in names]),
        background=_BACKGROUND,
    )


def _decode_all(
    files: Mapping[str, bytes],
    folder: str,
    names: Sequence[str],
    mode: str,
    root: str | Path,
    size: tuple[int, int] | None,
) -> np.ndarray:
    way = Image.Resampling.BILINEAR if mode == "RGB" else Image.Resampling.NEAREST
    decoded: list[np.ndarray] = []
    for name in names:
        try:
            with Image.open(io.BytesIO(files[f"{folder}/{name}"])) as image:
                # A palette's indices are the labels themselves.
                indexed = image.mode == "P" and mode == "L"
                found = image if indexed else image.convert(mode)
                pixels = np.asarray(found if size is None else found.resize(size[::-1], way))
        except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise ValueError(
                f"{root}: {folder}/{name} is no readable image ({error}); fetch it again"
            ) from error
        if decoded and pixels.shape != decoded[0].shape:
            raise ValueError(
                f"{folder}/{name}: {pixels.shape[1]}x{pixels.shape[0]} pixels, but {names[0]} has "
                f"{decoded[0].shape[1]}x{decoded[0].shape[0]}; all need one size"
            )
        decoded.append(pixels)
    return np.stack(decoded)


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
