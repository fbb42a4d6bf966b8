"""Commands about results and data: compare, analyse, corrupt, list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from sfumato._core.text import print_line, print_place
from sfumato.cli.predictions import (
    Classes,
    IgnoreIndex,
    Labels,
    OnBadRow,
    Scores,
    Split,
    chosen_split,
    reading_of,
)
from sfumato.cli.shared import DataRoot, Quiet, busy, check_folder, console, set_data_root
from sfumato.engine.config.kinds import Kind, Plural

if TYPE_CHECKING:
    from sfumato.data import ArrayDataset


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, STUDY:METHOD:SEED, or files of predictions."),
    ],
    split: Split = None,
    labels: Labels = None,
    kind: Scores = None,
    classes: Classes = None,
    on_bad_row: OnBadRow = "stop",
    ignore_index: IgnoreIndex = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=1)] = 1000,
    quiet: Quiet = False,
) -> None:
    """Compare runs with the first one on the same samples: paired bootstrap, every metric.

    Says how far the difference of these trained networks is luck of the test images; whether the
    methods differ takes several seeds, as in a report.

    Example:

    - `sfumato compare "quickstart:cross entropy:0" quickstart:ACLS:0`
    """
    from sfumato._core.text import progress_bar
    from sfumato.auditing.columns import PredictionFileError
    from sfumato.auditing.compare import compare_files, read_compared
    from sfumato.engine.runs.directory import title_of_run
    from sfumato.report.export import comparison_table

    if len(runs) < 2:
        raise PredictionFileError("compare needs at least two runs or files of predictions")
    runs = [_named_run(path) for path in runs]
    reading = reading_of(kind, labels, classes, on_bad_row, ignore_index=ignore_index)
    stored = chosen_split(split, runs)
    with progress_bar("comparing", 2 * len(runs) - 1, show=not quiet) as bar:
        files = []
        for path in runs:
            files.append(read_compared(path, stored, title_of_run(path), reading))
            bar.advance(path.name)
        found = compare_files(files, resamples=resamples, bar=bar)
    for compared in found:
        console.print(comparison_table(compared))


def _named_run(path: Path) -> Path:
    """Return the run's folder for STUDY:METHOD:SEED; any other path as it is."""
    from sfumato.auditing.columns import PredictionFileError

    text, colon, seed = str(path).rpartition(":")
    if path.exists() or not colon:
        return path
    for place in (at for at, character in enumerate(text) if character == ":"):
        folder, method = Path(text[:place]), text[place + 1 :]
        if (folder / "study.json").exists():
            for entry in _index(folder):
                if (entry["method"], str(entry["seed"])) == (method, seed):
                    return folder / "runs" / str(entry["run"])
            raise PredictionFileError(
                f"{folder} has no run of {method!r} with seed {seed}; "
                f"'sfumato runs {folder}' lists its runs"
            )
    return path


def _index(folder: Path) -> list[dict[str, Any]]:
    """Read which run is which method and seed."""
    from sfumato._core.files import index_entries

    if not (folder / "study.json").exists():
        raise FileNotFoundError(
            f"{folder} holds no study.json: pass the folder that 'sfumato run' wrote"
        )
    return index_entries(folder)


def runs(
    study: Annotated[Path, typer.Argument(help="Folder that `sfumato run` wrote.")],
) -> None:
    """List the runs of a study: method, seed, state and folder.

    Example:

    - `sfumato runs quickstart`
    """
    table = Table("method", "seed", "state", "folder", box=None, pad_edge=False)
    for entry in _index(study):
        folder = study / "runs" / entry["run"]
        failed = "failed" if (folder / "error.txt").exists() else "unfinished"
        state = "finished" if (folder / "metrics.json").exists() else failed
        table.add_row(
            *(Text(str(each)) for each in (entry["method"], entry["seed"], state)),
            Text(entry["run"]),
        )
    console.print(table)
    print_line(f"Folders are in {study / 'runs'}; compare takes {study}:METHOD:SEED too.")


