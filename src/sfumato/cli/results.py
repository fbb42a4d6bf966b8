"""Commands about what networks predict and why: compare, analyse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.prediction_options import (
    BadRow,
    Classes,
    IgnoreIndex,
    Labels,
    OnBadRow,
    Scores,
    Split,
    chosen_split,
    reading_of,
)
from sfumato.cli.shared import (
    DataRoot,
    Quiet,
    check_folder,
    console,
    say_where,
    set_data_root,
)


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or files of predictions; two or more.")
    ],
    split: Split = None,
    labels: Labels = None,
    kind: Scores = None,
    classes: Classes = None,
    on_bad_row: OnBadRow = BadRow.stop,
    ignore_index: IgnoreIndex = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=1)] = 1000,
    quiet: Quiet = False,
) -> None:
    """Compare runs with the first one on the same samples: paired bootstrap, every metric.

    Says how far the difference of these trained networks is luck of the test images; whether the
    methods differ takes several seeds, as in a report.

    Example: `sfumato compare runs/first/runs/25403a2604ab runs/first/runs/54db9936655c`
    """
    from sfumato.engine.evaluation.audit_comparisons import compare_files, read_compared
    from sfumato.engine.runs.prediction_files import PredictionFileError
    from sfumato.engine.runs.progress import progress_bar
    from sfumato.engine.runs.titles import title_of_run
    from sfumato.report.table import comparison_table

    if len(runs) < 2:
        raise PredictionFileError("compare needs at least two runs or files of predictions")
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

    Example: `sfumato analyse quickstart`, `sfumato analyse RUN RUN --only loss_landscape`
    """
    from sfumato.engine.evaluation.analysed_runs import analyse as analyse_runs
    from sfumato.engine.evaluation.analyses import FULL_EFFORT, Effort
    from sfumato.report.analysis_page import write_analysis_page

    set_data_root(data)
    check_folder(out)
    effort = FULL_EFFORT if full else Effort()
    analyse_runs(runs, out, effort=effort, only=only or (), modules=modules, show=not quiet)
    say_where("Page", write_analysis_page(out))
