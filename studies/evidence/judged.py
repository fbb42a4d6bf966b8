"""Tables with the verdicts of `sfumato report`, of studies whose runs kept resamples of the images.

They hold over seeds and images, for all comparisons of a column together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from readings import content, table


@dataclass(frozen=True)
class JudgedColumn:
    """A metric by its name in the report, and how it is shown."""

    title: str
    key: str
    scale: float = 100.0
    digits: int = 1

    def text(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"

    def numbers(self, study: str) -> dict[str, tuple[float, float, float]]:
        """Mean and ends of the interval of each method of a study, as they are shown."""
        return {
            row["method"]: tuple(self.scale * value for value in row["numbers"][self.key][:3])
            for row in judged_rows(study)
        }


ACCURACY = JudgedColumn("accuracy %", "test.accuracy")
NLL = JudgedColumn("NLL", "test.nll", 1.0, 3)
ECE = JudgedColumn("ECE %", "test.ece")
AURC = JudgedColumn("AURC %", "test.aurc")
TRUE_ECE = JudgedColumn("true ECE %", "test.true_ece")
SCALED = (
    JudgedColumn("NLL after scaling", "scaled.nll", 1.0, 3),
    JudgedColumn("ECE % after scaling", "scaled.ece"),
    JudgedColumn("T", "scaled.temperature", 1.0, 2),
)
GAINS = (ACCURACY, NLL, ECE)
CORRUPTED = (
    JudgedColumn("corrupted error %", "corrupted.error"),
    JudgedColumn("corrupted NLL", "corrupted.nll", 1.0, 3),
    JudgedColumn("corrupted calibration error %", "corrupted.rmsce"),
)
CHOICE = (*GAINS, AURC, *CORRUPTED)
LABELS = (*GAINS, JudgedColumn("AECE %", "test.aece"), AURC, *CORRUPTED[1:], *SCALED)
CHOICE_FIGURE = (ACCURACY, ECE, CORRUPTED[0], CORRUPTED[2])
AFTER_THE_PAPERS = (*GAINS, TRUE_ECE, AURC, *SCALED)
REAL_DATA = (*GAINS, AURC, *SCALED)
MEAN_IOU = JudgedColumn("mIoU %", "test.mean_iou")
MAPS = (*GAINS, JudgedColumn("ECE foreground %", "test.foreground_ece"), MEAN_IOU, AURC)
CONSISTENCY = JudgedColumn("consistency %", "test.consistency")
VIDEO_MAPS = (*MAPS, CONSISTENCY)
VIDEO_FIGURE = (NLL, ECE, MEAN_IOU, CONSISTENCY)
OBJECTS = (
    JudgedColumn("accuracy without object %", "context.accuracy"),
    JudgedColumn("confidence without object %", "context.average_confidence"),
    ACCURACY,
    ECE,
    JudgedColumn("overconfidence %", "test.overconfidence"),
    JudgedColumn("underconfidence %", "test.underconfidence"),
    JudgedColumn("objectness deviation %", "objectness.mean_objectness_deviation"),
)


def judged_rows(study: str) -> list[dict[str, Any]]:
    """What `sfumato report` says of each method, with the marks of its step if there are steps."""
    found = content(study)
    rows: list[dict[str, Any]] = found["judged"]
    if "steps" in found:
        steps = {row["method"]: row["numbers"] for row in found["steps"]}
        for row in rows:
            for key, numbers in row["numbers"].items():
                numbers[-1] = steps.get(row["method"], {}).get(key, [""])[-1]
    return rows


def judged_table(
    study: str,
    columns: Sequence[JudgedColumn],
    *,
    intervals: bool = True,
    paper: Mapping[str, str] | None = None,
    paper_title: str = "paper",
) -> str:
    """A row a method; with `paper`, what it reports of the method stands last.

    Marks compare with the first method, or in a study of steps with the one that a method extends.
    """
    rows = []
    for row in judged_rows(study):
        cells = [_cell(row["numbers"].get(each.key), each, intervals) for each in columns]
        beside = [] if paper is None else [paper.get(row["method"], "–")]
        rows.append([row["method"], str(row["seeds"]), *cells, *beside])
    titles = [column.title for column in columns] + ([] if paper is None else [paper_title])
    return table(["method", "seeds", *titles], rows)


def effects_table(study: str, columns: Sequence[JudgedColumn]) -> str:
    """What each part of a study of combinations changes, over all that it is combined with."""
    rows = [
        [f"{row['part']} ({row['pairs']} pairs)", *_changes(row, columns)]
        for row in content(study)["effects"]
    ]
    return table(["adding", *(column.title for column in columns)], rows)


def steps_table(study: str, columns: Sequence[JudgedColumn]) -> str:
    """What each method changes beside the one that it extends."""
    rows = [
        [row["method"], row["beside"], *_changes(row, columns)] for row in content(study)["steps"]
    ]
    return table(["method", "beside", *(column.title for column in columns)], rows)


def _changes(row: Mapping[str, Any], columns: Sequence[JudgedColumn]) -> list[str]:
    return [_change(row["numbers"].get(column.key), column) for column in columns]


def _change(found: list | None, column: JudgedColumn) -> str:
    """`+1.2 [0.3, 2.1] ✓`."""
    if found is None:
        return "–"
    mean, low, high, mark = found
    change = column.text(mean)
    sign = "" if change.startswith("-") else "+"
    return f"{sign}{change} [{column.text(low)}, {column.text(high)}] {mark}"


def _cell(found: list | None, column: JudgedColumn, intervals: bool) -> str:
    """`12.3 [11.9, 12.8] ✓`; beside a number near it, what a perfect network would show."""
    if found is None:
        return "–"
    mean, low, high, floor, mark = found
    known = intervals and low is not None
    interval = f"[{column.text(low)}, {column.text(high)}]" if known else ""
    near = f"(perfect: {column.text(floor)})" if floor and mean < 2 * floor else ""
    return " ".join(filter(None, (column.text(mean), interval, mark, near)))


def estimators() -> str:
    """How far each estimator of calibration is from the truth, and how often it ranks rightly."""
    rows = content("true-calibration")["rows"]
    sizes = sorted({row["size"] for row in rows})
    head = ["estimator", *(f"{what}, {n:,} images" for what in _MEASURES for n in sizes)]
    by_name: dict[str, list[str]] = {}
    for key, scale in _MEASURES.values():
        for size in sizes:
            for row in rows:
                if row["size"] == size:
                    sign = "+" if key == "bias" else ""
                    text = f"{scale * row[key]:{sign}.1f}"
                    by_name.setdefault(row["estimator"], []).append(text)
    return table(head, [[name, *texts] for name, texts in by_name.items()])


_MEASURES = {
    "bias, points": ("bias", 100.0),
    "RMSE, points": ("rmse", 100.0),
    "pairs ranked rightly %": ("right_pairs", 100.0),
}
