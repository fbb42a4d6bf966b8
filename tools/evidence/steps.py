"""Every method of a study beside the one that it extends, instead of all beside the first.

Methods are named by what they are made of, `FCR + MixUp + mollification`, and the one that a method
extends is named by all but the last part: `FCR + MixUp`. Each is judged with those that extend the
same one, by the rule of `sfumato report`; a verdict stays where it also holds over all comparisons
of its column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sfumato.report.findings import compare_methods
from sfumato.report.read import StudyResults
from sfumato.report.statistics import LEVEL, SYMBOLS, Difference

Differences = dict[str, Difference]  # by metric


def steps(results: StudyResults) -> list[dict[str, Any]]:
    """A row for each method that extends one: by metric the change, its interval and its mark."""
    bases = extended([method.name for method in results.methods])
    found: dict[str, Differences] = {}
    for base in dict.fromkeys(bases.values()):
        group = [m for m in results.methods if m.name == base or bases.get(m.name) == base]
        group.sort(key=lambda method: method.name != base)
        rows = compare_methods(replace(results, methods=group)).rows
        found |= {row.name: row.differences for row in rows[1:]}
    for key in {key for differences in found.values() for key in differences}:
        _hold_together([differences for differences in found.values() if key in differences], key)
    return [
        {
            "method": name,
            "beside": base,
            "numbers": {
                key: [each.mean, each.low, each.high, SYMBOLS[each.verdict]]
                for key, each in found[name].items()
                if each.verdict is not None
            },
        }
        for name, base in bases.items()
    ]


def extended(names: Sequence[str]) -> dict[str, str]:
    """By method the longest other name that is its own without its last part or parts.

    Example:
        >>> extended(["FCR", "FCR + MixUp", "FCR + MixUp + mollification", "VGG"])
        {'FCR + MixUp': 'FCR', 'FCR + MixUp + mollification': 'FCR + MixUp'}
    """
    found = {}
    for name in names:
        beginnings = [name[: cut.start()] for cut in re.finditer(r" \+ |, ", name)]
        bases = [beginning for beginning in beginnings if beginning in names]
        if bases:
            found[name] = bases[-1]
    return found


def _hold_together(rows: Sequence[Differences], key: str) -> None:
    """Take back the verdicts that don't hold over all rows."""
    p = [np.nan if row[key].p is None else row[key].p for row in rows]
    for row, adjusted in zip(rows, holm(np.array(p)), strict=True):
        if row[key].verdict is not None and not adjusted < LEVEL:
            row[key] = replace(row[key], verdict="inconclusive")


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment over the last axis; NaN is no comparison and is not counted."""
    order = np.argsort(p, axis=-1)  # NaN last
    ranked = np.take_along_axis(p, order, -1)
    left = np.isfinite(p).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    raised = np.minimum(np.maximum.accumulate(ranked * np.maximum(left, 1), axis=-1), 1.0)
    adjusted = np.empty_like(raised)
    np.put_along_axis(adjusted, order, raised, -1)
    return adjusted
