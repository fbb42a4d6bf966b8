"""Commands about saved predictions: audit, calibrate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from sfumato._core.text import print_line, print_place
from sfumato.cli.shared import Quiet, Verbose, busy, console

if TYPE_CHECKING:
    from sfumato.auditing.files import Reading
    from sfumato.auditing.judge import Found, Target


def _mistake(text: str) -> ValueError:
    """The error about files and options of an audit; imported late, as all that needs torch."""
    from sfumato.auditing.columns import PredictionFileError

    return PredictionFileError(text)


Labels = Annotated[
    Path | None, typer.Option(help="File of the labels (.npy, .pt), for scores in such a file.")
]
Kind = Literal["probs", "logits"]
Scores = Annotated[
    Kind | None, typer.Option(help="Kind of the scores, if their name doesn't say it.")
]
AnyLogits = Annotated[
    bool, typer.Option("--any-logits", help="Accept logits that look like probabilities.")
]
Classes = Annotated[
    str | None, typer.Option(help="Names of the classes in their order, with commas.")
]
BadRow = Literal["stop", "skip"]
OnBadRow = Annotated[
    BadRow, typer.Option(help="Stop at the first bad row, or skip and count them.")
]
IgnoreIndex = Annotated[int | None, typer.Option(help="Label of entries to leave out.")]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option("--columns", help='Names of columns: "label=truth probs=cat,dog". Repeatable.'),
]
Split = Annotated[
    str | None, typer.Option(help="Split of a run's stored predictions; test if left out.")
]


def reading_of(
    kind: Kind | None,
    labels: Path | None,
    classes: str | None,
    on_bad_row: BadRow,
    *,
    ignore_index: int | None = None,
    unlabelled: bool = False,
    any_logits: bool = False,
    columns: Sequence[str] | None = None,
) -> Reading:
    """Return how to read files, from the options of a command."""
    from sfumato.auditing.files import Reading

    return Reading(
        kind=kind,
        labels=labels,
        classes=None if classes is None else tuple(name.strip() for name in classes.split(",")),
        on_bad_row=on_bad_row,
        ignore_index=ignore_index,
        unlabelled=unlabelled,
        any_logits=any_logits,
        columns=_columns(columns or ()),
    )


def _columns(told: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The names of columns by what they hold: "label=truth probs=cat,dog"."""
    from sfumato.auditing.columns import TOLD

    found = {}
    # Names may hold blanks: a new one begins at the next word with an equals sign.
    for each in (part for text in told for part in re.split(r"\s+(?=\w+=)", text.strip())):
        key, _, names = each.partition("=")
        if key not in TOLD or not names:
            raise _mistake(
                f"--columns {each!r}: write WHAT=NAME, such as label=truth or probs=cat,dog; WHAT "
                f"is one of {', '.join(TOLD)}"
            )
        found[key] = tuple(name.strip() for name in names.split(","))
    return found


