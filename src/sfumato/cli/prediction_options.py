"""What the commands that read files of predictions take, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sfumato.engine.runs.prediction_files import Reading


class ScoreKind(str, Enum):
    """What scores are whose name doesn't say it."""

    probs = "probs"
    logits = "logits"


class BadRow(str, Enum):
    """What a bad row does."""

    stop = "stop"
    skip = "skip"


Labels = Annotated[Path | None, typer.Option(help="The labels of an .npy, an .npy too.")]
Scores = Annotated[
    ScoreKind | None, typer.Option(help="What scores are whose name doesn't say it.")
]
Classes = Annotated[
    str | None, typer.Option(help="Names of the classes in their order, with commas.")
]
OnBadRow = Annotated[
    BadRow, typer.Option(help="Stop at the first bad row, or skip and count them.")
]
IgnoreIndex = Annotated[int | None, typer.Option(help="Label of what counts for nothing.")]
Split = Annotated[
    str | None, typer.Option(help="Which stored predictions of a run; test if left out.")
]


def reading_of(
    kind: ScoreKind | None,
    labels: Path | None,
    classes: str | None,
    on_bad_row: BadRow,
    *,
    ignore_index: int | None = None,
    unlabelled: bool = False,
) -> Reading:
    """How files are read, from the options of a command."""
    from sfumato.engine.runs.prediction_files import Reading

    return Reading(
        kind=None if kind is None else kind.value,
        labels=labels,
        classes=None if classes is None else tuple(name.strip() for name in classes.split(",")),
        on_bad_row=on_bad_row.value,
        ignore_index=ignore_index,
        unlabelled=unlabelled,
    )


def chosen_split(split: str | None, arguments: Sequence[str | Path]) -> str:
    """The split to read of runs; refused where no argument is a run that has several."""
    from sfumato.engine.runs.prediction_files import PredictionFileError

    if split is None:
        return "test"
    if not any((Path(each) / "predictions").is_dir() for each in arguments):
        raise PredictionFileError(
            f"--split {split}: names stored predictions of a run, and no run's folder with such is "
            "among the files; leave it out"
        )
    return split
