"""What a scan of class folders found, kept so that the next start need not scan again.

The index is a file in the cache folder of the user, `SFUMATO_CACHE` or `~/.cache/sfumato`. It is
used as long as no folder has changed since, and written where that is possible.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato._core.files import DamagedFileError, read_arrays, write_arrays
from sfumato._core.progress import progress_bar
from sfumato.data.class_folders import FileKind, labelled_names
from sfumato.data.file_list import FileList

WORTH_KEEPING = 5000
"""Files from which on what is known of them is kept for the next start."""

_RECENT_SECONDS = 2.0


def cache_folder() -> Path:
    """Where things are kept that can be computed anew."""
    named = os.environ.get("SFUMATO_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sfumato"


def scan_folder(root: Path, classes: tuple[str, ...], kind: FileKind) -> tuple[FileList, Tensor]:
    """The files of all class folders and their labels, from the index where it is valid.

    Args:
        root: the folder of class folders.
        classes: their names.
        kind: of the files.

    Raises:
        ValueError: as `labelled_names`.
    """
    place = root.absolute()
    content = json.dumps([1, os.fspath(place), classes, list(kind.extensions)])
    index = cache_folder() / "folders" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.npz"
    changed = _last_changes(place, classes)
    kept = _read(index, changed)
    if kept is not None:
        return FileList(root, kept["names"], kept["ends"]), torch.from_numpy(kept["labels"])
    with progress_bar(f"scanning {root.name}", len(classes), show=shows_progress()) as bar:
        names, numbers = labelled_names(root, classes, kind, bar.advance)
    files, labels = FileList.of(root, names), np.array(numbers, dtype=np.int64)
    # A folder that changes as often as its clock ticks looks the same before and after.
    is_settled = changed.max(initial=0) < (time.time() - _RECENT_SECONDS) * 1e9
    if len(files) >= WORTH_KEEPING and is_settled:
        arrays = {"names": files.names, "ends": files.ends, "labels": labels, "changed": changed}
        with contextlib.suppress(OSError):  # an index saves time; without one nothing is lost
            write_arrays(index, arrays)
    return files, torch.from_numpy(labels)


def shows_progress() -> bool:
    """Whether somebody looks at standard error, and there is something to draw a bar with."""
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


def _last_changes(root: Path, classes: tuple[str, ...]) -> np.ndarray:
    """When files were last added to, or taken from, each folder, in nanoseconds; 0 for none."""
    return np.array([_last_change(root / name) for name in ("", *classes)], dtype=np.int64)


def _last_change(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _read(index: Path, changed: np.ndarray) -> dict[str, np.ndarray] | None:
    try:
        kept = read_arrays(index)
        is_valid = np.array_equal(kept["changed"], changed) and len(kept["ends"]) == len(
            kept["labels"]
        )
    except (OSError, DamagedFileError, KeyError):
        return None
    return kept if is_valid else None
