"""Opening a page that a command wrote, where somebody is there to look at it."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

OpenPage = Annotated[
    bool | None,
    typer.Option(
        "--open/--no-open",
        help="Open the report in a browser; by default where there is a desktop and a terminal.",
    ),
]


def open_page(path: Path, wanted: bool | None) -> None:
    """Open it where that is wanted, or where nothing was said and somebody can look at it."""
    if wanted or (wanted is None and has_desktop() and sys.stdout.isatty()):
        webbrowser.open(path.resolve().as_uri())


def has_desktop() -> bool:
    """Whether windows can be shown: always on macOS and Windows, elsewhere by the display."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
