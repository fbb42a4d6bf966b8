"""Splits of a set: divided by a seed, without unreadable files, in memory or in files."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato._core.files import (
    FREE_BYTES,
    MOST_RATIO,
    UnreadableFileError,
    read_json,
    write_json,
)
from sfumato._core.text import progress_bar
from sfumato.data.archives import unpacked
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.files import File, FileTensor, ReadImage, image_size
from sfumato.data.index import WORTH_KEEPING, cache_folder, shows_progress


def stratified_order(labels: Tensor | FileTensor, *, seed: int) -> Tensor:
    """A random order in which every stretch holds the classes in their overall proportion.

    The r-th sample of a class with n members gets the key (r + 1/2) / n, and the order sorts by
    it. Parts cut from one order are disjoint and stratified, and a smaller part is contained in a
    larger one, so that results for growing training sets are comparable.

    Args:
        labels: (N,) class indices; segmentation masks (N, H, W) are ordered at random.
        seed: of the order.

    Example:
        >>> labels = torch.tensor([0] * 8 + [1] * 4)
        >>> labels[stratified_order(labels, seed=0)[:6]].bincount().tolist()
        [4, 2]
    """
    check_integer("seed", seed, low=0)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if not isinstance(labels, Tensor) or labels.ndim > 1 or not len(labels):
        return shuffled
    classes = labels[shuffled]
    counts = classes.bincount()
    by_class = classes.argsort(stable=True)
    place = torch.empty_like(by_class)
    place[by_class] = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[classes[by_class]]
    # In float64, since float32 keys of large classes would tie.
    key = (place + 0.5).double() / counts[classes]
    return shuffled[key.argsort(stable=True)]


def amount(name: str, value: float | int, total: int) -> int:
    """A share in [0, 1) of `total`, or a count below `total`, as a count."""
    count = value
    if isinstance(value, float):
        check_number(name, value, low=0.0)
        if value >= 1:
            raise ValueError(f"{name} must be a share below 1 or an integer count, got {value}")
        count = round(value * total)
    check_integer(name, count, low=0)
    if count >= total > 0:
        raise ValueError(f"{name}={value} leaves nothing of {total} samples")
    return int(count)


class SplitPositions(NamedTuple):
    """Positions in a source of what is trained, validated and tested on, each in order."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split_positions(
    labels: Tensor | FileTensor,
    *,
    num_classes: int,
    test: float | int = 0,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> SplitPositions:
    """Divide into positions: for samples whose form depends on what is trained on."""
    order = stratified_order(labels, seed=seed)
    # All three are cut from one order: they are disjoint, and a limit changes no other part.
    num_test = amount("test", test, len(order))
    rest = order[num_test:]
    num_validation = amount("validation", validation, len(rest))
    train = rest[num_validation:]
    if limit_train is not None:
        check_integer("limit_train", limit_train, low=num_classes, high=len(train))
        train = train[:limit_train]
    parts = (train, rest[:num_validation], order[:num_test])
    return SplitPositions(*(part.sort().values for part in parts))


def limited_positions(labels: Tensor | FileTensor, *, limit_test: int | None, seed: int) -> Tensor:
    """Positions of at most `limit_test` samples, stratified, in order; None keeps all."""
    if limit_test is None:
        return torch.arange(len(labels))
    check_integer("limit_test", limit_test, low=1, high=len(labels))
    return stratified_order(labels, seed=seed)[:limit_test].sort().values


def divide(
    dataset: ArrayDataset,
    *,
    test: float | int = 0,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    seed: int = 0,
) -> DataSplits:
    """Train, validation and test parts of one set; each keeps the order of the source.

    Args:
        dataset: what is divided.
        test: share of all samples, or a count.
        validation: share of what remains, or a count.
        limit_train: size of the training set, or None for all that is left. It does not change
            the other two parts.
        seed: of the split.
    """
    cut = partial(split_positions, dataset.labels, num_classes=dataset.num_classes)
    parts = cut(test=test, validation=validation, limit_train=limit_train, seed=seed)
    return DataSplits(*map(dataset.subset, parts))


