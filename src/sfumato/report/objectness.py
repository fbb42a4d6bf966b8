"""Confidence against objectness as inline SVG: is the model as sure as the object is large?"""

from __future__ import annotations

from html import escape

from sfumato.report.diagram import axes, to_x, to_y
from sfumato.report.document import figure
from sfumato.report.read import MethodResults, StudyResults
from sfumato.report.summary import Bins, summarise


def objectness_section(results: StudyResults) -> str:
    """A diagram for each method that measured objectness; nothing where none did."""
    figures = []
    for method in results.methods:
        curve, deviation = pooled_curve(method), summarise(method, *_DEVIATION)
        if curve is not None and deviation is not None:
            note = f"mean deviation {deviation.mean:.3f}"
            figures.append(figure(method.name, note, curve_svg(curve, method.name)))
    if not figures:
        return ""
    return (
        "<section><h2>Is confidence as large as the object?</h2><p>Mean confidence of images "
        "whose objects cover about that share of them; the dot's area is the number of images. On "
        "the diagonal a model is as sure as the object is large.</p>"
        f"<div class='grid'>{''.join(figures)}</div></section>"
    )


_DEVIATION = ("objectness_deviation", "objectness")


def pooled_curve(method: MethodResults) -> Bins | None:
    """Mean confidence in each bin of objectness, all seeds together."""
    curves = [r.metrics["objectness"]["curve"] for r in method.runs if "objectness" in r.metrics]
    if not curves:
        return None
    counts = [sum(column) for column in zip(*(c["counts"] for c in curves), strict=True)]
    pooled = {
        key: [
            sum(c["counts"][i] * (c[key][i] or 0.0) for c in curves) / count if count else 0.0
            for i, count in enumerate(counts)
        ]
        for key in ("confidence", "accuracy")
    }
    return Bins(counts, pooled["confidence"], pooled["accuracy"])


def _radius(share: float) -> str:
    return f"{2 + 6 * share**0.5:.1f}"


def curve_svg(curve: Bins, label: str) -> str:
    """Mean confidence at the middle of each bin of objectness."""
    width, height = 280, 280
    most, count = max(curve.counts), len(curve.counts)
    shown = [i for i in range(count) if curve.counts[i]]
    points = [(to_x((i + 0.5) / count), to_y(curve.confidence[i])) for i in shown]
    line = "L".join(f"{x} {y}" for x, y in points)
    dots = "".join(
        f'<circle class="accuracy" cx="{x}" cy="{y}" r="{_radius(curve.counts[i] / most)}">'
        f"<title>{curve.counts[i]} images, confidence {curve.confidence[i]:.3f}</title></circle>"
        for i, (x, y) in zip(shown, points, strict=True)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Confidence against objectness of {escape(label, quote=True)}">'
        f"{''.join(axes('objectness', 'confidence'))}"
        f'<path class="ideal" d="M{to_x(0)} {to_y(0)}L{to_x(1)} {to_y(1)}"/>'
        f'<path class="ideal" style="stroke-dasharray:none" d="M{line}"/>{dots}</svg>'
    )
