"""The command `audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from sfumato.cli.shared import Quiet, console, say_where

if TYPE_CHECKING:
    from sfumato.engine.evaluation.audit_thresholds import Target
    from sfumato.engine.runs.prediction_files import Reading


def audit(
    files: Annotated[
        list[str],
        typer.Argument(help="One model each: a file, a quoted pattern, a folder, or a run's."),
    ],
    labels: Labels = None,
    kind: Scores = None,
    classes: Classes = None,
    on_bad_row: OnBadRow = BadRow.stop,
    ignore_index: IgnoreIndex = None,
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled", help="There are no labels: say which accuracy confidences promise."
        ),
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="All files are parts of one model.")
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
        float | None, typer.Option(help="How often that promise may be broken; 0.05 if left out.")
    ] = None,
    escalate_risk: Annotated[
        float | None, typer.Option(help="Error of what is not rejected: a second threshold.")
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="A threshold for each predicted class, too.")
    ] = False,
    most_per_image: Annotated[
        int | None,
        typer.Option(help="As how many accepted detections an image counts; 10.", min=1),
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples; 0: no intervals, no comparison.", min=0)
    ] = 1000,
    workers: Annotated[int, typer.Option(help="Processes that read files.", min=1)] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Read files on a Ray cluster: its address, or auto.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("audit"),
    quiet: Quiet = False,
) -> None:
    """Say whether saved predictions can be trusted, where not, and from which confidence on.

    Reads .npz, .npy (with --labels), .csv, .parquet, .jsonl and .safetensors: `probs` or `logits`
    with `labels`, columns `prob_<class>` with `label`, or `true_label,pred_label,confidence`;
    optionally `group`, `time` and `index`. Several files are compared with the first.

    Example: `sfumato audit preds.npz --target-risk 0.02`, `sfumato audit old.csv new.csv`,
    `sfumato audit "parts/*.parquet" --workers 2`
    """
    import torch

    from sfumato.report.audit import audit_view, write_audit

    torch.set_num_threads(1)  # many small sums: threads would wait for each other, busily
    reading = reading_of(
        kind, labels, classes, on_bad_row, ignore_index=ignore_index, unlabelled=unlabelled
    )
    if unlabelled:
        _refuse_with_unlabelled(labels, target_risk, validation, ignore_index)
    found = _audited(
        (files, validation or []),
        reading,
        _target(target_risk, delta, escalate_risk, per_class, most_per_image),
        {"merge": merge, "split": chosen_split(split, [*files, *(validation or [])])},
        {"resamples": resamples},
        {"workers": workers, "ray": ray},
        show=not quiet,
    )
    for part in audit_view(found):
        console.print(part)
    say_where("Report", write_audit(found, out))


def _audited(
    named: tuple[Sequence[str], Sequence[str]],
    reading: Reading,
    target: Target | None,
    finding: dict[str, Any],
    settings: dict[str, Any],
    labour: dict[str, Any],
    *,
    show: bool,
) -> dict[str, Any]:
    """Read what was named, judge it, and say where each model came from."""
    from sfumato.engine.evaluation.audit import audit as audit_files, audit_steps
    from sfumato.engine.evaluation.audit_expected import expect
    from sfumato.engine.evaluation.audit_reading import plan_reading, read_source
    from sfumato.engine.evaluation.audit_sources import find_sources
    from sfumato.engine.evaluation.audit_tallies import Summed
    from sfumato.engine.runs.progress import progress_bar

    sources, held_out = (find_sources(names, **finding) for names in named)
    per_class = target is not None and target.per_class
    plans = plan_reading(
        sources, per_class=per_class, unlabelled=reading.unlabelled, **labour
    ) + plan_reading(held_out, **labour)
    steps = sum(plan.steps for plan in plans) + audit_steps(len(sources), len(held_out))
    with progress_bar("auditing", steps, show=show) as bar:
        read = [read_source(plan, reading, bar=bar, **labour) for plan in plans]
        if reading.unlabelled:
            found = expect([model for model in read if isinstance(model, Summed)])
        else:
            found = audit_files(
                read[: len(sources)], read[len(sources) :], target=target, bar=bar, **settings
            )
    for model, source in zip(found["models"], sources, strict=True):
        model["source"] = list(source.arguments)
    return found


def _refuse_with_unlabelled(
    labels: Path | None,
    target_risk: float | None,
    validation: Sequence[str] | None,
    ignore_index: int | None,
) -> None:
    from sfumato.engine.runs.prediction_files import PredictionFileError

    if labels is not None:
        raise PredictionFileError("--labels gives labels: leave --unlabelled out")
    if ignore_index is not None:
        raise PredictionFileError("--ignore-index names a label: leave it or --unlabelled out")
    for name, value in (("--target-risk", target_risk), ("--validation", validation or None)):
        if value is not None:
            raise PredictionFileError(
                f"{name} needs labels: nothing is promised without; leave it or --unlabelled out"
            )


def _target(
    risk: float | None,
    delta: float | None,
    escalate: float | None,
    per_class: bool,
    most: int | None,
) -> Target | None:
    from sfumato.engine.evaluation.audit_thresholds import Target
    from sfumato.engine.runs.prediction_files import PredictionFileError

    if risk is None:
        given = {
            "--escalate-risk": escalate,
            "--per-class": per_class or None,
            "--delta": delta,
            "--most-per-image": most,
        }
        for name, value in given.items():
            if value is not None:
                raise PredictionFileError(f"{name} needs --target-risk: add that, or leave it out")
        return None
    shares = {"--target-risk": risk, "--delta": delta, "--escalate-risk": escalate}
    for name, value in shares.items():
        if value is not None and not 0 < value < 1:
            raise PredictionFileError(f"{name} must be between 0 and 1, got {value:g}")
    if escalate is not None and escalate < risk:
        raise PredictionFileError(
            f"--escalate-risk must be at least --target-risk {risk:g}, got {escalate:g}"
        )
    found = Target(risk, escalate_risk=escalate, per_class=per_class)
    found = found if delta is None else replace(found, delta=delta)
    return found if most is None else replace(found, most_per_image=most)
