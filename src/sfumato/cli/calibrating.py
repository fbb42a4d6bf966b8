"""The command `calibrate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sfumato.cli.prediction_options import (
    BadRow,
    Classes,
    IgnoreIndex,
    Labels,
    OnBadRow,
    Scores,
    reading_of,
)
from sfumato.cli.shared import console, say_where


def calibrate(
    file: Annotated[Path, typer.Argument(help="Held-out predictions with labels, as for audit.")],
    out: Annotated[Path, typer.Option(help="The calibrator to write.")] = Path("calibrator.json"),
    labels: Labels = None,
    kind: Scores = None,
    classes: Classes = None,
    on_bad_row: OnBadRow = BadRow.stop,
    ignore_index: IgnoreIndex = None,
    methods: Annotated[
        str | None, typer.Option(help="Which to try, with commas; all where left out.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Parts of the cross-validation.", min=2)] = 5,
    seed: Annotated[int, typer.Option(help="Of the parts.")] = 0,
    onnx: Annotated[
        Path | None, typer.Option(help="A model to append the calibrator to, as a new output.")
    ] = None,
    onnx_output: Annotated[
        str | None, typer.Option(help="The model's output with the scores, if it has several.")
    ] = None,
    onnx_out: Annotated[
        Path | None, typer.Option(help="The model to write; MODEL-calibrated.onnx if left out.")
    ] = None,
) -> None:
    """Find what makes the probabilities of a model honest, and write it where it can be used.

    Fits temperature, spline, vector, isotonic and matrix scaling by cross-validation, says which to
    use and why, and writes a small JSON for `sfumato.predictions.load_calibrator` and any other
    language. Never makes the likelihood of the given predictions worse.

    Example: `sfumato calibrate validation.npz --out calibrator.json --onnx model.onnx`
    """
    import torch

    from sfumato.engine.evaluation.calibrate import METHODS, append_calibrator, calibrate_file
    from sfumato.engine.runs.prediction_files import PredictionFileError

    torch.set_num_threads(1)  # many small fits: threads would wait for each other, busily
    tried = METHODS if methods is None else tuple(methods.split(","))
    if unknown := sorted(set(tried) - set(METHODS)):
        raise PredictionFileError(f"--methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    _check_outputs(out, onnx, onnx_output, onnx_out)
    reading = reading_of(kind, labels, classes, on_bad_row, ignore_index=ignore_index)
    found, read = calibrate_file(file, reading, methods=tried, folds=folds, seed=seed)
    console.print(_table(found.report))
    for line in _sentences(found.report, found.uniform):
        console.print(Text(line), soft_wrap=True)
    found.save(out)
    say_where("Calibrator", out)
    if onnx is not None:
        path = onnx_out or onnx.with_name(f"{onnx.stem}-calibrated.onnx")
        written = append_calibrator(found, read, onnx, path, onnx_output)
        say_where("Model", written["path"])
        console.print(_agreement(written["difference"]))


def _check_outputs(
    out: Path, onnx: Path | None, onnx_output: str | None, onnx_out: Path | None
) -> None:
    """Refuse before the fit what could not be written after it, or would not be used."""
    from sfumato.engine.runs.prediction_files import PredictionFileError

    if onnx is None:
        for name, value in (("--onnx-output", onnx_output), ("--onnx-out", onnx_out)):
            if value is not None:
                raise PredictionFileError(f"{name} needs --onnx MODEL: add that, or leave it out")
    for name, path, example in (
        ("--out", out, "calibrator.json"),
        ("--onnx-out", onnx_out, "model-calibrated.onnx"),
    ):
        if path is not None and path.is_dir():
            raise PredictionFileError(
                f"{name} {path}: is a folder; name a file in it, such as {path / example}"
            )


def _table(report: dict[str, Any]) -> Table:
    table = Table("method", "NLL", "ECE", "NLL above the best", box=None, pad_edge=False)
    for name, row in report["table"].items():
        above = f"{row['above_best']:.4f} +- {row['standard_error']:.4f}"
        above = above if 0 < row["above_best"] < math.inf else "-"
        marked = f"{name} *" if name == report["chosen"] else name
        table.add_row(marked, f"{row['nll']:.4f}", f"{100 * row['ece']:.2f} %", above)
    return table


def _sentences(report: dict[str, Any], uniform: float | None) -> list[str]:
    lines = [f"Use {report['chosen']}: {report['reason']}."]
    if report["zero_labels"]:
        lines.append(
            f"{report['zero_labels']:,} of {report['samples']:,} labels had probability 0: the "
            "model rules out what happens. Its likelihood without a calibrator is 0."
        )
    if uniform is not None:
        lines.append(
            f"Probabilities are mixed with {100 * uniform:.2g} % of the uniform one first."
        )
    lines += [f"Not tried: {name} ({why})." for name, why in report["skipped"].items()]
    return lines + [
        f"Warning: {each}" for each in report["warnings"] if "probability 0" not in each
    ]


def _agreement(difference: float | None) -> str:
    if difference is None:
        return "Not checked: onnxruntime is not installed."
    return f"onnxruntime gives the same probabilities, within {difference:.1e}."
