"""The command line: `sfumato quickstart | run | report | compare | audit | ...`, see `--help`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sfumato import __version__

if TYPE_CHECKING:
    from sfumato.data import ArrayDataset

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Make neural classifiers say what they know. Start with `sfumato quickstart`.",
)
console = Console()

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Workers = Annotated[
    int | None, typer.Option(help="Runs at a time; one per core, up to four, by default.", min=1)
]

StudyFile = Annotated[Path, typer.Argument(help="A study file (YAML).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="As train.epochs=5.")
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        console.print(f"sfumato {__version__}")
        raise typer.Exit


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("quickstart"),
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Compare ways of smoothing on built-in data: no download, a few minutes.

    Example: `sfumato quickstart --out /tmp/first-look`
    """
    with resources.as_file(resources.files("sfumato.study").joinpath("quickstart.yaml")) as path:
        _run_and_report(path, out, workers, quiet)


@app.command("run")
def run_command(
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
        int | None, typer.Option(help="Epochs of every run; short for train.epochs=N.", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and stop; nothing is written.")
    ] = False,
    workers: Workers = None,
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

    changes = list(overrides or [])
    changes += [] if seeds is None else [f"seeds={parse_seeds(seeds)}"]
    changes += [] if epochs is None else [f"train.epochs={epochs}"]
    _run_and_report(study, out, workers, quiet, changes, only or [], ray, dry_run)


@app.command()
def check(study: StudyFile, overrides: Overrides = None) -> None:
    """Check a study file without running anything.

    Example: `sfumato check study.yaml`
    """
    from sfumato.study import load_study, plan

    content = load_study(study, overrides or [])
    runs = plan(content)
    found = f"{study}: {len(content.methods)} methods, {len(runs)} runs, no mistakes found"
    console.print(found, soft_wrap=True)


@app.command()
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
        console.print(f"Schema: [bold]{out}")


@app.command()
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
        _show(folders, out)
        return
    from sfumato.report import analyse, read_studies
    from sfumato.report.export import FORMATS, write_table

    findings = analyse(read_studies(folders))
    if out is None:
        typer.echo(FORMATS[form](findings), nl=False)
    else:
        write_table(findings, form, out)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or files of predictions; two or more.")
    ],
    split: Annotated[str, typer.Option(help="Which stored predictions of a run.")] = "test",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=1)] = 1000,
) -> None:
    """Compare runs with the first one on the same samples: paired bootstrap, every metric.

    Says how far the difference of these trained networks is luck of the test images; whether the
    methods differ takes several seeds, as in a report.

    Example: `sfumato compare runs/first/runs/25403a2604ab runs/first/runs/54db9936655c`
    """
    from sfumato.engine.audit import compare_files
    from sfumato.engine.prediction_files import PredictionFileError, read_run_predictions
    from sfumato.report.read import run_label
    from sfumato.report.table import comparison_table

    if len(runs) < 2:
        raise PredictionFileError("compare needs at least two runs or files of predictions")
    files = [read_run_predictions(path, split, run_label(path)) for path in runs]
    for compared in compare_files(files, resamples=resamples):
        console.print(comparison_table(compared))


@app.command()
def audit(
    files: Annotated[
        list[Path], typer.Argument(help="Predictions: .npz, .safetensors, .csv or .parquet.")
    ],
    validation: Annotated[
        list[Path] | None,
        typer.Option(help="Held-out predictions, one per file: adds temperature scaling."),
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=1)] = 1000,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("audit"),
) -> None:
    """Say whether saved predictions can be trusted: over- or underconfident, where, how sure.

    Files hold `logits` or `probs` and `labels` (tables: `prob_<class>` or `logit_<class>` columns
    and `label`), optionally `index` and `group`. Several files are compared with the first.

    Example: `sfumato audit preds.npz`, `sfumato audit old.csv new.csv --out audit-2`
    """
    from sfumato.engine.audit import audit as audit_files
    from sfumato.engine.prediction_files import read_predictions
    from sfumato.report.audit import audit_tables, write_audit

    held_out = [read_predictions(path) for path in validation or []]
    found = audit_files([read_predictions(p) for p in files], held_out, resamples=resamples)
    for table in audit_tables(found):
        console.print(table)
    console.print(f"Report: [bold]{write_audit(found, out)}")


