"""An audit in sentences: the verdict first, in words that need no table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_MOST_DETECTIONS = 1000  # beyond, what is accepted of an image are its pixels


def headline(model: Mapping[str, Any]) -> str:
    """The verdict as one sentence: what the audit found of one model, and how sure that is."""
    metrics, name, count = model["metrics"], model["name"], model["samples"]
    if count < 2:
        return f"{name}: one prediction can't tell whether confidences are right."
    facts = (
        f"it says {_percent(metrics['average_confidence'])} on average and is right in "
        f"{_percent(metrics['accuracy'])} of {count:,} cases"
    )
    if model["verdict"] == "can't tell":
        why = _no_interval(model)
        return f"{name}: can't tell whether confidences are right: {facts}, but {why}."
    low, high = (100 * end for end in model["gap"]["interval"])
    amount = f"{abs(100 * model['gap']['gap']):.1f} points"
    sizes = sorted((abs(low), abs(high)))
    return {
        "overconfident": f"{name} is overconfident: {facts}, {amount} too sure "
        f"[95 %: {sizes[0]:.1f}, {sizes[1]:.1f}].",
        "underconfident": f"{name} is underconfident: {facts}, {amount} too modest "
        f"[95 %: {sizes[0]:.1f}, {sizes[1]:.1f}].",
        "right on average, wrong in places": f"{name} is right on average, wrong in places: "
        f"{facts} [gap, 95 %: {low:+.1f}, {high:+.1f}], but not where it says each confidence.",
        "no miscalibration found": f"{name}: no miscalibration found; {facts} "
        f"[gap, 95 %: {low:+.1f}, {high:+.1f}].",
    }[model["verdict"]]


def _no_interval(model: Mapping[str, Any]) -> str:
    """Why there is no interval, which a verdict needs."""
    if model.get("is_histogram") and model["images"] is None:
        return "a histogram without images has no interval; give it a row for each image"
    return "all of one image, which has no interval; audit two images or more"


def verdict_sentence(model: Mapping[str, Any]) -> str:
    """The verdict, and where most of the calibration error is from."""
    return " ".join(filter(None, (headline(model), error_sentence(model))))


def error_sentence(model: Mapping[str, Any]) -> str:
    """The calibration error beside what chance alone would show."""
    if model["samples"] < 2:
        return ""
    text = (
        f"ECE {_percent(model['metrics']['ece'])}; a perfect model would show "
        f"{_percent(model['ece_floor'])} on as many cases"
    )
    if "d_ece" in model["metrics"]:
        text += f"; D-ECE in 20 bins {100 * model['metrics']['d_ece']:.2f} %"
    worst = model["worst_range"]
    if worst is None or model["verdict"] == "no miscalibration found":
        return f"{text}."
    return (
        f"{text}. The largest part of it is where it says {100 * worst['low']:.0f} to "
        f"{100 * worst['high']:.0f} %: {100 * worst['gap']:+.1f} points."
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


def threshold_sentences(model: Mapping[str, Any]) -> list[str]:
    """From which confidence on predictions may be accepted, or that none will do."""
    found = model.get("thresholds")
    if found is None:
        return []
    lines = [_threshold_sentence(model["name"], found["accept"], found["delta"])]
    if found.get("escalate") is not None:
        lines.append(_escalation_sentence(found))
    return lines


def _threshold_sentence(name: str, chosen: Mapping[str, Any], delta: float) -> str:
    risk, sure = _percent(chosen["target_risk"]), f"{100 * (1 - delta):g} %"
    if chosen["confidence"] is None:
        return (
            f"No threshold of {name} reaches an error of at most {risk} with {sure} certainty: "
            "accept nothing unseen, gather more labelled predictions, or allow more."
        )
    return (
        f"Accept {name} from a confidence of {chosen['confidence']:.4g} on: that keeps "
        f"{_percent(chosen['coverage'])} of predictions with an error of at most "
        f"{_percent(chosen['risk_bound'])}, {sure} certain; of 1,000 predictions "
        f"{1000 * chosen['coverage']:.0f} are accepted, "
        f"{1000 * chosen['coverage'] * chosen['risk']:.0f} of them wrong.{_over_images(chosen)}"
    )


def _over_images(chosen: Mapping[str, Any]) -> str:
    """What the promise of a threshold is about, where predictions come in images."""
    if chosen.get("images") is None:
        return ""
    most = chosen["most_per_image"]
    is_map = most > _MOST_DETECTIONS
    capped = "" if is_map else f"; one with more than {most:,} accepted ones counts as {most:,}"
    return f" That rests on {chosen['images']:,} images{capped}."


def _escalation_sentence(found: Mapping[str, Any]) -> str:
    accept, escalate = found["accept"], found["escalate"]
    risk = _percent(escalate["target_risk"])
    if escalate["confidence"] is None:
        return f"No second threshold keeps the error of all that is not rejected at {risk}."
    upper = "the first" if accept["confidence"] is None else f"{accept['confidence']:.4g}"
    if not escalate["confidence"]:
        return (
            f"Escalate below {upper}, and reject nothing: of all predictions at most "
            f"{_percent(escalate['risk_bound'])} is wrong."
        )
    return (
        f"Escalate between {escalate['confidence']:.4g} and {upper}, reject below: of what is not "
        f"rejected at most {_percent(escalate['risk_bound'])} is wrong."
    )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Of all models, then of their thresholds and of their scaling."""
    models = found["models"]
    scaled = [model for model in models if "scaled" in model]
    return [
        *(verdict_sentence(model) for model in models),
        *(line for model in models for line in threshold_sentences(model)),
        *(drift_sentence(model) for model in models if model.get("drift")),
        *(scaling_sentence(model) for model in scaled),
        *(sample_sentence(model) for model in models if model.get("sampled")),
        *(images_sentence(model) for model in models if model.get("images")),
    ]


