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
STRANGE_SCORES = {
    "max_probability": "max probability",
    "max_logit": "max logit",
    "energy": "energy",
    "generalised_entropy": "GEN",
    "nearest_neighbours": "nearest neighbours",
    "mahalanobis": "Mahalanobis",
}
# AUROC of strange inputs, by the name of their set.
STRANGE = {
    place: tuple(
        JudgedColumn(f"{title}, {place} %", f"ood.{place}.{score}.auroc")
        for score, title in STRANGE_SCORES.items()
    )
    for place in ("near", "textures", "scenes", "noise")
}
AFTER_TEMPERATURE = JudgedColumn(
    "max probability after temperature, near %", "scaled.ood.near.max_probability.auroc"
)
MIXED_RISK = JudgedColumn("AURC with near %", "ood.near.max_probability.aurc")
NEAR = (ACCURACY, ECE, *STRANGE["near"], AFTER_TEMPERATURE, MIXED_RISK)
STRANGE_FIGURE = tuple(STRANGE["near"][place] for place in (0, 2, 4, 5))
CHOICE = (*GAINS, AURC, *CORRUPTED)
LABELS = (*GAINS, JudgedColumn("AECE %", "test.aece"), AURC, *CORRUPTED[1:], *SCALED)
CHOICE_FIGURE = (ACCURACY, ECE, CORRUPTED[0], CORRUPTED[2])
REGRETS = (NLL, CORRUPTED[1])
# Studies with one recipe are one data set: their cross entropy is the same network.
DATA_SETS = {
    "CIFAR-10, 2,000 images": ("cifar10-labels", "cifar10-combinations"),
    "CIFAR-10, 24,000 images": ("cifar10",),
    "scenes, 800 images": ("what-to-take-scenes",),
    "Tiny-ImageNet-40": ("tiny-imagenet",),
    "20 Newsgroups": ("20news-short",),
}
# What a user chooses among, by the names that the studies give it.
CHOICES = {
    "cross entropy": (),
    "cross entropy, temperature": (),
    "label smoothing": (),
    "MbLS": (),
    "ACLS": (),
    "mollification": (),
    "spatial smoothing": ("spatial",),
    "mollification + spatial smoothing": ("mollification + spatial",),
}
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
    """Tabulate the verdicts of `sfumato report`, with the marks of steps if there are steps."""
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
    methods: Sequence[str] | None = None,
    paper: Mapping[str, str] | None = None,
    paper_title: str = "paper",
) -> str:
    """A row a method (`methods`: these alone); with `paper`, what it reports stands last.

    Marks compare with the first method, or in a study of steps with the one that a method extends.
    """
    rows = []
    for row in judged_rows(study):
        if methods is not None and row["method"] not in methods:
            continue
        cells = [_cell(row["numbers"].get(each.key), each, intervals) for each in columns]
        beside = [] if paper is None else [paper.get(row["method"], "–")]
        rows.append([row["method"], str(row["seeds"]), *cells, *beside])
    titles = [column.title for column in columns] + ([] if paper is None else [paper_title])
    return table(["method", "seeds", *titles], rows)


def effects_table(study: str, columns: Sequence[JudgedColumn]) -> str:
    """Tabulate the effect of each part of a study of combinations, over all combinations."""
    rows = [
        [f"{row['part']} ({row['pairs']} pairs)", *_changes(row, columns)]
        for row in content(study)["effects"]
    ]
    return table(["adding", *(column.title for column in columns)], rows)


def steps_table(study: str, columns: Sequence[JudgedColumn]) -> str:
    """Tabulate the difference of each method to the one that it extends."""
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
    """Tabulate the error of each estimator of calibration, and how often it ranks rightly."""
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


def regrets(column: JudgedColumn) -> dict[str, dict[str, float]]:
    """Return by method and data set how much worse it is than the best choice there, on average."""
    found: dict[str, dict[str, float]] = {name: {} for name in CHOICES}
    for data, studies in DATA_SETS.items():
        numbers = {
            row["method"]: column.scale * row["numbers"][column.key][0]
            for study in studies
            for row in judged_rows(study)
            if column.key in row["numbers"]
        }
        values = {
            name: numbers[each]
            for name, others in CHOICES.items()
            for each in (name, *others)
            if each in numbers
        }
        for name, value in values.items():
            found[name][data] = value - min(values.values())
    return found


def regret_table() -> str:
    """A row a choice: its mean regret over data sets, how many, and where it is largest."""
    head = ["method"]
    for column in REGRETS:
        head += [f"{column.title}: mean regret (data sets)", "largest, where"]
    rows = [[name] for name in CHOICES]
    for column in REGRETS:
        for row, found in zip(rows, regrets(column).values(), strict=True):
            where = max(found, key=found.__getitem__)
            mean = sum(found.values()) / len(found)
            row.append(f"{column.text(mean / column.scale)} ({len(found)})")
            place = f", {where}" if found[where] else ""
            row.append(f"{column.text(found[where] / column.scale)}{place}")
    return table(head, rows)