def export(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `sfumato run` wrote.")],
    to: Annotated[
        Literal["mlflow", "wandb", "tensorboard"], typer.Option(help="Tracker to write to.")
    ],
    store: Annotated[
        str | None,
        typer.Option(help="MLflow's URI (sqlite:///mlflow.db), or the folder of the others."),
    ] = None,
) -> None:
    """Export finished runs and the report of a study to a tracker's own store.

    What the store has is left alone. W&B is written offline; `wandb sync` uploads it.

    Example:

    - `sfumato export quickstart --to mlflow`
    """
    from sfumato.integrations.trackers import STORES, export_runs
    from sfumato.report.read import naming_folders

    for folder in folders:
        with naming_folders([folder]):
            found = export_runs(folder, to, store)
        print_line(f"{folder}: {found.new} exported to {to}, {found.known} were there already.")
    print_line(f"Store: {STORES[to] if store is None else store}")


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
    data: DataRoot = None,
    modules: Annotated[
        Path | None,
        typer.Option(help="Folder of the modules that runs name by import path; executes them."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show why trained networks behave as they do: Hessian, loss landscape, feature maps.

    Examples:

    - `sfumato analyse quickstart`
    - `sfumato analyse RUN RUN --only loss_landscape`
    """
    from sfumato.engine.evaluation.analyses import FULL_EFFORT, Effort, analyse as analyse_runs
    from sfumato.report.page import write_analysis_page

    set_data_root(data)
    check_folder(out)
    effort = FULL_EFFORT if full else Effort()
    analyse_runs(
        runs, out, effort=effort, only=only or (), modules=modules, show=not quiet, say=print_line
    )
    print_place("Page", write_analysis_page(out))


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
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Write a corrupted copy of a data set: 15 types, 5 severities, in the standard layout.

    Examples:

    - `sfumato corrupt test.npz test-c`
    - `sfumato corrupt "{name: scenes, test: 500}" out`
    """
    from sfumato._core.text import progress_bar
    from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, write_corrupted
    from sfumato.engine import ConfigError

    clean = _read_clean(data)
    if clean.vocabulary is not None:
        raise ConfigError("data: these are texts, and corruptions are of images")
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if extra else CORRUPTIONS
    with progress_bar("corrupting", len(names) * len(SEVERITIES), show=not quiet) as bar:
        write_corrupted(
            out,
            clean.images[:],
            clean.labels[:],
            layout=layout,
            classes=clean.classes,
            names=names,
            seed=seed,
            progress=lambda name, severity: bar.advance(f"{name} {severity}"),
        )
    print_place(f"{len(clean)} images x {len(names)} types x 5 severities", out)


def list_components(
    what: Annotated[
        Literal["all", Plural, "train", "evaluate"],
        typer.Argument(help="Kind of component, or section of a study file."),
    ] = "all",
    name: Annotated[str | None, typer.Argument(help="Component whose options to show.")] = None,
    preview: Annotated[
        str | None, typer.Option(help="Write a picture of this data source (scenes).")
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the preview.")] = Path("preview.png"),
) -> None:
    """Show what a study file can name; with a name, its options and their defaults.

    Examples:

    - `sfumato list losses`
    - `sfumato list losses acls`
    - `sfumato list train`
    """
    if preview is not None:
        _preview(preview, out)
        return
    with busy("Looking up what a study can name"):
        from sfumato.engine import ConfigError
        from sfumato.engine.config.kinds import PLURALS
        from sfumato.study.schema import component_options, section_keys

    kinds = {plural: kind for kind, plural in PLURALS.items()}
    if name is not None:
        if what not in kinds:
            raise typer.BadParameter(f"{what} has no names: give a kind first, as in list losses")
        try:
            options = component_options(kinds[what], name)
        except (ValueError, TypeError) as error:
            raise ConfigError(str(error)) from None
        _show_rows(f"{what} {name}", "option", options)
    elif what in ("train", "evaluate", "predict"):
        _show_rows(what, "key", section_keys(what))
    else:
        for plural, kind in kinds.items():
            if what in ("all", plural) and plural != "predict":
                _show_names(plural, kind)
        print_line("Options: sfumato list KIND NAME. Keys: sfumato list train|evaluate|predict.")


def _show_names(plural: str, kind: Kind) -> None:
    from sfumato.engine.config.kinds import NAME_KINDS
    from sfumato.study.schema import summaries

    console.print(Text(plural, style="bold"))
    if kind in NAME_KINDS:  # the names say it
        console.print(Text(", ".join(summaries(kind))))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        for name, line in summaries(kind).items():
            table.add_row(Text(name, style="cyan"), Text(line))
        console.print(table)
    console.print()


def _show_rows(title: str, first: str, rows: list[tuple[str, str, str]]) -> None:
    console.print(Text(title, style="bold"))
    if not rows:
        console.print("It has no options.")
        return
    table = Table(first, "default", "meaning", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for key, default, meaning in rows:
        table.add_row(Text(key, style="cyan"), Text(default), Text(meaning))
    console.print(table)


def _read_clean(data: str) -> ArrayDataset:
    from sfumato._core.yaml_files import parse_yaml
    from sfumato.data import load_data, read_npz
    from sfumato.engine import ConfigError

    try:
        if data.endswith(".npz"):
            return read_npz(data)
        return load_data(parse_yaml(data, by_hand=True)).test
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data: {error}") from None


def _preview(source: str, out: Path) -> None:
    if source != "scenes":
        raise typer.BadParameter(f"only 'scenes' has a preview, got {source!r}")
    from sfumato.data import scenes

    scenes.preview(out)
    print_place("Preview", out)
