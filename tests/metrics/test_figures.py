"""Figures show the numbers of the metrics, and can be saved."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    calibration_error,
    confidence_histogram,
    confidence_map,
    objectness_curve,
    reliability,
    reliability_diagram,
    risk_coverage,
    risk_coverage_curve,
)

Make = Callable[..., tuple[Tensor, Tensor]]


def size_of(figure) -> int:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    return len(buffer.getvalue())


@pytest.mark.parametrize("num_bins", [1, 15, 25, 100])
@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_reliability_diagram(make: Make, num_bins: int, temperature: float) -> None:
    probs, target = make(1000, 5, temperature=temperature)
    figure = reliability_diagram(reliability(probs, target, num_bins=num_bins), title="model")
    error = float(calibration_error(probs, target, num_bins=num_bins))
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("model\n")
    assert f"ECE {error:.2%}" in title
    assert "n = 1,000" in title
    shares = sum(bar.get_height() for bar in figure.axes[1].patches)
    assert shares == pytest.approx(1)
    assert size_of(figure) > 1000


def test_bars_reach_from_the_smaller_to_the_larger_of_accuracy_and_confidence() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    figure = reliability_diagram(reliability(probs, torch.tensor([0, 0, 1, 1]), num_bins=5))
    tops = {round(b.get_y() + b.get_height(), 4) for b in figure.axes[0].patches if b.get_hatch()}
    assert tops == {1.0, 0.75}  # two underconfident bins reach accuracy 1, one confidence 0.75


def test_confidence_histogram(make: Make) -> None:
    probs, target = make(500, 5)
    figure = confidence_histogram(reliability(probs, target, num_bins=25))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    accuracy = float((probs.argmax(1) == target).double().mean())
    assert labels[0] == f"accuracy {accuracy:.1%}"
    assert labels[1] == f"mean confidence {float(probs.amax(1).mean()):.1%}"
    assert size_of(figure) > 1000


@pytest.mark.parametrize("image", [None, torch.rand(3, 6, 9), torch.rand(1, 6, 9)])
def test_confidence_map(image: Tensor | None) -> None:
    probs = torch.randn(4, 6, 9).softmax(0)
    target = torch.randint(4, (6, 9))
    target[0] = 255
    figure = confidence_map(probs, target, image=image, title="scene", ignore_index=255)
    wrong = (probs.argmax(0) != target)[1:].float().mean()
    titles = [axes.get_title() for axes in figure.axes]
    assert f"wrong ({float(wrong):.1%})" in titles
    assert size_of(figure) > 1000


def test_reliability_of_one_image_beside_its_map() -> None:
    probs = torch.randn(4, 6, 9).softmax(0)
    target = torch.randint(4, (6, 9))
    target[0] = 255
    figure = confidence_map(probs, target, num_bins=10, ignore_index=255)
    rows, labels = probs[:, 1:].flatten(1).T, target[1:].flatten()
    expected = float(calibration_error(rows, labels, num_bins=10))
    assert f"ECE {expected:.2%}" in [axes.get_title() for axes in figure.axes]
    nothing = confidence_map(probs, torch.full((6, 9), 255), num_bins=10, ignore_index=255)
    assert "ECE 0.00%" in [axes.get_title() for axes in nothing.axes]


def test_confidence_map_takes_arrays() -> None:
    probs = torch.rand(4, 6, 9, generator=torch.Generator().manual_seed(0)).softmax(0)
    image = torch.zeros(3, 6, 9)
    arrays = (each.numpy() for each in (probs, probs.argmax(0), image))
    values, labels, picture = arrays
    figure = confidence_map(values, labels, image=picture, num_bins=5)  # type: ignore[arg-type]
    assert len(figure.axes) == 5


def test_confidence_map_wants_one_image() -> None:
    with pytest.raises(ValueError, match="target must be"):
        confidence_map(torch.rand(4, 6, 9), torch.zeros(9, 6, dtype=torch.long))


def test_risk_coverage_curve(make: Make) -> None:
    curves = {name: risk_coverage(*make(300, 5, seed=i)) for i, name in enumerate("abcde")}
    figure = risk_coverage_curve(curves, title="all")
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == list("abcde")
    assert size_of(figure) > 1000
    with pytest.raises(ValueError, match="at least one"):
        risk_coverage_curve({})


def test_objectness_curve_leaves_out_empty_bins() -> None:
    nothing = float("nan")
    curve = {
        "counts": [3, 0, 1],
        "objectness": [0.1, nothing, 0.9],
        "confidence": [0.5, nothing, 0.8],
        "accuracy": [0.25, nothing, 1.0],
    }
    figure = objectness_curve({"hard label": curve})
    for axes, expected in zip(figure.axes, ([0.5, 0.8], [0.25, 1.0]), strict=True):
        line = axes.lines[0]
        assert list(line.get_xdata()) == [0.1, 0.9]
        assert list(line.get_ydata()) == expected


def test_empty_bins_draw() -> None:
    bins = reliability(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    assert size_of(reliability_diagram(bins)) > 1000
    assert size_of(confidence_histogram(bins)) > 1000
