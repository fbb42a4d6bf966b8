"""What all commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

console = Console()

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def say_where(what: str, path: Path) -> None:
    """Print where something was written; a path is text, whatever brackets it holds."""
    console.print(Text.assemble(f"{what}: ", (str(path), "bold")), soft_wrap=True)
