"""Figures: what they show is what they were given."""

from __future__ import annotations

import io
import math

import pytest
import torch
from matplotlib.figure import Figure

from sfumato.corruptions import (
    CORRUPTIONS,
    corruption_boxes,
    corruption_heatmap,
    corruption_sheet,
    frequency_curve,
    severity_curve,
)

SCORES = torch.rand(15, 5, generator=torch.Generator().manual_seed(0))


def _draw(figure: Figure) -> None:
    figure.savefig(io.BytesIO(), format="png", dpi=40)


@pytest.mark.parametrize("channels", [1, 3])
def test_sheet_has_a_picture_for_each_type_and_severity(channels: int) -> None:
    image = torch.randint(0, 256, (channels, 16, 16), dtype=torch.uint8)
    figure = corruption_sheet(image, names=("fog", "jpeg_compression"))
    assert len(figure.axes) == 10
    assert [axes.get_ylabel() for axes in figure.axes[::5]] == ["fog", "JPEG compression"]
    _draw(figure)


def test_heatmap_writes_every_number() -> None:
    figure = corruption_heatmap(SCORES)
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == [f"{value:.3g}" for value in SCORES.double().flatten().tolist()]
    _draw(figure)


@pytest.mark.parametrize(("by", "groups"), [("severity", 5), ("type", 15)])
def test_boxes_show_the_medians(by: str, groups: int) -> None:
    figure = corruption_boxes({"a": SCORES, "b": SCORES + 1.0}, by=by)  # type: ignore[arg-type]
    axes = figure.axes[0]
    assert len(axes.patches) == 2 * groups
    assert len(axes.get_xticklabels()) == groups
    medians = SCORES.double().quantile(0.5, dim=0 if by == "severity" else 1)
    lines = [torch.as_tensor(line.get_ydata()) for line in axes.lines]
    flat = {round(float(line[0]), 9) for line in lines if len(line) == 2 and line[0] == line[1]}
    assert {round(value, 9) for value in medians.tolist()} <= flat
    _draw(figure)


def test_curve_starts_at_the_clean_set() -> None:
    figure = severity_curve({"model": SCORES}, clean={"model": 0.05})
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4, 5]
    expected = [0.05, *SCORES.double().mean(dim=0).tolist()]
    assert list(line.get_ydata()) == pytest.approx(expected)
    bare = severity_curve({"model": SCORES})
    assert list(bare.axes[0].lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    _draw(figure)


def test_frequency_curve_is_in_units_of_pi() -> None:
    figure = frequency_curve([0.0, math.pi], {"model": torch.tensor([0.9, 0.5])})
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [0.0, 1.0]
    assert [float(v) for v in line.get_ydata()] == pytest.approx([0.9, 0.5])
    _draw(figure)


def test_bad_input_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"scores must be \(15, 5\) for 15 types and 5 sev.* \(3, 5\)"
    ):
        corruption_heatmap(SCORES[:3])
    with pytest.raises(ValueError, match=r"by must be one of .*'model'"):
        corruption_boxes({"a": SCORES}, by="model")  # type: ignore[arg-type]


def test_some_types_and_severities() -> None:
    figure = corruption_heatmap(SCORES[:3, 1:4:2], names=CORRUPTIONS[:3], severities=(2, 4))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["2", "4"]
    curve = severity_curve({"model": SCORES[:, 1:4:2]}, clean={"model": 0.1}, severities=(2, 4))
    assert list(curve.axes[0].lines[0].get_xdata()) == [0, 2, 4]
    boxes = corruption_boxes({"a": SCORES[:, :2]}, severities=(1, 2))
    assert len(boxes.axes[0].patches) == 2
