"""Files that are either whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_QUIET_SECONDS = 60


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` and rename the result to `path`; a crash leaves `path` as it was."""
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


def read_json(path: Path) -> Any:
    """Read JSON, naming the file where it is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read YAML as plain data, naming the file where it is broken."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write YAML atomically, keys in their given order."""
    write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


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
