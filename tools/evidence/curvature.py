"""Hessian eigenvalues with and without smoothing, by `sfumato analyse` on each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from readings import content, load, load_curves, t_interval, table

STUDIES = {"no augmentation": "heads-scenes", "flips, crops, rotations": "heads-scenes-augmented"}
PLAIN = {"GAP + smooth": "GAP", "GAP + dropout + smooth": "GAP + dropout"}


def curvature() -> str:
    """A row a network: training accuracy and median top eigenvalue by seed, in both regimes."""
    found = {regime: _eigenvalues(study) for regime, study in STUDIES.items()}
    head = ["network"]
    for regime in STUDIES:
        head += [f"{regime}: training accuracy %", "top eigenvalue by seed", "ratio to unsmoothed"]
    rows = []
    for name in load(next(iter(STUDIES.values()))):
        row = [name]
        for regime, study in STUDIES.items():
            values = found[regime]
            accuracies = [
                load_curves(study, seed)[name]["train_accuracy"][-1] for seed in values[name]
            ]
            row += [
                f"{100 * fmean(accuracies):.1f}",
                ", ".join(f"{value:.0f}" for value in values[name].values()),
                _ratio(values[name], values[PLAIN[name]]) if name in PLAIN else "",
            ]
        rows.append(row)
    return table(head, rows)


def _eigenvalues(study: str) -> dict[str, dict[int, float]]:
    """By network and seed."""
    found: dict[str, dict[int, float]] = {}
    for title, numbers in sorted(content(f"{study}-hessian")["summary"].items()):
        name, _, seed = title.rpartition(", seed ")
        found.setdefault(name, {})[int(seed)] = numbers["median top eigenvalue"]
    return found


def _ratio(smoothed: Mapping[int, float], plain: Mapping[int, float]) -> str:
    """The mean ratio over seeds with its 95 % t interval, both of logarithms."""
    logs: Sequence[float] = [math.log(smoothed[seed] / plain[seed]) for seed in smoothed]
    interval = t_interval(logs)
    shown = [f"{math.exp(value):.1f}" for value in (fmean(logs), *(interval or ()))]
    return shown[0] if interval is None else f"{shown[0]} [{shown[1]}, {shown[2]}]"
