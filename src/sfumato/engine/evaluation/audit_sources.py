"""What the arguments of an audit stand for: models, each in one file or in several."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfumato.engine.runs.prediction_files import FORMATS, PredictionFileError, stored_predictions
from sfumato.engine.runs.prediction_formats import open_parquet

# Beyond this a model is known by its sums; below, its rows stay in memory and numbers are exact.
LARGEST_IN_MEMORY = 2**29
# What an exact audit keeps of a row beside its scores: ranks, bins, resamples, held-out halves.
_BYTES_PER_ROW = 128
_TEXT = (".csv", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class Source:
    """The predictions of one model.

    Args:
        name: what the model is called.
        paths: its files.
        arguments: how the user named them.
    """

    name: str
    paths: tuple[Path, ...]
    arguments: tuple[str, ...]

    def bytes(self) -> int:
        """Size of what the files hold, unpacked where that is known, and of what rows need."""
        return sum(_bytes(path) for path in self.paths)


def find_sources(
    arguments: Sequence[str], *, merge: bool = False, split: str = "test"
) -> list[Source]:
    """One model for each argument: a file, a pattern, a folder of files, or that of a run.

    Args:
        arguments: as the user named them.
        merge: take all of them as the parts of one model.
        split: which predictions of a run.
    """
    found = [_source(argument, split) for argument in arguments]
    if merge and found:
        paths = tuple(path for source in found for path in source.paths)
        return [Source(found[0].name, paths, tuple(arguments))]
    return found


def _source(argument: str, split: str) -> Source:
    path = Path(argument)
    if path.is_dir():
        paths = _in_folder(path, split)
    elif path.exists() or not glob.has_magic(argument):
        paths = [path]
    else:
        paths = sorted(Path(each) for each in glob.glob(argument, recursive=True))
        if not paths:
            raise PredictionFileError(f"{argument}: no file has such a name")
    name = path.name if path.is_dir() else paths[0].stem
    return Source(name, tuple(paths), (argument,))


def _in_folder(path: Path, split: str) -> list[Path]:
    if (path / "predictions").is_dir():
        return [stored_predictions(path, split)]
    if (path / "metrics.json").is_file():
        return [path]  # a run that kept a histogram only
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in FORMATS)
    if not found:
        raise PredictionFileError(
            f"{path}: holds no predictions; known are {', '.join(FORMATS)} and folders of runs"
        )
    return found


def _bytes(path: Path) -> int:
    if path.is_dir():
        return 0
    if not path.is_file():
        raise PredictionFileError(f"{path}: no such file")
    if path.suffix.lower() == ".parquet":
        facts = open_parquet(path).metadata
        groups = (facts.row_group(at).total_byte_size for at in range(facts.num_row_groups))
        return sum(groups) + _BYTES_PER_ROW * facts.num_rows
    size = path.stat().st_size
    if path.suffix.lower() in _TEXT and size:
        with path.open("rb") as file:
            start = file.read(2**16)
        size += _BYTES_PER_ROW * (size * start.count(b"\n") // len(start))
    return size
