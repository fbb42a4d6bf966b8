"""What the commands that run studies share: run one, and show its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.text import Text

from sfumato.cli.shared import check_folder, console, say_line, say_where

_INTERRUPTED = 130  # as a shell says that SIGINT ended a command


def run_and_report(
    path: Path,
    out: Path | None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    workers: int | None,
    threads: int | None,
    ray: str | None = None,
    dry_run: bool = False,
    quiet: bool,
    rehearse: bool = True,
) -> Path | None:
    """Show the plan, run it, write the report.

    Returns:
        The page that was written; None where there is none to look at.
    """
    from sfumato.study import default_workers, load_study, run_study
    from sfumato.study.launched import launched_rank
    from sfumato.study.preview import preview

    study = load_study(path, overrides)
    folder = out or Path("runs") / study.name
    check_folder(folder)
    count = workers or default_workers()
    with console.status("Looking at data and devices, and timing a few steps of each method"):
        table = preview(
            study,
            folder,
            only=only,
            workers=count,
            threads=threads,
            probe=rehearse and not quiet and not launched_rank(),
            devices=ray is None,
        )
    if not launched_rank():
        console.print(table)
    if dry_run:
        return None
    try:
        outcome = run_study(
            study,
            folder,
            workers=count,
            threads=threads,
            only=only,
            ray=ray,
            show=not quiet,
            announce=say_line,
        )
    except KeyboardInterrupt:
        say_line(
            "Interrupted. The same command goes on from here: finished runs and epochs are kept."
        )
        raise typer.Exit(_INTERRUPTED) from None
    if launched_rank():  # under torchrun the first process reports for all
        return None
    page = show_report([outcome.folder], None)
    if outcome.failed:
        names = "; ".join(f"{run.method}, seed {run.seed}" for run in outcome.failed)
        console.print(f"Without results: {names}", markup=False, style="red")
        raise typer.Exit(1)
    return page


def show_report(folders: list[Path], out: Path | None) -> Path:
    """Print the tables of studies and what they recommend, and write their page."""
    from sfumato.report import compare_methods, read_studies, recommend, write_report
    from sfumato.report.read import understood
    from sfumato.report.table import results_tables

    if out is not None:
        check_folder(out, "a page wants a folder (--format csv writes a table to a file)")
    with understood(folders):
        findings = compare_methods(read_studies(folders))
        for table in results_tables(findings):
            console.print(table)
        console.print(Text(recommend(findings).text))
        page = write_report(folders, out)
    say_where("Report", page)
    return page
