"""Commands about studies: run, check, report, list, new."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from sfumato._core.files import write_text
from sfumato._core.text import print_line, print_place
from sfumato.cli.shared import (
    DataRoot,
    Quiet,
    Verbose,
    busy,
    check_folder,
    console,
    say_file,
    set_data_root,
)

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
    """True if windows can be shown: always on macOS and Windows, elsewhere by the display."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


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
    verbose: bool = False,
) -> Path | None:
    """Show the plan, run it, write the report."""
    with busy("Reading the study", show=not quiet):
        from sfumato.study import load_study, plan, run_study
        from sfumato.study.jobs import default_workers
        from sfumato.study.planning import plan_table
        from sfumato.study.run import launched_rank

        study = load_study(path, overrides)
    folder = out or Path("runs") / study.name
    check_folder(folder)
    count = workers or default_workers()
    settings: dict[str, Any] = {"workers": count, "threads": threads, "only": only}
    with busy("Looking at data and devices, and timing a few steps of each method", show=not quiet):
        runs = plan(study)
        probe = rehearse and not quiet and not launched_rank()
        table = plan_table(study, runs, folder, probe=probe, devices=ray is None, **settings)
    if not launched_rank():
        console.print(table)
    if dry_run:
        return None
    try:
        outcome = run_study(
            study, folder, ray=ray, show=not quiet, announce=print_line, runs=runs, **settings
        )
    except KeyboardInterrupt:
        print_line(
            "Interrupted. The same command goes on from here: finished runs and epochs are kept."
        )
        raise typer.Exit(_INTERRUPTED) from None
    if launched_rank():  # under torchrun the first process reports for all
        return None
    page = show_report([outcome.folder], None, verbose=verbose)
    if outcome.failed:
        names = "; ".join(f"{run.method}, seed {run.seed}" for run in outcome.failed)
        console.print(f"Without results: {names}", markup=False, style="red")
        raise typer.Exit(1)
    return page


def show_report(folders: list[Path], out: Path | None, *, verbose: bool = False) -> Path:
    """Write the page of studies; print one table and what they recommend, all if `verbose`."""
    from sfumato.report import compare_methods, read_studies, recommend
    from sfumato.report.export import results_tables, summary_lines
    from sfumato.report.page import write_findings
    from sfumato.report.read import naming_folders

    if out is not None:
        check_folder(out, "a page wants a folder (--format csv writes a table to a file)")
    with naming_folders(folders):
        results = read_studies(folders)
        findings = compare_methods(results)
        # First: a closed pipe ends what is printed.
        page = write_findings(results, findings, folders[0], out)
        advice = recommend(findings)
        if verbose:
            for table in results_tables(findings):
                console.print(table)
            console.print(Text(advice.text))
        for part in summary_lines(findings, advice):
            console.print(part)
    print_place("Report", page)
    return page


Workers = Annotated[
    int | None, typer.Option(help="Runs at a time; one per core, up to four, by default.", min=1)
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads of each run; cores shared out among four by default.", min=1),
]
StudyFile = Annotated[Path, typer.Argument(help="A study file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change: train.epochs=5."),
]

# Under a minute, in two methods: enough to see every step, too little to decide.
_TINY = (
    "data={name: scenes, size: 16, train: 60, validation: 40, test: 100}",
    "train.epochs=1",
    "evaluate={resamples: 50, corruptions: [fog], severities: [3], corrupted_images: 20}",
    "seeds=[0]",
)
_TINY_METHODS = ("cross entropy", "ACLS")


