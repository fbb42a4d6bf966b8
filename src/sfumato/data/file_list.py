"""Many paths in two arrays: worker processes share them, and a million of them stay small."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np


class FileList(Sequence[Path]):
    """The paths of files below one folder, made when they are asked for.

    A list of a million `Path` objects takes half a gigabyte, in each worker process anew, since
    counting references writes to them.

    Args:
        root: the folder.
        names: of the files, below `root`, joined without anything between them.
        ends: int64, (N,), where each name ends in `names`.

    Example:
        >>> files = FileList.of(Path("photos"), ["ant/1.jpg", "bee/2.jpg"])
        >>> len(files), files[1].as_posix()
        (2, 'photos/bee/2.jpg')
    """

    def __init__(self, root: Path, names: np.ndarray, ends: np.ndarray) -> None:
        self.root = root
        self.names = names
        self.ends = ends

    @classmethod
    def of(cls, root: Path, names: Sequence[str]) -> FileList:
        """From the names themselves."""
        encoded = [os.fsencode(name) for name in names]
        joined = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        lengths = np.fromiter((len(each) for each in encoded), np.int64, len(encoded))
        return cls(root, joined, lengths.cumsum())

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, position: int) -> Path: ...
    @overload
    def __getitem__(self, position: slice) -> list[Path]: ...
    def __getitem__(self, position: Any) -> Path | list[Path]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        number = range(len(self))[position]
        start = int(self.ends[number - 1]) if number else 0
        return self.root / os.fsdecode(self.names[start : int(self.ends[number])].tobytes())
