"""An audit in sentences: the verdict first, in words that need no table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def verdict_sentence(model: Mapping[str, Any]) -> str:
    """What the audit found of one model, how sure that is, and where it is worst."""
    metrics, name, count = model["metrics"], model["name"], model["samples"]
    if count < 2:
        return f"{name}: one prediction can't tell whether confidences are right."
    facts = (
        f"it says {_percent(metrics['average_confidence'])} on average and is right in "
        f"{_percent(metrics['accuracy'])} of {count:,} cases"
    )
    low, high = (100 * end for end in model["gap"]["interval"])
    amount = f"{abs(100 * model['gap']['gap']):.1f} points"
    sizes = sorted((abs(low), abs(high)))
    found = {
        "overconfident": f"{name} is overconfident: {facts}, {amount} too sure "
        f"[95 %: {sizes[0]:.1f}, {sizes[1]:.1f}].",
        "underconfident": f"{name} is underconfident: {facts}, {amount} too modest "
        f"[95 %: {sizes[0]:.1f}, {sizes[1]:.1f}].",
        "right on average, wrong in places": f"{name} is right on average, wrong in places: "
        f"{facts} [gap, 95 %: {low:+.1f}, {high:+.1f}], but not where it says each confidence.",
        "no miscalibration found": f"{name}: no miscalibration found; {facts} "
        f"[gap, 95 %: {low:+.1f}, {high:+.1f}].",
    }[model["verdict"]]
    return f"{found} {_error_sentence(model)}"


def _error_sentence(model: Mapping[str, Any]) -> str:
    text = (
        f"ECE {_percent(model['metrics']['ece'])}; a perfect model would show "
        f"{_percent(model['ece_floor'])} on as many cases"
    )
    worst = model["worst_range"]
    if worst is None or model["verdict"] == "no miscalibration found":
        return f"{text}."
    return (
        f"{text}. Worst where it says {100 * worst['low']:.0f} to {100 * worst['high']:.0f} %: "
        f"{100 * worst['gap']:+.1f} points."
    )


def scaling_sentence(model: Mapping[str, Any]) -> str:
    """Whether temperature scaling helped; only what is measurably better is called so."""
    scaled, name = model["scaled"], model["name"]
    before, after = model["metrics"], scaled["metrics"]
    first = ""
    if scaled["uniform"] is not None:
        first = f"with {_percent(scaled['uniform'])} of the uniform distribution mixed in, "
    facts = (
        f"{first}T = {scaled['temperature']:.3g}, "
        f"ECE {100 * before['ece']:.1f} to {_percent(after['ece'])}, "
        f"NLL {number(before['nll'])} to {number(after['nll'])}"
    )
    return {
        "better": f"Temperature scaling helps {name}: {facts}.",
        "worse": f"Temperature scaling makes {name} worse, don't use it: {facts}.",
        "can't tell": f"Temperature scaling of {name}: no measurable gain; {facts}.",
        "not resampled": f"Temperature scaling of {name}: {facts}; whether that is chance was not "
        "measured, for want of resamples.",
    }[scaled["verdict"]]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Of all models, then of their scaling."""
    models = found["models"]
    scaled = [model for model in models if "scaled" in model]
    return [verdict_sentence(model) for model in models] + [
        scaling_sentence(model) for model in scaled
    ]


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """What speaks against the numbers, each with the name of its model."""
    return [
        f"{model['name']}: {text}"
        for model in found["models"]
        for text in model.get("scaled", {}).get("warnings", ())
    ]


def number(value: float) -> str:
    """A likelihood with three digits; infinite where a label had probability 0."""
    return "infinite" if math.isinf(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