def options_of(reading: Reading) -> dict[str, str]:
    """The options of a command that make it read files like this, by name."""
    given = {
        "--labels": reading.labels,
        "--kind": reading.kind,
        "--classes": None if reading.classes is None else ",".join(reading.classes),
        "--on-bad-row": None if reading.on_bad_row == "stop" else reading.on_bad_row,
        "--ignore-index": reading.ignore_index,
        "--columns": " ".join(f"{key}={','.join(names)}" for key, names in reading.columns.items())
        or None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def chosen_split(split: str | None, arguments: Sequence[str | Path]) -> str:
    """The split to read of runs; refused where no argument is a run that has several."""
    if split is None:
        return "test"
    if not any((Path(each) / "predictions").is_dir() for each in arguments):
        raise _mistake(
            f"--split {split}: names stored predictions of a run, and no run's folder with such is "
            "among the files; leave it out"
        )
    return split


def audit(
    files: Annotated[
        list[str],
        typer.Argument(help="One model each: a file, a quoted pattern, a folder, or a run's."),
    ],
    labels: Labels = None,
    kind: Scores = None,
    any_logits: AnyLogits = False,
    classes: Classes = None,
    on_bad_row: OnBadRow = "stop",
    ignore_index: IgnoreIndex = None,
    columns: ColumnNames = None,
    calibrator: Annotated[
        Path | None,
        typer.Option(help="A calibrator, as calibrate writes it: shows before and after."),
    ] = None,
    unlabelled: Annotated[
        bool,
        typer.Option("--unlabelled", help="Say which accuracy to expect, without labels."),
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Read all files as shards of one model.")
    ] = False,
    split: Split = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(help="Held-out predictions, one per model: adds temperature scaling."),
    ] = None,
    target_risk: Annotated[
        float | None, typer.Option(help="Error that accepted predictions may have: a threshold.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Probability that the guarantee fails; 0.05 if left out.")
    ] = None,
    escalate_risk: Annotated[
        float | None, typer.Option(help="Error of what is not rejected: a second threshold.")
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="A threshold for each predicted class, too.")
    ] = False,
    most_per_image: Annotated[
        int | None,
        typer.Option(help="Most accepted detections that count per image; 10 if left out.", min=1),
    ] = None,
    by: Annotated[
        Literal["day", "week", "month"] | None,
        typer.Option(help="Periods of the dates in the column time; by their span if left out."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples; 0: no intervals, no comparison.", min=0)
    ] = 1000,
    workers: Annotated[int, typer.Option(help="Processes that read files.", min=1)] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Read files on a Ray cluster: its address, or auto.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("audit"),
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Say whether saved predictions can be trusted, where not, and from which confidence on.

    Reads .npz, .npy (with --labels), .csv, .parquet, .jsonl, .pt and .safetensors: `probs` or
    `logits` with `labels`, columns `prob_<class>` with `label`, or
    `true_label,pred_label,confidence`; optionally `group`, `time` and `index`; --columns names
    others. Several files are compared with the first.

    Examples:

    - `sfumato audit preds.npz --target-risk 0.02`
    - `sfumato audit old.csv new.csv`
    - `sfumato audit "parts/*.parquet" --workers 2`
    """
    import torch

    from sfumato.auditing.page import audit_view, write_audit

    torch.set_num_threads(1)  # many small sums: threads would wait for each other, busily
    reading = reading_of(
        kind,
        labels,
        classes,
        on_bad_row,
        ignore_index=ignore_index,
        unlabelled=unlabelled,
        any_logits=any_logits,
        columns=columns,
    )
    if unlabelled:
        _refuse_with_unlabelled(labels, target_risk, validation, ignore_index)
    found = _audited(
        (files, validation or []),
        _readings(reading, calibrator, validation),
        _target(target_risk, delta, escalate_risk, per_class, most_per_image),
        {"merge": merge, "split": chosen_split(split, [*files, *(validation or [])])},
        {"resamples": resamples, "by": by},
        {"workers": workers, "ray": ray},
        show=not quiet,
    )
    for model in found["models"] if calibrator is not None else ():
        model["layout"] |= {"--calibrator": str(calibrator)}
    is_there = (out / "index.html").exists()
    page = write_audit(found, out)  # first: a reader that stops listening ends the program
    *parts, command = audit_view(found, verbose=verbose)
    for part in parts:
        console.print(part)
    console.print(command, soft_wrap=True)
    print_place("Report (replaced)" if is_there else "Report", page)


def _audited(
    named: tuple[Sequence[str], Sequence[str]],
    readings: Sequence[Reading],
    target: Target | None,
    finding: dict[str, Any],
    settings: dict[str, Any],
    labour: dict[str, Any],
    *,
    show: bool,
) -> Found:
    """Read what was named, judge it, and say where each model came from."""
    from sfumato._core.text import progress_bar
    from sfumato.auditing.judge import audit as audit_files, audit_steps, expect
    from sfumato.auditing.totals import Model
    from sfumato.auditing.workers import find_sources, plan_reading, read_source

    reading, sources = readings[0], find_sources(named[0], **finding)
    held_out = find_sources(named[1], **finding)
    per_class = target is not None and target.per_class
    tried = [(source, each) for source in sources for each in readings]
    plans = plan_reading(
        [source for source, _ in tried],
        per_class=per_class,
        unlabelled=reading.unlabelled,
        **labour,
    ) + plan_reading(held_out, **labour)
    steps = sum(plan.steps for plan in plans) + audit_steps(len(tried), len(held_out))
    with progress_bar("auditing", steps, show=show) as bar:
        ways = [each for _, each in tried] + [reading] * len(held_out)
        read = [
            read_source(plan, way, bar=bar, **labour) for plan, way in zip(plans, ways, strict=True)
        ]
        if reading.unlabelled:
            found = expect([each for each in read if isinstance(each, Model)], settings["by"])
        else:
            found = audit_files(
                read[: len(tried)], read[len(tried) :], target=target, bar=bar, **settings
            )
    for model, (source, _) in zip(found["models"], tried, strict=True):
        model["source"] = list(source.arguments)
        model["reading"] = options_of(reading)
        model["layout"] = {"--merge": ""} if finding["merge"] else {}
        model["layout"] |= {} if finding["split"] == "test" else {"--split": finding["split"]}
    return found


def _readings(
    reading: Reading, calibrator: Path | None, validation: Sequence[str] | None
) -> list[Reading]:
    """Each file as it is; with a calibrator also as that makes it."""
    from sfumato.auditing.calibrate import read_calibrator

    if calibrator is None:
        return [reading]
    if reading.unlabelled or validation:
        other = "--unlabelled" if reading.unlabelled else "--validation"
        raise _mistake(f"--calibrator and {other} can't be together: leave one out")
    return [reading, replace(reading, calibrator=read_calibrator(calibrator))]


def _refuse_with_unlabelled(
    labels: Path | None,
    target_risk: float | None,
    validation: Sequence[str] | None,
    ignore_index: int | None,
) -> None:
    needs_labels = "needs labels, which a guarantee is about: leave it"
    for name, value, why in (
        ("--labels", labels, "gives labels: leave"),
        ("--ignore-index", ignore_index, "names a label: leave it or"),
        ("--target-risk", target_risk, f"{needs_labels} or"),
        ("--validation", validation or None, f"{needs_labels} or"),
    ):
        if value is not None:
            raise _mistake(f"{name} {why} --unlabelled out")


def _target(
    risk: float | None,
    delta: float | None,
    escalate: float | None,
    per_class: bool,
    most: int | None,
) -> Target | None:
    from sfumato.auditing.judge import Target

    if risk is None:
        given = {"--escalate-risk": escalate, "--per-class": per_class or None, "--delta": delta}
        _refuse_without("--target-risk", {**given, "--most-per-image": most})
        return None
    shares = {"--target-risk": risk, "--delta": delta, "--escalate-risk": escalate}
    for name, value in shares.items():
        if value is not None and not 0 < value < 1:
            raise _mistake(f"{name} must be between 0 and 1, got {value:g}")
    if escalate is not None and escalate < risk:
        raise _mistake(f"--escalate-risk must be at least --target-risk {risk:g}, got {escalate:g}")
    found = Target(risk, escalate_risk=escalate, per_class=per_class)
    found = found if delta is None else replace(found, delta=delta)
    return found if most is None else replace(found, most_per_image=most)


def _refuse_without(needed: str, given: Mapping[str, Any]) -> None:
    """Raise where an option is given that says nothing without another."""
    for name, value in given.items():
        if value is not None:
            raise _mistake(f"{name} needs {needed}: add that, or leave it out")


def calibrate(
    file: Annotated[Path, typer.Argument(help="Held-out predictions with labels, as for audit.")],
    out: Annotated[Path, typer.Option(help="The calibrator to write.")] = Path("calibrator.json"),
    labels: Labels = None,
    kind: Scores = None,
    any_logits: AnyLogits = False,
    classes: Classes = None,
    on_bad_row: OnBadRow = "stop",
    ignore_index: IgnoreIndex = None,
    columns: ColumnNames = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to try, with commas; see docs/calibrators.md.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.", min=2)] = 5,
    seed: Annotated[int, typer.Option(help="Seed that deals the rows to the folds.")] = 0,
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
    """Choose a calibrator for a model by cross-validation, and write it to a file.

    Fits temperature, spline, vector, isotonic and matrix scaling, says which to use and why, and
    writes a small JSON for `sfumato.predictions.load_calibrator` and any other language. Of a file
    of confidences (`confidence,correct`, or detections with their boxes) it fits logistic, beta,
    spline and isotonic maps of the confidence. Never makes the likelihood of the given predictions
    worse.

    Example:

    - `sfumato calibrate validation.npz --out calibrator.json --onnx model.onnx`
    """
    import torch

    from sfumato.auditing.calibrate import METHODS, append_calibrator, calibrate_file

    torch.set_num_threads(1)  # many small fits: threads would wait for each other, busily
    tried = None if methods is None else tuple(methods.split(","))
    if unknown := sorted(set(tried or ()) - set(METHODS)):
        raise _mistake(f"--methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    _check_outputs(out, onnx, onnx_output, onnx_out)
    reading = reading_of(
        kind,
        labels,
        classes,
        on_bad_row,
        ignore_index=ignore_index,
        any_logits=any_logits,
        columns=columns,
    )
    with busy("Comparing calibrators by cross-validation"):
        found, read = calibrate_file(file, reading, methods=tried, folds=folds, seed=seed)
    is_there = out.exists()
    found.save(out)  # before a word: a reader that stops listening ends the program
    written = None
    if onnx is not None:
        path = onnx_out or onnx.with_name(f"{onnx.stem}-calibrated.onnx")
        written = append_calibrator(found, read, onnx, path, onnx_output, any_logits)
    console.print(_table(found.report))
    for line in _sentences(found.report, found.uniform):
        console.print(Text(line))
    print_place("Calibrator (replaced)" if is_there else "Calibrator", out)
    if written is not None:
        print_place("Model", written["path"])
        console.print(_agreement(written["difference"]))
    if found.method == "none":
        print_line("Next: use the predictions as they are; the calibrator changes nothing.")
    else:
        has_logits = getattr(read, "logits", None) is not None
        name = "confidence" if found.of == "confidence" else "logits" if has_logits else "probs"
        print_line(f"Next: sfumato.predictions.load_calibrator('{out}').predict_proba({name}=...)")


def _check_outputs(
    out: Path, onnx: Path | None, onnx_output: str | None, onnx_out: Path | None
) -> None:
    """Refuse before the fit what could not be written after it, or would not be used."""
    if onnx is None:
        _refuse_without("--onnx MODEL", {"--onnx-output": onnx_output, "--onnx-out": onnx_out})
    for name, path, example in (
        ("--out", out, "calibrator.json"),
        ("--onnx-out", onnx_out, "model-calibrated.onnx"),
    ):
        if path is not None and path.is_dir():
            raise _mistake(
                f"{name} {path}: is a folder; name a file in it, such as {path / example}"
            )


def _table(report: dict[str, Any]) -> Table:
    table = Table("method", "NLL", "ECE", "NLL above the best", box=None, pad_edge=False)
    for name, row in report["table"].items():
        above = f"{row['above_best']:.4f} ± {row['standard_error']:.4f}"
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
    lines += [f"Warning: {each}" for each in report["warnings"] if "probability 0" not in each]
    return lines


def _agreement(difference: float | None) -> str:
    if difference is None:
        return "Not checked: onnxruntime is not installed."
    return f"onnxruntime runs it and gives the same probabilities, within {difference:.1e}."