def quickstart(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs and report; quickstart, or quickstart-tiny."),
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Under a minute: shows every step, decides nothing.")
    ] = False,
    open_report: OpenPage = None,
    workers: Workers = None,
    threads: Threads = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Compare ways of smoothing on built-in data: no download, a few minutes.

    Example:

    - `sfumato quickstart --out first-look`
    """
    folder = out or Path("quickstart-tiny" if tiny else "quickstart")
    changes, only = (_TINY, _TINY_METHODS) if tiny else ((), ())
    with resources.as_file(resources.files("sfumato.study").joinpath("quickstart.yaml")) as path:
        page = run_and_report(
            path,
            folder,
            changes,
            only,
            workers=workers,
            threads=threads,
            quiet=quiet,
            verbose=verbose,
            rehearse=not tiny,  # timing its steps would take as long as they do
        )
    if tiny:
        print_line("Tiny: one epoch, one seed, 100 test images. These numbers decide nothing.")
    print_line("Next: sfumato new my-study --data FOLDER writes one for your own images.")
    if page is not None:
        open_page(page, open_report)


def new(
    name: Annotated[str, typer.Argument(help="Name of the study; NAME.yaml is written.")],
    data: Annotated[
        Path,
        typer.Option(help="Folder of images: one folder per class, or train/ and test/ of them."),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write; NAME.yaml by default.")] = None,
) -> None:
    """Look at a folder of images and write a study file for it, with comments.

    Example:

    - `sfumato new my-study --data photos`
    """
    from sfumato.cli.new_study import look_at_folder, remarks, study_text
    from sfumato.engine import ConfigError

    path = out or Path(f"{name}.yaml")
    if path.exists():
        raise ConfigError(f"{path}: exists already; choose another name, or --out")
    facts = look_at_folder(data)
    text = study_text(Path(name).name, str(data), facts)
    write_text(path, text)
    for line in remarks(str(data), facts):
        print_line(line)
    print_place("Study", path)
    print_line(f"Next: sfumato check {path}, then sfumato run {path}")


def run(
    study: StudyFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report; runs/NAME by default.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this method; repeatable.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds instead of the file's, as 0,1 or 0-4.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of every run; short for train.epochs=N.", min=0)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and stop; nothing is written.")
    ] = False,
    data: DataRoot = None,
    workers: Workers = None,
    threads: Threads = None,
    ray: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address, or 'auto'.")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run a study file: every method with every seed, then the report. Resumes if interrupted.

    Exit status: 0 all runs have results, 1 some failed, 2 the study can't be run.

    Examples:

    - `sfumato run studies/quickstart.yaml --out runs/first`
    - `sfumato run study.yaml train.epochs=5 --only ACLS --seeds 0-2 --dry-run`
    """
    from sfumato.study.config import parse_seeds

    set_data_root(data)
    changes = list(overrides or [])
    if seeds is not None:
        _refuse_twice("--seeds", "seeds", changes)
        changes.append(f"seeds={parse_seeds(seeds)}")
    if epochs is not None:
        _refuse_twice("--epochs", "train.epochs", changes)
        changes.append(f"train.epochs={epochs}")
    page = run_and_report(
        study,
        out,
        changes,
        only or [],
        workers=workers,
        threads=threads,
        ray=ray,
        dry_run=dry_run,
        quiet=quiet,
        verbose=verbose,
    )
    if page is not None:
        folder = out or page.parent.parent.relative_to(Path.cwd())
        print_line(f"Next: sfumato runs {folder} lists the runs that compare takes.")


def _refuse_twice(option: str, key: str, changes: list[str]) -> None:
    """Raise where a key is set by an option and by its name, of which one would be ignored."""
    from sfumato.engine import ConfigError

    for change in changes:
        if change.partition("=")[0].strip() == key:
            raise ConfigError(f"{option} and {change} both set {key}: keep one of them")


def check(
    study: StudyFile,
    overrides: Overrides = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="Load the data, build the networks, push a batch through each method.",
        ),
    ] = True,
    data: DataRoot = None,
) -> None:
    """Check a study file, its data, devices and methods, without training anything.

    Modules that the study names are imported; `--no-probe` does no more than that.

    Example:

    - `sfumato check study.yaml --data ~/sets`
    """
    from sfumato.study import load_study
    from sfumato.study.config import same_methods
    from sfumato.study.planning import check_study

    set_data_root(data)
    content = load_study(study, overrides or [])
    with busy("Loading the data, and pushing a batch through each method", show=probe):
        runs = check_study(content, probe=probe)
    print_line(f"{study}: {len(content.methods)} methods, {len(runs)} runs, no mistakes found")
    for names in same_methods(runs):
        said = " and ".join(repr(name) for name in names)
        print_line(
            f"Note: {said} are the same method under several names; their numbers are equal."
        )
    print_line(f"Next: sfumato run {study}")


def schema(
    out: Annotated[Path | None, typer.Option(help="File to write; standard output else.")] = None,
) -> None:
    """Write the JSON schema of study files, with which editors complete and check them.

    Example:

    - `sfumato schema --out study.schema.json`
    """
    from sfumato.study.schema import schema_text

    if out is None:
        say_file(schema_text())
    else:
        write_text(out, schema_text())
        print_place("Schema", out)


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that `sfumato run` wrote; several are merged.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the page (FOLDER/report), or file of the other formats."),
    ] = None,
    form: Annotated[
        Literal["html", "markdown", "csv", "latex"],
        typer.Option("--format", help="html writes the page; the others print one table."),
    ] = "html",
    verbose: Verbose = False,
) -> None:
    """Write the report of a study, or of several merged, again from their result files.

    Examples:

    - `sfumato report runs/first`
    - `sfumato report runs/a runs/b --format csv --out ab.csv`
    """
    if form == "html":
        show_report(folders, out, verbose=verbose)
        return
    from sfumato.report import compare_methods, read_studies
    from sfumato.report.export import FORMATS, write_table
    from sfumato.report.read import naming_folders

    with naming_folders(folders):
        findings = compare_methods(read_studies(folders))
        if out is None:
            say_file(FORMATS[form](findings))
        else:
            write_table(findings, form, out)