@app.command()
def analyse(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or studies (their first seeds).")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("analysis"),
    only: Annotated[
        list[str] | None, typer.Option(help="An analysis by name; repeat for several.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The papers' effort: hours rather than minutes.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show why trained networks behave as they do: Hessian, loss landscape, feature maps.

    Example: `sfumato analyse quickstart`, `sfumato analyse RUN RUN --only loss_landscape`
    """
    from sfumato.engine.analyse import analyse as analyse_runs
    from sfumato.engine.analyses import FULL_EFFORT, Effort
    from sfumato.report.analysis import write_analysis_page

    effort = FULL_EFFORT if full else Effort()
    analyse_runs(runs, out, effort=effort, only=only or (), show=not quiet)
    console.print(f"Page: [bold]{write_analysis_page(out)}")


@app.command()
def corrupt(
    data: Annotated[
        str,
        typer.Argument(help="An .npz file of images and labels, or a data spec (its test set)."),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    layout: Annotated[
        Literal["arrays", "folders"],
        typer.Option(help="arrays as CIFAR-10-C, or folders as ImageNet-C."),
    ] = "arrays",
    extra: Annotated[bool, typer.Option("--extra", help="Also the four extra types.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random damage.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Write a corrupted copy of a data set: 15 types, 5 severities, in the standard layout.

    Example: `sfumato corrupt test.npz test-c`, `sfumato corrupt "{name: scenes, test: 500}" out`
    """
    from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, write_corrupted
    from sfumato.engine.progress import progress_bar

    clean = _read_clean(data)
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if extra else CORRUPTIONS
    with progress_bar("corrupting", len(names) * len(SEVERITIES), show=not quiet) as bar:
        write_corrupted(
            out,
            clean.images,
            clean.labels,
            layout=layout,
            classes=clean.classes,
            names=names,
            seed=seed,
            progress=lambda name, severity: bar.advance(f"{name} {severity}"),
        )
    console.print(f"{len(clean)} images x {len(names)} types x 5 severities: [bold]{out}")


@app.command("list")
def list_command(
    what: Annotated[
        Literal["all", "data", "models", "losses", "augmentations", "inputs"],
        typer.Argument(help="What to list."),
    ] = "all",
    preview: Annotated[
        str | None, typer.Option(help="Write a picture of this data source (scenes).")
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the preview.")] = Path("preview.png"),
) -> None:
    """Show what a study file can name, with parameters and defaults.

    Example: `sfumato list losses`, `sfumato list data --preview scenes --out scenes.png`
    """
    from sfumato.study.catalogue import catalogue

    if preview is not None:
        _preview(preview, out)
        return
    for kind, entries in catalogue().items():
        if what in ("all", kind):
            table = Table("name", "parameters", title=kind, title_justify="left")
            for name, text in entries.items():
                table.add_row(f"[bold]{name}", text)
            console.print(table)


def main() -> None:
    """Entry point: what a user did wrong is one readable message, not a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, OSError) as error:
        if not _is_expected(error):
            raise
        shown = Text.assemble(("error: ", "bold red"), str(error))
        Console(stderr=True, soft_wrap=True).print(shown, highlight=False)
        raise SystemExit(2) from None


def _is_expected(error: Exception) -> bool:
    """Whether a mistake in the user's files, as opposed to one in the program."""
    from sfumato.engine import ConfigError
    from sfumato.engine.prediction_files import PredictionFileError
    from sfumato.study import StorageError

    mistakes = ConfigError | PredictionFileError | StorageError
    return isinstance(error, mistakes | FileNotFoundError | PermissionError)


def _run_and_report(
    path: Path,
    out: Path | None,
    workers: int | None,
    quiet: bool,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    ray: str | None = None,
    dry_run: bool = False,
) -> None:
    from sfumato.study import default_workers, load_study, run_study
    from sfumato.study.launched import launched_rank
    from sfumato.study.overview import plan_table

    study = load_study(path, overrides)
    folder = out or Path("runs") / study.name
    count = workers or default_workers()
    if not launched_rank():
        console.print(plan_table(study, folder, only=only, workers=count, probe=not quiet))
    if dry_run:
        return
    outcome = run_study(
        study,
        folder,
        workers=count,
        only=only,
        ray=ray,
        show=not quiet,
        announce=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
    )
    if launched_rank():  # under torchrun the first process reports for all
        return
    _show([outcome.folder], None)
    if outcome.failed:
        names = "; ".join(f"{run.method}, seed {run.seed}" for run in outcome.failed)
        console.print(f"Without results: {names}", markup=False, style="red")
        raise typer.Exit(1)


def _show(folders: list[Path], out: Path | None) -> None:
    from sfumato.report import analyse, read_studies, recommend, write_report
    from sfumato.report.table import results_tables

    findings = analyse(read_studies(folders))
    for table in results_tables(findings):
        console.print(table)
    console.print(Text(recommend(findings).text))
    console.print(f"Report: [bold]{write_report(folders, out)}")


def _read_clean(data: str) -> ArrayDataset:
    import yaml

    from sfumato.data import load_data, read_npz
    from sfumato.engine import ConfigError

    try:
        if data.endswith(".npz"):
            return read_npz(data)
        return load_data(yaml.safe_load(data)).test
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"data: {error}") from None


def _preview(source: str, out: Path) -> None:
    if source != "scenes":
        raise typer.BadParameter(f"only 'scenes' has a preview, got {source!r}")
    from sfumato.data import scenes

    scenes.preview(out)
    console.print(f"Preview: [bold]{out}")
