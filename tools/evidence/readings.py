"""Numbers of a study's runs, as means with intervals over seeds, and verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from scipy import special

from sfumato.report.statistics import SYMBOLS, verdict_of_interval

ROOT = Path(__file__).parents[2]
Metrics = Mapping[str, Any]
Runs = dict[str, dict[int, Metrics]]  # method, seed
Curves = dict[str, dict[str, list[float]]]  # method, what was measured after each epoch


@dataclass(frozen=True)
class Column:
    """A number of a run, and how it is shown."""

    title: str
    read: Callable[[Metrics], float]
    better: Literal["higher", "lower"] | None = "lower"
    scale: float = 100.0
    digits: int = 1


def at(*path: str) -> Callable[[Metrics], float]:
    """Reads the number at a path of keys; NaN where a run doesn't have it."""

    def read(metrics: Metrics) -> float:
        found: Any = metrics
        for key in path:
            found = found.get(key, {})
        return float(found) if found != {} else math.nan

    return read


ACCURACY = Column("accuracy %", at("test", "accuracy"), "higher")
NLL = Column("NLL", at("test", "nll"), "lower", 1.0, 3)
ECE = Column("ECE %", at("test", "ece"))
RANKING = (
    Column("AURC %", at("test", "aurc")),
    Column("accuracy at 80 % coverage", at("test", "accuracy_at_80"), "higher"),
)
CONFIDENCE = (
    Column("overconfidence %", at("test", "overconfidence")),
    Column("underconfidence %", at("test", "underconfidence")),
)
WITHOUT_OBJECT = (
    Column("accuracy without object %", at("context", "accuracy")),
    Column("confidence without object %", at("context", "average_confidence")),
)


def load(name: str) -> Runs:
    runs: Runs = {}
    for run in content(name)["runs"]:
        runs.setdefault(run["method"], {})[run["seed"]] = run["metrics"]
    return runs


def load_curves(name: str, seed: int = 0) -> Curves:
    return {run["method"]: run["curves"] for run in content(name)["runs"] if run["seed"] == seed}


def content(name: str) -> dict[str, Any]:
    """Read the numbers of a study from `studies/results`."""
    found: dict[str, Any] = json.loads((ROOT / f"studies/results/{name}.json").read_text())
    return found


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    quantile = float(special.stdtrit(len(values) - 1, 0.975))
    width = quantile * stdev(values) / math.sqrt(len(values))
    return fmean(values) - width, fmean(values) + width


def mean_text(values: Sequence[float], column: Column) -> str:
    """`12.3 ± 0.4`; the interval is missing for one seed."""
    if any(map(math.isnan, values)):
        return "–"
    scaled = [column.scale * value for value in values]
    interval = t_interval(scaled)
    spread = "" if interval is None else f" ± {(interval[1] - interval[0]) / 2:.{column.digits}f}"
    return f"{fmean(scaled):.{column.digits}f}{spread}"


def cell(runs: Mapping[int, Metrics], column: Column, base: Mapping[int, Metrics] | None) -> str:
    values = {seed: column.read(metrics) for seed, metrics in runs.items()}
    text = mean_text(list(values.values()), column)
    if base is None or base is runs or column.better is None or text == "–":
        return text
    change = [values[seed] - column.read(base[seed]) for seed in values if seed in base]
    return f"{text} {verdict(change, column)}".rstrip()


def verdict(change: Sequence[float], column: Column) -> str:
    """Judge a paired difference over seeds by its interval: ✓, ✗ or ?."""
    interval = t_interval(change)
    if interval is None or column.better is None:
        return ""
    return SYMBOLS[verdict_of_interval(*interval, column.better)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def of_size(key: str, place: int) -> Callable[[Metrics], float]:
    """Reads a number of the ensemble at a place in the list of sizes."""
    return lambda metrics: float(metrics["ensemble"][key][place])
