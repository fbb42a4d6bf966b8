"""Options and ways to print that all commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sfumato._core.files import file_in_the_way
from sfumato._core.spec import DATA_ROOT
from sfumato._core.text import terminal, visible

console = terminal()

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
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the tables too.")]


@contextmanager
def busy(doing: str, *, show: bool = True) -> Iterator[None]:
    """Say on standard error what is being done: a spinner on a terminal, one line elsewhere."""
    screen = terminal(stderr=True)
    if not show:
        yield
    elif screen.is_terminal:
        with screen.status(Text(doing)):
            yield
    else:
        screen.print(Text(doing), soft_wrap=True)
        yield


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


def say_file(text: str) -> None:
    """Print what would else be a file, as it is, for another program."""
    typer.echo(visible(text), nl=False)
