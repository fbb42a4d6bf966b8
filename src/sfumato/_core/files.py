"""Files that are either whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import itertools
import json
import math
import os
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Content = TypeVar("Content")
_QUIET_SECONDS = 60
_HEADERS = {
    1: np.lib.format.read_array_header_1_0,
    2: np.lib.format.read_array_header_2_0,
}
_REMEDY = (
    "Give the command that wrote it again: a run's or a study's is 'sfumato run', which sets "
    "damaged files aside and computes them anew."
)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` and rename the result to `path`; a crash leaves `path` as it was.

    Raises:
        IsADirectoryError: `path` is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def file_in_the_way(folder: Path) -> Path | None:
    """The file that stands where `folder` or a folder above it should be; None where none does."""
    for place in (folder, *folder.parents):
        if place.is_dir():
            return None
        if place.exists():
            return place
    return None


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of `path` left; a writer that lives has just touched its file."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{glob.escape(path.suffix)}"):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - leftover.stat().st_mtime > _QUIET_SECONDS:
                leftover.unlink()


def sync(path: Path) -> None:
    """Push a file's bytes to the disk, so that a rename never outruns them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically; NaN and infinity are written as null, so that any reader takes it."""
    write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


class DamagedFileError(ValueError):
    """A file that was cut or changed after it was written; the message names it and the remedy."""


class DamageWarning(UserWarning):
    """A damaged file was set aside, and what it held is computed anew."""


def read_json(path: Path) -> Any:
    """Read JSON, naming the file and the remedy where it is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of the encoding, the content or its depth
        raise damaged(path, f"not valid JSON: {error}") from None


def read_json_lines(path: Path) -> list[Any]:
    """Read a file of one JSON value a line, naming the file and the line where it is broken."""
    values = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise damaged(path, f"line {number} is not valid JSON: {error}") from None
    return values


def damaged(path: Path, why: str, remedy: str = _REMEDY) -> DamagedFileError:
    """The error that says which file is broken and what to do."""
    return DamagedFileError(f"{path} is damaged ({why}). {remedy}")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an npz that holds no pickles, naming the file and the remedy where it is broken."""
    content = io.BytesIO(path.read_bytes())  # a failing disk is no damaged file
    try:
        _check_sizes(content)
        with np.load(content, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except MemoryError:
        raise
    except Exception as error:  # of the archive, its compression or an array: numpy lets all pass
        raise damaged(path, f"not a whole npz: {error}") from None


def _check_sizes(content: io.BytesIO) -> None:
    """Raise where an array says that it is larger than its bytes, before room is made for it."""
    with zipfile.ZipFile(content) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                first, _ = np.lib.format.read_magic(file)
                read = _HEADERS.get(first)
                if read is None:
                    continue
                shape, _, dtype = read(file)
            claimed = math.prod(shape) * dtype.itemsize
            if claimed > entry.file_size:
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes, not {claimed}")
    content.seek(0)


def read_unless_damaged(
    path: Path, read: Callable[[Path], Content], consequence: str = "it is computed anew"
) -> Content | None:
    """What a file holds; None where there is none, or a damaged one, which is set aside."""
    if not path.exists():
        return None
    try:
        return read(path)
    except DamagedFileError:
        set_aside(path, consequence)
        return None


def set_aside(path: Path, consequence: str) -> None:
    """Rename a damaged file or folder to a name that nothing reads, and warn.

    Args:
        path: what is damaged; nothing happens where another process was first.
        consequence: what happens now, for the warning: "it is computed anew".
    """
    target = path.with_name(f"{path.name}.damaged")
    for number in itertools.count(2):
        if not target.exists():
            break
        target = path.with_name(f"{path.name}.damaged-{number}")
    try:
        path.rename(target)
    except FileNotFoundError:
        return
    message = f"{path} is damaged and was renamed to {target.name}: {consequence}"
    warnings.warn(message, DamageWarning, stacklevel=2)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz atomically; object arrays, which would need pickle, are refused."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    write_atomically(path, write)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
