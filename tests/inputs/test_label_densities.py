"""A label's cross entropy as a density over predictions, and where that is highest."""

from __future__ import annotations

import math

import pytest
import torch

from sfumato.inputs import label_density, plot_label_densities


def test_it_is_the_density_of_a_dirichlet_distribution() -> None:
    label = torch.tensor([0.7, 0.2, 0.1])
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    expected = torch.distributions.Dirichlet(1 + label.double()).log_prob(probs).exp()
    torch.testing.assert_close(label_density(probs, label), expected)


def test_what_labels_ask_for() -> None:
    """Tempering lowers the slope and keeps the mode; smoothing moves it to the label (Fig. 4)."""
    grid = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]])
    one_hot, tempered, smoothed = (
        label_density(grid, torch.tensor(label))
        for label in ([1.0, 0.0, 0.0], [0.4, 0.0, 0.0], [0.6, 0.2, 0.2])
    )
    assert [int(each.argmax()) for each in (one_hot, tempered, smoothed)] == [0, 0, 1]
    assert float(tempered[0] / tempered[1]) < float(one_hot[0] / one_hot[1])
    ratio = math.log(float(one_hot[0] / one_hot[1]))
    assert ratio == pytest.approx(-math.log(0.6), rel=1e-6)  # the difference of cross entropies


def test_figure() -> None:
    labels = {"one-hot": torch.tensor([1.0, 0.0, 0.0]), "smoothed": torch.tensor([0.6, 0.2, 0.2])}
    figure = plot_label_densities(labels, points=10)
    assert [axis.get_title() for axis in figure.axes] == ["one-hot", "smoothed"]
    mode = figure.axes[1].lines[0].get_xydata()[0]
    assert tuple(mode) == pytest.approx((0.2 * 1.0 + 0.2 * 0.5, 0.2 * math.sqrt(3) / 2))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="probs must be"):
        label_density(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="at least 0"):
        label_density(torch.ones(2, 2), torch.tensor([-1.0, 2.0]))
    with pytest.raises(ValueError, match="labels must hold at least one entry"):
        plot_label_densities({})
