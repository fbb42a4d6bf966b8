"""The histogram of a regulariser's values."""

from __future__ import annotations

import pytest
import torch

from sfumato.analysis import RegulariserValues, plot_regularisers


def test_share_and_bars() -> None:
    found = RegulariserValues(torch.tensor([0.0, 0.0, 0.0, 0.012, 5.0]))
    assert found.inactive == pytest.approx(0.6)
    figure = plot_regularisers({"a": found, "b": found}, upper=0.1, bins=10)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx([0.6, 0.2, *[0.0] * 7, 0.2])  # the last is clipped into 0.1
    assert "nothing for 60.0%" in figure.axes[1].get_title()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"values must be \(N,\)"):
        RegulariserValues(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="found must hold at least one"):
        plot_regularisers({})
