"""Sets in `.npz` files, read without pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato._core.files import open_arrays
from sfumato.data.dataset import UNLABELLED, ArrayDataset, DataSplits
from sfumato.data.splits import (
    Shared,
    as_test_set,
    check_same_shape,
    check_test_only,
    limited_positions,
    source,
)

Arrays = dict[str, npt.NDArray[np.generic]]
_READ = ("images", "labels", "classes", "index", "boxes", "masks", "objectness", "posterior")


@source("limit_train", "limit_test", "seed")
def load_npz(
    shared: Shared,
    *,
    test: str | Path,
    train: str | Path | None = None,
    validation: float | int | str | Path = 0.1,
) -> DataSplits:
    """Splits from one `.npz` file for training and one for testing.

    A file holds `images` (uint8, (N, H, W, 3) or (N, H, W) for grey) and `labels` (integers, (N,)),
    and may hold `classes` (names), `index` (positions in the source), `boxes` ((N, 4) or (N, B, 4),
    x1, y1, x2, y2 in pixels), `masks` ((N, H, W)), `objectness` ((N,)) and `posterior` ((N, K)).
    Without `classes` they are named by number.

    Without `train` it is a test set only, for `evaluate.also`; its file may have no `labels`.

    Args:
        test: the test file.
        train: the training file.
        validation: share or count of training samples, stratified; or a file of its own.
    """
    if train is None:
        named = validation if isinstance(validation, str | Path) else None
        check_test_only(test, validation=named, limit_train=shared.limit_train)
        tested = _read_test(Path(test).expanduser())
        labels = tested.labels if tested.is_labelled else torch.zeros_like(tested.labels[:])
        kept = limited_positions(labels, limit_test=shared.limit_test, seed=shared.seed)
        return as_test_set(tested.subset(kept))
    files = [train, test, *([validation] if isinstance(validation, str | Path) else [])]
    paths = [Path(each).expanduser() for each in files]
    contents = [_read(path) for path in paths]
    classes = _class_names(paths, contents)
    sets = [_dataset(path, arrays, classes) for path, arrays in zip(paths, contents, strict=True)]
    check_same_shape(dict(zip(paths, sets, strict=True)))
    held_out = sets[2] if isinstance(validation, str | Path) else validation
    return shared.with_test(*sets[:2], validation=held_out)


def read_npz(path: str | Path) -> ArrayDataset:
    """One `.npz` file as a set; see `load_npz` for what it holds."""
    path = Path(path).expanduser()
    arrays = _read(path)
    return _dataset(path, arrays, _class_names([path], [arrays]))


def _read_test(path: Path) -> ArrayDataset:
    arrays = _read(path, labelled=False)
    if "labels" in arrays:
        return _dataset(path, arrays, _class_names([path], [arrays]))
    labels = np.full(len(arrays["images"]), UNLABELLED)
    return _dataset(path, {**arrays, "labels": labels}, (), void=UNLABELLED)


def _read(path: Path, *, labelled: bool = True) -> Arrays:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected an .npz with images and labels")
    try:
        with open_arrays(path, most=None) as archive:
            names = archive.files
            arrays = {name: archive[name] for name in _READ if name in names}
    except (ValueError, OSError, EOFError) as error:
        hint = (
            " Save classes as strings and arrays with one dtype." if "Object" in str(error) else ""
        )
        raise ValueError(f"{path}: not readable as .npz without pickle: {error}.{hint}") from error
    for name in ("images", "labels") if labelled else ("images",):
        if name not in arrays:
            raise ValueError(f"{path}: needs the array {name!r}, has {sorted(names)}")
    labels = arrays.get("labels", np.zeros(0, dtype=np.int64))
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise TypeError(f"{path}: labels must be integers (N,), got {labels.dtype} {labels.shape}")
    return arrays


def _class_names(paths: list[Path], contents: list[Arrays]) -> tuple[str, ...]:
    """The names that the files agree on, or numbers if none has any."""
    named: dict[Path, tuple[str, ...]] = {}
    for path, arrays in zip(paths, contents, strict=True):
        if "classes" in arrays:
            if arrays["classes"].dtype.kind != "U" or arrays["classes"].ndim != 1:
                raise TypeError(f"{path}: classes must be a list of strings")
            named[path] = tuple(str(name) for name in arrays["classes"])
    if not named:
        highest = max(int(arrays["labels"].max(initial=0)) for arrays in contents)
        return tuple(str(number) for number in range(highest + 1))
    first, names = next(iter(named.items()))
    for path, others in named.items():
        if others != names:
            raise ValueError(f"{path}: classes {others} differ from {names} in {first}")
    return names


def _dataset(
    path: Path, arrays: Arrays, classes: tuple[str, ...], *, void: int | None = None
) -> ArrayDataset:
    try:
        index = _tensor(arrays, "index", torch.int64)
        boxes = _tensor(arrays, "boxes", torch.float32)
        return ArrayDataset(
            _images(arrays["images"]),
            torch.from_numpy(arrays["labels"].astype(np.int64)),
            classes,
            index=torch.arange(len(arrays["images"])) if index is None else index,
            boxes=boxes[:, None] if boxes is not None and boxes.ndim == 2 else boxes,
            masks=_tensor(arrays, "masks", torch.bool),
            objectness=_tensor(arrays, "objectness", torch.float32),
            posterior=_tensor(arrays, "posterior", torch.float32),
            void=void,
        )
    except (TypeError, ValueError) as error:  # of a check, which does not know the file
        raise type(error)(f"{path}: {error}") from error


def _images(images: npt.NDArray[np.generic]) -> Tensor:
    """As (N, C, H, W), a view of the file's own channels-last memory."""
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 (N, H, W, 3), or (N, H, W) for grey, got {images.dtype} "
            f"{images.shape}. Channels go last: images.transpose(0, 2, 3, 1)."
        )
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def _tensor(arrays: Arrays, name: str, dtype: torch.dtype) -> Tensor | None:
    return torch.from_numpy(arrays[name]).to(dtype) if name in arrays else None