def check_same_shape(sets: Mapping[Path, ArrayDataset] | Mapping[str, ArrayDataset]) -> None:
    """Raise, naming the file or folder, unless all images are of the first set's shape."""
    (first, expected), *others = ((path, data.images.shape[1:]) for path, data in sets.items())
    for path, shape in others:
        if shape != expected:
            raise ValueError(
                f"{path}: images of shape {tuple(shape)} (channels, height, width), "
                f"but {first} has {tuple(expected)}; all parts of a set need one shape"
            )


def as_test_set(dataset: ArrayDataset) -> DataSplits:
    """Splits of a set on which nothing is trained, as `evaluate.also` names them."""
    nothing = dataset.subset(torch.arange(0))
    return DataSplits(nothing, nothing, dataset)


def check_test_only(where: object, **unused: object) -> None:
    given = [f"{name}={value}" for name, value in unused.items() if value is not None]
    if given:
        raise ValueError(
            f"{where}: is a test set only, of which nothing is trained or validated: remove "
            f"{' and '.join(given)}"
        )


# Row of a tensor of files to what is wrong with its file.
Faults = dict[int, str]


def without_bad_images(splits: DataSplits) -> DataSplits:
    """The splits less the samples whose files can't be decoded, which `skipped` then lists.

    Every file is decoded, so that no batch and no process meets one later. Parts are cut before,
    and none of them gets other samples instead.
    """
    skipped: dict[str, str] = {}
    parts = []
    for name in ("train", "validation", "test"):
        part: ArrayDataset = getattr(splits, name)
        faults = bad_rows(part.images) | bad_rows(part.labels)
        if faults and len(faults) == len(part):
            raise ValueError(
                f"no image of the {name} part can be decoded: {next(iter(faults.values()))}"
            )
        skipped |= {_file(part, row): reason for row, reason in sorted(faults.items())}
        parts.append(_without(part, faults) if faults else part)
    return DataSplits(*parts, skipped=skipped)


def bad_rows(values: object) -> Faults:
    """Find what is wrong with which rows, or recall it where no file changed since a look."""
    if not isinstance(values, FileTensor):
        return {}
    kept = _index_of(values)
    if kept is None:
        return _looked_at(values)
    with contextlib.suppress(OSError, UnreadableFileError, KeyError, TypeError, ValueError):
        return {int(row): str(reason) for row, reason in read_json(kept)["bad"].items()}
    found = _looked_at(values)
    with contextlib.suppress(OSError):
        write_json(kept, {"bad": {str(row): reason for row, reason in found.items()}})
    return found


def _without(part: ArrayDataset, faults: Faults) -> ArrayDataset:
    good = torch.tensor([row for row in range(len(part)) if row not in faults])
    left = part.subset(good)
    if part.stream is None:
        return left
    # A video with a frame left out is two: what follows the gap is not the next frame.
    stream, begins = part.stream[good], torch.ones(len(good), dtype=torch.bool)
    begins[1:] = (stream[1:] != stream[:-1]) | (good[1:] != good[:-1] + 1)
    return replace(left, stream=begins.cumsum(0) - 1)


def _file(part: ArrayDataset, row: int) -> str:
    images = part.images
    with contextlib.suppress(ValueError):  # of a table's row without an image
        if isinstance(images, FileTensor):
            return str(images.files[int(images.positions[row])])
    return f"sample {int(part.index[row])}"


