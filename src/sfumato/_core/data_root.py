"""Where data sets lie: the folder that relative paths of a data spec are in.

A study names its data by relative paths, and each machine says where they begin, so that a study
file and the names of its runs are the same everywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

from sfumato._core.spec import Resolved, parameters

# Processes that a study starts, on this machine or another, share the environment and nothing else.
DATA_ROOT = "SFUMATO_DATA"


def in_data_root(path: str | Path) -> Path:
    """A path of a data spec as it is on this machine.

    Relative ones are inside of the folder that the environment variable SFUMATO_DATA names (the
    command line sets it: `--data ROOT`), or of the working directory where it is not set.

    Raises:
        FileNotFoundError: the variable names no folder.

    Example:
        >>> in_data_root("/sets/cifar10").as_posix()
        '/sets/cifar10'
    """
    found, root = Path(path).expanduser(), os.environ.get(DATA_ROOT)
    if found.is_absolute() or not root:
        return found
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{root}: no such folder; --data or {DATA_ROOT} says where data sets lie"
        )
    return folder / found


def placed(source: Resolved) -> dict[str, Any]:
    """The parameters of a checked data spec, its paths as they are on this machine.

    A path is what the loader's signature says may be a `Path`.
    """
    given, signature = source.params, parameters(source.build)
    return {
        key: in_data_root(value)
        if isinstance(value, str | Path) and Path in _kinds(signature[key].annotation)
        else value
        for key, value in given.items()
    }


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) or (annotation,)
