"""What all commands share."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

console = Console()

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