def _looked_at(values: FileTensor) -> Faults:
    def look(row: int) -> str | None:
        try:
            values.read(values.files[int(values.positions[row])])
        except ValueError as error:
            return str(error)
        return None

    found: Faults = {}
    show = shows_progress() and len(values) >= WORTH_KEEPING
    with (
        progress_bar("checking images", len(values), show=show) as bar,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for row, reason in enumerate(pool.map(look, range(len(values)))):
            bar.advance()
            if reason is not None:
                found[row] = reason
    return found


def _index_of(values: FileTensor) -> Path | None:
    """Name the file that keeps a look at files, by their names, sizes, times and reader."""
    if len(values) < WORTH_KEEPING:
        return None
    # A file that one reader refuses may be good for another.
    digest = hashlib.sha256(repr(values.read).encode())
    for row in range(len(values)):
        file = values.files[int(values.positions[row])]
        if not isinstance(file, Path):
            return None
        try:
            found = file.stat()
        except OSError:
            return None
        digest.update(os.fsencode(f"{file.absolute()}\0{found.st_size}\0{found.st_mtime_ns}\0"))
    return cache_folder() / "checked" / f"{digest.hexdigest()[:16]}.json"


InMemory = Literal["auto"] | bool | None
OnBadImage = Literal["error", "skip"] | None

# Bytes of decoded pixels, over all parts of a set, up to which `auto` keeps them in memory.
# A number of its own and not a share of the machine's memory: crops from files differ from crops of
# smaller copies, and a run's numbers must not depend on where it runs.
MEMORY_LIMIT = 2_000_000_000


def image_files(files: Sequence[File], *, size: int | None = None) -> FileTensor:
    return FileTensor.of(files, ReadImage(size))


def keeps_in_memory(parts: Iterable[object], in_memory: InMemory) -> bool:
    if isinstance(in_memory, bool):
        return in_memory
    return sum(part.num_bytes for part in parts if isinstance(part, FileTensor)) <= MEMORY_LIMIT


_MEANINGS = {
    "validation": "share or count of training samples, stratified.",
    "limit_train": "size of the training set, stratified. None keeps all.",
    "limit_test": "size of the test set, stratified. None keeps all.",
    "seed": "of the split.",
    "in_memory": """keep decoded pixels in memory; without it files are decoded when needed, and
            random resized crops are cut from them. "auto" where they fit into 2 GB, and always
            those of an archive.""",
    "on_bad_image": """"error" stops where a file can't be decoded; "skip" decodes all of them
            first, leaves such files out of their split, and lists them with the run.""",
    "vocabulary": "words that are kept, the most frequent ones of the training part.",
    "length": "tokens that are kept of each text, from its beginning.",
    "unknown": "other words are one `token`, or are left out (`drop`).",
    "embeddings": "file of word vectors: GloVe's text format, or an npz of `words` and `vectors`.",
}


@dataclass(frozen=True)
class Shared:
    """The options that data sources share, and what they do; `source` adds them to a source."""

    validation: float | int = 0.1
    limit_train: int | None = None
    limit_test: int | None = None
    seed: int = 0
    in_memory: InMemory = None
    on_bad_image: OnBadImage = None
    vocabulary: int = 20000
    length: int = 500
    unknown: Literal["token", "drop"] = "token"
    embeddings: str | Path | None = None

    def __post_init__(self) -> None:
        check_choice("in_memory", self.in_memory, (None, "auto", True, False))
        check_choice("on_bad_image", self.on_bad_image, (None, "error", "skip"))
        check_integer("vocabulary", self.vocabulary, low=1)
        check_integer("length", self.length, low=1)
        check_choice("unknown", self.unknown, ("token", "drop"))

    def with_test(
        self,
        train: ArrayDataset,
        test: ArrayDataset,
        *,
        validation: float | int | ArrayDataset | None = None,
    ) -> DataSplits:
        """Splits of a source with its own test set; `validation` None is the option."""
        if self.limit_test is not None:
            kept = limited_positions(test.labels, limit_test=self.limit_test, seed=self.seed)
            test = test.subset(kept)
        cut = partial(divide, train, limit_train=self.limit_train, seed=self.seed)
        if isinstance(validation, ArrayDataset):
            return DataSplits(cut(validation=0).train, validation, test)
        parts = cut(validation=self.validation if validation is None else validation)
        return DataSplits(parts.train, parts.validation, test)

    def divide(
        self, dataset: ArrayDataset, *, test: float | int | None, validation: float | int | None
    ) -> DataSplits:
        """Splits of a source without any; `test` None is 0.2, `validation` None the option."""
        test = 0.2 if test is None else test
        share = self.validation if validation is None else validation
        cut = partial(divide, limit_train=self.limit_train, seed=self.seed)
        return cut(dataset, test=test, validation=share)

    def held(self, splits: DataSplits) -> DataSplits:
        """The same splits with the pixels of their files decoded at once, if they are to be.

        The last step of every source of files: what was left out before is never decoded.
        """
        if self.on_bad_image == "skip":
            splits = without_bad_images(splits)
        parts = (splits.train, splits.validation, splits.test)
        pixels = [each for part in parts for each in (part.images, part.labels)]
        if not keeps_in_memory(pixels, self.in_memory):
            return splits
        decoded = [replace(part, images=part.images[:], labels=part.labels[:]) for part in parts]
        return DataSplits(*decoded, skipped=splits.skipped)

    def of_archive(
        self, root: str | Path, read: Callable[[Path], DataSplits], *, landmark: str | None = None
    ) -> DataSplits:
        """Return what `read` makes of a folder, or of a tar archive that is unpacked meanwhile.

        A set in an archive may lie in any folder of it, which the file `landmark` tells.
        """
        path = Path(root).expanduser()
        if not path.is_file():
            return self.held(read(path))
        if self.in_memory is False:
            raise ValueError(
                f"{path}: in_memory: false needs files, and this is an archive; unpack it and name "
                "the folder"
            )
        with unpacked(path, landmark) as folder:
            # The files are gone when the archive is closed, so all are decoded here.
            found = read(folder)
            _check_pixels(path, found)
            splits = replace(self, in_memory=True).held(found)

        def told(text: str) -> str:
            return text.replace(f"{folder}{os.sep}", f"{path}: ")

        skipped = {told(file): told(reason) for file, reason in splits.skipped.items()}
        return replace(splits, skipped=skipped)


def _check_pixels(archive: Path, splits: DataSplits) -> None:
    """Raise where the images of an archive have far more pixels than images of its size do."""
    most = FREE_BYTES + MOST_RATIO * archive.stat().st_size
    parts = (splits.train, splits.validation, splits.test)
    pixels = 0
    held = [each for part in parts for each in (part.images, part.labels)]
    for each in (each for each in held if isinstance(each, FileTensor)):
        for row in each.positions.tolist():
            width = height = 0
            with contextlib.suppress(ValueError):  # whoever decodes it says what is wrong
                width, height = image_size(each.files[row])
            pixels += max(width * height, math.prod(each.row_shape[-2:]))
            if pixels > most:
                raise ValueError(
                    f"{archive}: not decoded, since its images have more than {most:,} pixels, "
                    "which no images of its size have; unpack it and name the folder"
                )


Source = Callable[..., DataSplits]


def source(*names: str, **own_defaults: Any) -> Callable[[Source], Source]:
    """Add shared options to a source, which gets them as its first argument, a `Shared`.

    They come last in its signature, which the table of components reads, and in its docstring.
    A source may have defaults of its own.
    """
    usual, hints = Shared(**own_defaults), get_type_hints(Shared)
    option = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    options = [option(n, default=getattr(usual, n), annotation=hints[n]) for n in names]

    def added(load: Source) -> Source:
        @wraps(load)
        def loaded(*args: Any, **given: Any) -> DataSplits:
            chosen = {name: given.pop(name) for name in names if name in given}
            return load(replace(usual, **chosen), *args, **given)

        # Evaluated here: `inspect.signature` takes a given signature as it is.
        own = inspect.signature(load, eval_str=True)
        signature = own.replace(parameters=[*list(own.parameters.values())[1:], *options])
        loaded.__signature__ = signature  # type: ignore[attr-defined]
        lines = "".join(f"        {name}: {_MEANINGS[name]}\n" for name in names)
        loaded.__doc__ = f"{(load.__doc__ or '').rstrip()}\n{lines}    "
        return loaded

    return added
