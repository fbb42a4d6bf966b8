"""Files that torchvision keeps in a folder, or fetches into it where that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def from_torchvision(
    build: Callable[..., Any], root: Path, *, download: bool, name: str, holds: str, **options: Any
) -> Any:
    """Torchvision's set; what fails says what to do, and leaves no empty folder behind.

    Args:
        build: the class of the set.
        root: the folder that has its files.
        download: fetch them if they are not there.
        name: what messages call the set.
        holds: what `root` should hold, for the messages.
        options: which part of the set.

    Raises:
        FileNotFoundError: the files are not in `root`, and can't be fetched or must not be.
    """
    there = root.exists()
    try:
        return build(root=root, download=download, **options)
    except (OSError, RuntimeError) as error:
        if not there and root.is_dir() and not any(root.iterdir()):
            root.rmdir()
        if download:
            problem, way = "could not be fetched into", "Try again online"
        else:
            problem, way = "is not in", "Say download: true to fetch it there"
        raise FileNotFoundError(
            f"{name} {problem} root={str(root)!r} ({error}). {way}, or point root at {holds}"
        ) from error