def images_sentence(model: Mapping[str, Any]) -> str:
    """What the intervals rest on, where predictions of one image are not independent."""
    images, sampled = model["images"], model.get("images_sampled")
    about = "about " if sampled else ""
    some = f" ({sampled:,} random ones)" if sampled else ""
    return (
        f"Intervals and thresholds of {model['name']} are over its {about}{images:,} "
        f"image{'s' if images != 1 else ''}{some}, what chance alone would show over predictions."
    )


def sample_sentence(model: Mapping[str, Any]) -> str:
    """What comes from a sample of the rows, where they are too many to keep."""
    return (
        f"{model['name']} is summed up, not kept: its prediction sets, classwise errors, parts of "
        f"NLL and Brier score and scaling are those of {model['sampled']['rows']:,} random rows."
    )


def drift_sentence(model: Mapping[str, Any]) -> str:
    """Whether an alarm over time would have gone off, and when."""
    drift, name = model["drift"], model["name"]
    level = f"{100 * drift['level']:g} % false alarms, however often one looks"
    points = f"{100 * drift['tolerance']:g} points"
    if drift["alarm"] is None:
        return (
            f"No alarm over time: nothing shows, while one looks all the time, that {name} leaves "
            f"its accuracy by more than {points} ({level})."
        )
    when = time_text(drift["alarm"], model["is_dated"])
    return (
        f"Over time {name} leaves its accuracy by more than {points}: the alarm goes off at "
        f"{when}, after {drift['after']:,} predictions ({level})."
    )


def time_text(value: float, is_dated: bool) -> str:
    """A date where times are dates, else the number."""
    if not is_dated:
        return f"{value:g}"
    return datetime.fromtimestamp(value, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """What speaks against the numbers, each with the name of its model."""
    lines = []
    for model in found["models"]:
        lines += skipped_line(model)
        if model.get("zero_labels"):
            lines.append(
                f"{model['name']}: {model['zero_labels']:,} labels have probability 0, so the NLL "
                "is infinite; 'sfumato calibrate' mixes in what is needed"
            )
        if model.get("is_histogram") and model["thresholds"] and model["images"] is None:
            lines.append(
                f"{model['name']}: a histogram without images tells nothing of what errs together; "
                "its threshold holds for independent predictions, and pixels are none"
            )
        lines += [f"{model['name']}: {t}" for t in model.get("scaled", {}).get("warnings", ())]
    return lines


def skipped_line(model: Mapping[str, Any]) -> list[str]:
    """How many rows were left out, and why; nothing where there were none."""
    if not model.get("skipped"):
        return []
    bad = ", ".join(f"{count:,} {reason}" for reason, count in model["skipped"].items())
    return [f"{model['name']}: rows were left out ({bad})"]


def number(value: float) -> str:
    """A likelihood with three digits; infinite where a label had probability 0, its parts "–"."""
    if math.isnan(value):
        return "–"
    return "infinite" if math.isinf(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
