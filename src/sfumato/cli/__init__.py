"""The command line: `sfumato quickstart | run | report | compare | audit | ...`, see `--help`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sfumato import __version__
from sfumato.cli.auditing import audit
from sfumato.cli.calibrating import calibrate
from sfumato.cli.data_and_parts import corrupt, list_parts
from sfumato.cli.results import analyse, compare
from sfumato.cli.shared import console
from sfumato.cli.studies import check, new, quickstart, report, run, schema

app = typer.Typer(
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Make neural classifiers say what they know. Start with `sfumato quickstart`.",
)
for command in (
    quickstart,
    new,
    run,
    check,
    schema,
    report,
    compare,
    audit,
    calibrate,
    analyse,
    corrupt,
):
    app.command()(command)
app.command("list")(list_parts)
_TO_TRY = (
    ("sfumato quickstart", "see it work: built-in images, no download, a few minutes"),
    ("sfumato new my-study --data photos", "compare methods on your own folder of images"),
    ("sfumato audit predictions.npz", "ask whether saved predictions can be trusted"),
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        console.print(f"sfumato {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.print("Sfumato makes classifiers say what they know. Three things to try:\n")
        for line, meaning in _TO_TRY:
            console.print(Text.assemble("  ", (f"{line:36}", "bold"), meaning), soft_wrap=True)
        console.print("\nsfumato --help lists every command.", highlight=False)


def main() -> None:
    """Entry point: what a user did wrong is one readable message, not a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, OSError) as error:
        page = _page(error)
        if page is None and not _is_of_the_system(error):
            raise
        terminal = Console(stderr=True, soft_wrap=True)
        shown = Text.assemble(("error: ", "bold red"), _message(error))
        terminal.print(shown, highlight=False)
        if page is not None and sys.stderr.isatty():  # elsewhere a mistake is one line
            terminal.print(f"docs/{page}.md explains it.", style="dim", highlight=False)
        raise SystemExit(2) from None


def _page(error: Exception) -> str | None:
    """The page about a mistake in the user's files; None for any other error."""
    from sfumato._core.files import DamagedFileError
    from sfumato.engine import ConfigError
    from sfumato.engine.runs.prediction_files import PredictionFileError
    from sfumato.study import StorageError

    if isinstance(error, PredictionFileError):
        return "audit"
    return "studies" if isinstance(error, ConfigError | StorageError | DamagedFileError) else None


def _is_of_the_system(error: Exception) -> bool:
    """Whether it is about a file that can't be read or written."""
    named = isinstance(error, OSError) and error.filename is not None
    return named or isinstance(error, FileNotFoundError | PermissionError)


def _message(error: Exception) -> str:
    """What the system says of a file, without its numbers; our own messages as they are."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
