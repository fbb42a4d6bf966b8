"""Read saved predictions from a file that may come from a stranger: nothing in it is executed."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sfumato.engine.runs.prediction_checks import OnBadRow, RowChecks
from sfumato.engine.runs.prediction_confidences import confidences, unlabelled
from sfumato.engine.runs.prediction_content import distributions, needs
from sfumato.engine.runs.prediction_formats import (
    ARRAYS,
    TABLES,
    Columns,
    Table,
    batch_rows,
    read_npy,
)
from sfumato.engine.runs.prediction_labels import names_of
from sfumato.engine.runs.prediction_meaning import Meaning
from sfumato.engine.runs.prediction_names import LABELS, Kind, Roles, roles_of
from sfumato.engine.runs.prediction_parts import Layout, as_first
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile as ConfidenceFile,
    PredictionFile as PredictionFile,
    PredictionFileError as PredictionFileError,
    joined,
)

# A compressed file can declare far more than it holds; this much is more than any test set.
LARGEST_BYTES = 8 * 2**30
FORMATS = (".csv", ".npz", ".npy", ".parquet", ".jsonl", ".ndjson", ".safetensors")


@dataclass(frozen=True)
class Reading:
    """What a file doesn't say itself.

    Args:
        kind: what scores without a telling name are; without it they must be probabilities.
        labels: file with the labels of an `.npy`.
        classes: names of the classes, in the order of the scores.
        on_bad_row: "stop" at the first bad row, or "skip" and count them.
        ignore_index: label of pixels that count for nothing, and of rows that are left out.
        unlabelled: whether nothing says which predictions are right; never guessed.
        like: what the first file of a model holds, where this is another one.
    """

    kind: Kind | None = None
    labels: Path | None = None
    classes: tuple[str, ...] | None = None
    on_bad_row: OnBadRow = "stop"
    ignore_index: int | None = None
    unlabelled: bool = False
    like: Layout | None = None

    @property
    def told_classes(self) -> list[str] | None:
        """Names of the classes without blanks around them."""
        return None if self.classes is None else [name.strip() for name in self.classes]


def read_predictions(path: Path, reading: Reading | None = None) -> PredictionFile:
    """Read predictions with a number for every class; layouts as in docs/audit.md.

    Raises:
        PredictionFileError: missing, unreadable, pickled, oversized, or without what is needed.
    """
    found = read_any(path, reading)
    if isinstance(found, ConfidenceFile):
        raise PredictionFileError(
            f"{path}: holds the confidence of one class only; save 'probs' or 'logits' of all"
        )
    return found


def read_any(
    path: Path, reading: Reading | None = None, skipped: Counter[str] | None = None
) -> AnyPredictions:
    """A whole file: predictions of all classes, or confidences with whether they were right."""
    return joined(list(read_batches(path, reading, skipped)))


def stored_predictions(path: Path, split: str) -> Path:
    """The file that a run folder keeps of a split."""
    stored = path / "predictions" / f"{split}.npz"
    if not stored.is_file():
        there = sorted(each.stem for each in stored.parent.glob("*.npz"))
        raise PredictionFileError(
            f"{path}: holds no predictions of {split!r} (has {there or 'none'}); pass the folder "
            "of a finished run, such as STUDY/runs/25403a2604ab"
        )
    return stored


def read_batches(
    path: Path,
    reading: Reading | None = None,
    skipped: Counter[str] | None = None,
    groups: list[int] | None = None,
) -> Iterator[AnyPredictions]:
    """Parts of a file in their order; tables, and arrays in `.npy`, are never read as a whole.

    Args:
        path: the file.
        reading: what it doesn't say itself.
        skipped: takes the numbers of bad rows by reason, where they are skipped.
        groups: row groups of a Parquet file to read; None for all.
    """
    reading, skipped = reading or Reading(), Counter() if skipped is None else skipped
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    suffix, seen = path.suffix.lower(), False
    if suffix not in FORMATS:
        raise PredictionFileError(f"{path}: unknown kind of file; known are {', '.join(FORMATS)}")
    make = _array_parts if suffix in ARRAYS else _table_parts
    try:
        for part in make(path, reading, skipped, groups):
            seen = seen or len(part) > 0
            if len(part):
                yield part
    except PredictionFileError:
        raise
    except Exception as error:
        # Broken files fail in as many ways as there are parsers behind; each becomes one message.
        raise PredictionFileError(f"{path}: can't be read ({error})") from None
    if not seen:
        left = f"; {skipped.total()} rows were left out" if skipped else ""
        raise PredictionFileError(f"{path}: holds no prediction{left}")


Parts = Iterator[AnyPredictions]


def _table_parts(
    path: Path, reading: Reading, skipped: Counter[str], groups: list[int] | None
) -> Parts:
    if reading.labels is not None:
        raise PredictionFileError(
            f"{path}: --labels goes with arrays, and this is a table: add its labels as a column, "
            "or leave --labels out if it has one"
        )
    roles, meaning = Roles(), Meaning(str(path), reading.told_classes)

    def wanted(names: list[str], lists: list[str]) -> list[str]:
        nonlocal roles
        roles = roles_of(names, lists=lists)
        needs(path, roles, names, is_table=True, unlabelled=reading.unlabelled)
        return used_names(roles)

    read: Callable[..., Table] = TABLES[path.suffix.lower()]
    options = {"groups": groups} if groups is not None else {}
    for first, columns, broken in read(path, wanted, reading.on_bad_row, **options):
        settled = meaning.settle(roles, columns)
        yield _part(path, reading, skipped, settled, columns, first, broken)


def _array_parts(
    path: Path, reading: Reading, skipped: Counter[str], groups: list[int] | None
) -> Parts:
    if path.suffix.lower() == ".npz":
        _check_unpacked(path)
    arrays = dict(ARRAYS[path.suffix.lower()](path))
    if reading.labels is not None:
        arrays |= _labels_beside(path, reading.labels, arrays)
    roles = roles_of(
        arrays,
        flat=[n for n, a in arrays.items() if a.ndim == 1 and a.dtype.kind != "f"],
        lists=[n for n, a in arrays.items() if a.ndim > 1],
    )
    needs(path, roles, list(arrays), is_table=False, unlabelled=reading.unlabelled)
    names = arrays.pop(roles.class_names) if roles.class_names is not None else None
    if names is not None:
        roles.classes = names_of(names)
    count = _one_length(path, roles, arrays)
    used = used_names(roles)
    width = max(int(np.prod(arrays[name].shape[1:])) for name in used)
    step = batch_rows(width)
    if path.suffix.lower() != ".npy":  # in memory already: one part
        step = max(count, 1)
    meaning = Meaning(str(path), reading.told_classes)
    for start in range(0, count, step):
        part = {name: arrays[name][start : start + step] for name in used}
        yield _part(path, reading, skipped, meaning.settle(roles, part), part, start)


def _check_unpacked(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
    if declared > LARGEST_BYTES:
        raise PredictionFileError(
            f"{path}: unpacks to {declared / 2**30:.0f} GiB, which is refused; write Parquet, "
            "which is read in batches"
        )


def _labels_beside(path: Path, labels: Path, arrays: Columns) -> Columns:
    if not labels.is_file():
        raise PredictionFileError(f"{labels}: no such file")
    if labels.suffix.lower() != ".npy":
        raise PredictionFileError(f"{labels}: --labels takes an .npy file of class numbers")
    if any(name.strip().lower() in LABELS for name in arrays):
        raise PredictionFileError(f"{path}: holds labels itself; leave --labels out")
    return {"labels": read_npy(labels)["array"]}


def used_names(roles: Roles) -> list[str]:
    """Names that are read, each once."""
    scores = roles.scores
    single = [roles.labels, roles.groups, roles.times, roles.index]
    if roles.beside is not None:
        single += [roles.beside, roles.confidence]
    if not scores:
        single += [roles.confidence, roles.predicted, roles.correct, roles.boxes, roles.images]
    return list(dict.fromkeys([*scores, *(name for name in single if name is not None)]))


def _one_length(path: Path, roles: Roles, arrays: Mapping[str, np.ndarray]) -> int:
    """The number of rows, of which every array has as many."""
    main = roles.scores[0] if roles.scores else roles.confidence
    if main is None:
        raise PredictionFileError(f"{path}: holds no prediction")
    count = len(arrays[main])
    for name in used_names(roles):
        if len(arrays[name]) != count:
            raise PredictionFileError(
                f"{path}: {len(arrays[name])} {name} for {count} predictions; every row needs one"
            )
    return count


def _part(
    path: Path,
    reading: Reading,
    skipped: Counter[str],
    roles: Roles,
    columns: Columns,
    first: int,
    broken: Mapping[int, str] | None = None,
) -> AnyPredictions:
    count = len(next(iter(columns.values())))
    checks = RowChecks(str(path), first, count, reading.on_bad_row)
    checks.leave_out(broken or {})
    classes = reading.told_classes
    found: AnyPredictions
    if reading.unlabelled:
        found = unlabelled(checks, path.stem, roles, columns, classes, reading.kind)
    elif roles.scores:
        named = classes or roles.classes
        found = distributions(
            checks, path.stem, roles, columns, named, reading.kind, reading.ignore_index
        )
    else:
        found = confidences(
            checks, path.stem, roles, columns, classes, reading.kind, reading.ignore_index
        )
    skipped.update(checks.reasons)
    return found if reading.like is None else as_first(found, reading.like, str(path))
