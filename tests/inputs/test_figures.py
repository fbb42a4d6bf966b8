"""Figures: what is drawn is what was computed, and every figure can be saved."""

from __future__ import annotations

import io

import pytest
import torch

from sfumato.inputs import (
    dct_change,
    information_ratio,
    noise_label_decay,
    plot_dct_change,
    plot_information,
    plot_mollification,
)


def _saved(figure: object) -> int:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)  # type: ignore[attr-defined]
    return file.tell()


@pytest.mark.parametrize("channels", [1, 3])
def test_mollification(channels: int) -> None:
    times = (0.0, 0.4, 1.0)
    image = torch.rand(channels, 16, 20)
    figure = plot_mollification(image, 2, classes=list("abcd"), times=times)
    assert _saved(figure) > 2_000
    assert len(figure.axes) == 4 * len(times)
    shown = torch.as_tensor(figure.axes[0].images[0].get_array())
    torch.testing.assert_close(shown.float().reshape(16, 20, channels), image.permute(1, 2, 0))
    heights = [bar.get_height() for bar in figure.axes[len(times) + 1].patches]
    decay = float(noise_label_decay(0.4))
    assert heights == pytest.approx([decay / 4, decay / 4, 1 - 0.75 * decay, decay / 4], abs=1e-6)


def test_information() -> None:
    images, times = torch.rand(5, 3, 16, 16), (0.0, 0.5, 1.0)
    figure = plot_information(images, times=times)
    assert _saved(figure) > 2_000
    median = figure.axes[0].lines[0].get_ydata()
    expected = [float(information_ratio(images, t).median()) for t in times]
    assert list(median) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_spectra(count: int) -> None:
    images = torch.rand(4, 3, 8, 8)
    changes = {f"shift_{i}": dct_change(images, lambda x, i=i: x + i) for i in range(count)}
    figure = plot_dct_change(changes, columns=2)
    assert _saved(figure) > 2_000
    assert figure.axes[0].get_title() == "shift 0"


def test_bad_input() -> None:
    image = torch.rand(3, 8, 8)
    with pytest.raises(ValueError, match=r"class indices in \[0, 2\), got 2"):
        plot_mollification(image, 2, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"times must be in \[0, 1\], got 2"):
        plot_mollification(image, 0, classes=["a", "b"], times=(0.0, 2.0))
    with pytest.raises(ValueError, match="changes must hold at least one"):
        plot_dct_change({})
    with pytest.raises(ValueError, match="at least one image"):
        plot_information(torch.rand(0, 3, 8, 8))
