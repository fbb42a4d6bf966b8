"""The command line: `sfumato quickstart | run | report | compare | audit | ...`, see `--help`."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from sfumato import __version__
from sfumato._core.files import FULL_DISK
from sfumato._core.spec import nearest
from sfumato._core.text import brief, show_messages_visibly, terminal, visible
from sfumato.cli.predictions import audit, calibrate
from sfumato.cli.results import analyse, compare, corrupt, export, list_components, runs
from sfumato.cli.shared import console
from sfumato.cli.studies import check, new, quickstart, report, run, schema

_CHOICE = re.compile(r"(?:Value error, )?(['\"].*['\"]) is not one of ('.*')\.", re.DOTALL)


def _unknown(found: re.Match[str]) -> str:
    """Say of an unknown choice what may be meant, as the errors in study files do."""
    word, choices = found.groups()
    hint = nearest(word[1:-1], re.findall("'([^']*)'", choices))
    return f"unknown {word}{hint}. Choose from {choices}"


class _Commands(TyperGroup):
    """The commands; where one is typed wrongly, what was typed is shown visibly."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            said = getattr(error, "message", None)
            if isinstance(said, str):
                said = _CHOICE.sub(_unknown, said)
                error.message = visible(said)  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=_Commands,
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
    runs,
    compare,
    export,
    audit,
    calibrate,
    analyse,
    corrupt,
):
    app.command()(command)
app.command("list")(list_components)
_TO_TRY = (
    ("sfumato quickstart", "see it work, without a download"),
    ("sfumato new my-study --data photos", "compare methods on your own images"),
    ("sfumato audit predictions.npz", "can saved predictions be trusted?"),
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
    show_messages_visibly()
    try:
        _check_arguments(sys.argv[1:])
        app()
    except (ValueError, RuntimeError, OSError) as error:
        page = _page(error)
        if page is None and not _is_of_the_system(error):
            raise
        screen = terminal(stderr=True, soft_wrap=True)
        shown = Text.assemble(("error: ", "bold red"), _message(error))
        screen.print(shown, highlight=False)
        if page is not None and sys.stderr.isatty():  # elsewhere a mistake is one line
            screen.print(f"docs/{page}.md explains it.", style="dim", highlight=False)
        raise SystemExit(2) from None


# By name: an import of the classes could fail here for the reason that the command itself did.
_PAGES = {
    "PredictionFileError": "audit",
    "ConfigError": "studies",
    "StorageError": "studies",
    "StoreError": "running",
    "UnreadableFileError": "studies",
}


def _page(error: Exception) -> str | None:
    """The page about a mistake in the user's files; None for any other error."""
    ours = [kind for kind in type(error).__mro__ if kind.__module__.startswith("sfumato.")]
    return next((_PAGES[kind.__name__] for kind in ours if kind.__name__ in _PAGES), None)


def _is_of_the_system(error: Exception) -> bool:
    """True if it is about a file that can't be read or written."""
    if isinstance(error, OSError):
        named = error.filename is not None or error.errno in FULL_DISK
        return named or isinstance(error, FileNotFoundError | PermissionError)
    return isinstance(error, _ArgumentError)


class _ArgumentError(ValueError):
    """An argument that no file and no component can be named by."""


def _check_arguments(arguments: list[str]) -> None:
    """Raise for text that the system can't encode, before a file is looked for by that name."""
    for argument in arguments:
        try:
            os.fsencode(argument)
        except UnicodeEncodeError as error:
            raise _ArgumentError(
                f"{argument}: character {error.start + 1} of this argument is half of a pair and "
                "names no file; type the argument again"
            ) from None


def _message(error: Exception) -> str:
    """Return what the system says of a file, without its numbers; our own messages as they are."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and error.strerror is not None:
        text = f"{error.strerror}: free some room, or write elsewhere"
    return brief(text)
