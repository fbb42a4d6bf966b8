"""A grid of numbers that take long, kept on disk while it fills."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from torch import Tensor

_SECONDS_BETWEEN_WRITES = 10.0


def hash_weights(weights: Mapping[str, Tensor], settings: tuple[object, ...]) -> str:
    """A hash of weights and settings: what must agree for two parts to be of one grid."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, weight in weights.items():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class PartialGrid:
    """An array that is NaN where nothing has been computed.

    As a context it writes itself to `path` now and then, at the end, and when it is interrupted.
    The file is replaced as a whole, and holds no pickled objects.

    Args:
        shape: of the array.
        path: the npz to go on from, and to write; None for none.
        key: what identifies the grid.
    """

    def __init__(self, shape: tuple[int, ...], path: str | Path | None, key: str) -> None:
        self.path = None if path is None else Path(path)
        self.key = key
        self.losses = np.full(shape, np.nan)
        self.done = np.zeros(shape, dtype=bool)
        self.written = time.monotonic()
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["key"]) != self.key:
                raise ValueError(
                    f"path {path} holds a landscape of other weights or settings; give another "
                    "path, or delete the file to start anew"
                )
            self.losses, self.done = arrays["losses"], arrays["done"]

    @property
    def finished(self) -> int:
        """Number of points that have a value."""
        return int(self.done.sum())

    def missing(self) -> Iterator[tuple[int, ...]]:
        """Positions without a value."""
        for position in np.argwhere(~self.done):
            yield tuple(int(i) for i in position)

    def set(self, position: tuple[int, ...], value: float) -> None:
        """Fill one position; a loss may well be infinite or NaN far from the weights."""
        self.losses[position] = value
        self.done[position] = True
        if time.monotonic() - self.written > _SECONDS_BETWEEN_WRITES:
            self._write()

    def __enter__(self) -> PartialGrid:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez(file, losses=self.losses, done=self.done, key=np.array(self.key))
        temporary.replace(self.path)
        self.written = time.monotonic()
