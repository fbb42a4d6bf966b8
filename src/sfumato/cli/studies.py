"""Commands about studies: run them, check them, report them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from sfumato.cli.pages import OpenPage, open_page
from sfumato.cli.shared import DataRoot, Quiet, say_line, say_where, set_data_root
from sfumato.cli.study_runs import run_and_report, show_report

Workers = Annotated[
    int | None, typer.Option(help="Runs at a time; one per core, up to four, by default.", min=1)
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads of each run; cores shared out among four by default.", min=1),
]
StudyFile = Annotated[Path, typer.Argument(help="A study file (YAML).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="As train.epochs=5.")
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
    quiet: Quiet = False,
) -> None:
    """Compare ways of smoothing on built-in data: no download, a few minutes.

    Example: `sfumato quickstart --out first-look`
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
            rehearse=not tiny,  # timing its steps would take as long as they do
        )
    if tiny:
        say_line("Tiny: one epoch, one seed, 100 test images. These numbers decide nothing.")
    say_line("Next: sfumato new my-study --data FOLDER writes such a study for your own images.")
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

    Example: `sfumato new my-study --data photos`
    """
    from sfumato.cli.new_study import look_at_folder, remarks, study_text
    from sfumato.engine import ConfigError

    path = out or Path(f"{name}.yaml")
    if path.exists():
        raise ConfigError(f"{path}: exists already; choose another name, or --out")
    facts = look_at_folder(data)
    text = study_text(Path(name).name, str(data), facts)
    path.write_text(text, encoding="utf-8")
    for line in remarks(str(data), facts):
        say_line(line)
    say_where("Study", path)
    say_line(f"Next: sfumato check {path}, then sfumato run {path}")


def run(
    study: StudyFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report; runs/NAME by default.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this method; may be given several times.")
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
    quiet: Quiet = False,
) -> None:
    """Run a study file: every method with every seed, then the report. Resumes if interrupted.

    Exit status: 0 all runs have results, 1 some failed, 2 the study can't be run.

    Example: `sfumato run studies/quickstart.yaml --out runs/first`,
    `sfumato run study.yaml train.epochs=5 loss.smoothing=0.1 --only ACLS --seeds 0-2 --dry-run`
    """
    from sfumato.study import parse_seeds

    set_data_root(data)
    changes = list(overrides or [])
    if seeds is not None:
        _refuse_twice("--seeds", "seeds", changes)
        changes.append(f"seeds={parse_seeds(seeds)}")
    if epochs is not None:
        _refuse_twice("--epochs", "train.epochs", changes)
        changes.append(f"train.epochs={epochs}")
    run_and_report(
        study,
        out,
        changes,
        only or [],
        workers=workers,
        threads=threads,
        ray=ray,
        dry_run=dry_run,
        quiet=quiet,
    )


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

    Example: `sfumato check study.yaml --data ~/sets`
    """
    from sfumato.study import load_study
    from sfumato.study.config import same_methods
    from sfumato.study.preview import check_study

    set_data_root(data)
    content = load_study(study, overrides or [])
    runs = check_study(content, probe=probe)
    say_line(f"{study}: {len(content.methods)} methods, {len(runs)} runs, no mistakes found")
    for names in same_methods(runs):
        said = " and ".join(repr(name) for name in names)
        say_line(f"Note: {said} are the same method under several names; their numbers are equal.")


def schema(
    out: Annotated[Path | None, typer.Option(help="File to write; standard output else.")] = None,
) -> None:
    """Write the JSON schema of study files, with which editors complete and check them.

    Example: `sfumato schema --out study.schema.json`
    """
    from sfumato.study.schema import schema_text

    if out is None:
        typer.echo(schema_text(), nl=False)
    else:
        out.write_text(schema_text(), encoding="utf-8")
        say_where("Schema", out)


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
) -> None:
    """Write the report of a study, or of several merged, again from their result files.

    Example: `sfumato report runs/first`, `sfumato report runs/a runs/b --format csv --out ab.csv`
    """
    if form == "html":
        show_report(folders, out)
        return
    from sfumato.report import compare_methods, read_studies
    from sfumato.report.export import FORMATS, write_table
    from sfumato.report.read import understood

    with understood(folders):
        findings = compare_methods(read_studies(folders))
        if out is None:
            typer.echo(FORMATS[form](findings), nl=False)
        else:
            write_table(findings, form, out)
