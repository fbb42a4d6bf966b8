"""A method after a temperature, as a method of its own: what others have to be better than."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sfumato.report.read import MethodResults, RunResult, StudyResults

_SPLIT, _DAMAGED = "scaled", "corrupted"
_CLASSES = "test.accuracy"  # a temperature never changes the predicted classes


def after_temperature(method: MethodResults) -> MethodResults | None:
    """The same runs, each measured after the temperature that it fitted; None where some did not.

    Example:
        >>> metrics = {"test": {"accuracy": 0.8, "nll": 0.7}, "scaled": {"nll": 0.6}}
        >>> plain = MethodResults("plain", [RunResult(0, metrics, {}, [])])
        >>> after_temperature(plain).runs[0].metrics
        {'test': {'accuracy': 0.8, 'nll': 0.6}}
    """
    if not method.runs or any(_SPLIT not in run.metrics for run in method.runs):
        return None
    name = f"{method.name}, temperature"
    return MethodResults(name, [_scaled(run) for run in method.runs])


def with_temperature(results: StudyResults) -> StudyResults:
    """The same results; the first method after a temperature stands behind it, where known."""
    first, *others = results.methods
    scaled = after_temperature(first)
    return results if scaled is None else replace(results, methods=[first, scaled, *others])


def _scaled(run: RunResult) -> RunResult:
    found = run.metrics[_SPLIT]
    measured = {key: value for key, value in found.items() if not isinstance(value, Mapping)}
    measured.pop("temperature", None)
    metrics = {"test": {"accuracy": run.metrics["test"]["accuracy"], **measured}}
    if _DAMAGED in found:
        metrics[_DAMAGED] = found[_DAMAGED]
    draws = {_CLASSES: run.replicates[_CLASSES]} if _CLASSES in run.replicates else {}
    for key, values in run.replicates.items():
        split, _, name = key.rpartition(".")
        if split == _SPLIT:
            draws[f"test.{name}"] = values
        elif split == f"{_SPLIT}.{_DAMAGED}":
            draws[f"{_DAMAGED}.{name}"] = values
    return replace(run, metrics=metrics, replicates=draws)
