"""Reliability diagrams as inline SVG: sharp at any size, no script, colours from the page."""

from __future__ import annotations

from html import escape

from sfumato.report.summary import DiagramBins

_SIZE = 220  # of the square plot
_LEFT, _TOP, _BOTTOM = 46, 10, 92
_HISTOGRAM = 34


def reliability_svg(bins: DiagramBins, label: str) -> str:
    """Accuracy against confidence with the gap shaded, and how many predictions fell where."""
    width, height = _LEFT + _SIZE + 14, _TOP + _SIZE + _BOTTOM
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Reliability diagram of {escape(label, quote=True)}">',
        *_axes(),
        *_bars(bins),
        f'<path class="ideal" d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}"/>',
        *_histogram(bins),
        "</svg>",
    ]
    return "".join(parts)


def _x(value: float) -> float:
    return round(_LEFT + _SIZE * value, 1)


def _y(value: float) -> float:
    return round(_TOP + _SIZE * (1 - value), 1)


def _axes() -> list[str]:
    parts = [f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}"/>']
    for tick in (0.0, 0.5, 1.0):
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{_y(tick) + 4}">{tick:g}</text>')
        parts.append(f'<text class="mid" x="{_x(tick)}" y="{_TOP + _SIZE + 15}">{tick:g}</text>')
    middle = _TOP + _SIZE / 2
    parts.append(f'<text class="mid" x="{_x(0.5)}" y="{_TOP + _SIZE + 30}">confidence</text>')
    parts.append(
        f'<text class="mid" x="13" y="{middle}" transform="rotate(-90 13 {middle})">accuracy</text>'
    )
    return parts


def _bars(bins: DiagramBins) -> list[str]:
    """Accuracy as a bar, and the gap to the mean confidence hatched on top of it."""
    count, parts = len(bins.counts), []
    for number, samples in enumerate(bins.counts):
        if not samples:
            continue
        accuracy, confidence = bins.accuracy[number], bins.confidence[number]
        left, width = _x(number / count), round(_SIZE / count, 1)
        low, high = sorted((accuracy, confidence))
        kind = "over" if confidence > accuracy else "under"
        title = (
            f"<title>confidence {confidence:.3f}, accuracy {accuracy:.3f}, "
            f"{samples:.0f} predictions</title>"
        )
        parts.append(
            f'<g><rect class="accuracy" x="{left}" y="{_y(accuracy)}" width="{width}" '
            f'height="{round(_SIZE * accuracy, 1)}"/><rect class="gap {kind}" x="{left}" '
            f'y="{_y(high)}" width="{width}" height="{round(_SIZE * (high - low), 1)}"/>{title}</g>'
        )
    return parts


def _histogram(bins: DiagramBins) -> list[str]:
    base = _TOP + _SIZE + _BOTTOM - 18
    most, total, count = max(bins.counts), sum(bins.counts), len(bins.counts)
    parts = [
        f'<rect class="count" x="{_x(number / count)}" '
        f'y="{base - _HISTOGRAM * samples / most:.1f}" '
        f'width="{_SIZE / count - 1:.1f}" height="{_HISTOGRAM * samples / most:.1f}"/>'
        for number, samples in enumerate(bins.counts)
        if samples
    ]
    note = f"where the {total:,.0f} predictions fell"
    parts.append(f'<text class="mid" x="{_x(0.5)}" y="{base + 14}">{note}</text>')
    return parts
