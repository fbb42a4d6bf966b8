"""What all commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sfumato._core.data_root import DATA_ROOT
from sfumato._core.files import file_in_the_way

console = Console()

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="ROOT",
        envvar=DATA_ROOT,
        help="Folder in which data sets lie: relative paths of data are inside of it.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def set_data_root(root: Path | None) -> None:
    """Say where data sets lie to this process and all that it starts."""
    if root is None:
        return
    folder = root.expanduser()
    if not folder.is_dir():
        raise typer.BadParameter(f"{root}: no such folder", param_hint="--data")
    os.environ[DATA_ROOT] = str(folder.resolve())


def check_folder(path: Path, remedy: str = "--out wants a folder") -> None:
    """Raise where a file stands in the way of a folder, before anything is computed for it."""
    from sfumato.engine import ConfigError

    blocking = file_in_the_way(path)
    if blocking is not None:
        raise ConfigError(f"{blocking} is a file; {remedy}")


def say_line(line: str) -> None:
    """Print a line as it is, whatever brackets it holds; a narrow terminal breaks it itself."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def say_where(what: str, path: Path) -> None:
    """Print where something was written; a path is text, whatever brackets it holds."""
    console.print(Text.assemble(f"{what}: ", (str(path), "bold")), soft_wrap=True)
