"""Feature clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.features import ClippedFeatures


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def test_features_are_clamped_before_the_last_layer_only() -> None:
    network, images = _network(), torch.randn(5, 4)
    clipped = ClippedFeatures(network, threshold=0.3)
    before = network(images)
    expected = network[2](network[:2](images).clamp(-0.3, 0.3))
    torch.testing.assert_close(clipped(images), expected)
    torch.testing.assert_close(clipped.features(images), network[:2](images))
    assert torch.equal(network(images), before)  # the network itself is as it was
    assert torch.equal(ClippedFeatures(network)(images), before)
    names = {f"model.{key}" for key in network.state_dict()}
    assert set(clipped.state_dict()) == {*names, "_extra_state"}


def test_the_threshold_is_in_the_state() -> None:
    clipped, loaded = ClippedFeatures(_network(), threshold=0.1), ClippedFeatures(_network())
    loaded.load_state_dict(clipped.state_dict())
    assert loaded.threshold == 0.1
    images = torch.randn(5, 4)
    assert torch.equal(loaded(images), clipped(images))


def test_fit_finds_where_features_went_astray() -> None:
    """A few features of great size are noise: clamping them is better than not to."""
    head = nn.Linear(6, 3)
    nn.init.orthogonal_(head.weight)
    nn.init.zeros_(head.bias)
    features = torch.randn(3000, 6)
    target = torch.multinomial(head(2 * features).softmax(1), 1).squeeze(1)
    spoiled = 2 * features
    stray = torch.rand(spoiled.shape) < 0.02
    spoiled[stray] = 60 * torch.randn(int(stray.sum()))
    clipped = ClippedFeatures(nn.Sequential(head)).fit(spoiled, target)
    assert 2 < clipped.threshold < 20
    with torch.no_grad():
        at = [
            float(F.cross_entropy(head(spoiled.clamp(-c, c)), target))
            for c in (clipped.threshold, 0.5 * clipped.threshold, 3 * clipped.threshold, math.inf)
        ]
    assert at[0] == min(at)


def test_nothing_to_clip() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    nn.init.eye_(network[0].weight)
    nn.init.zeros_(network[0].bias)
    features = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    assert ClippedFeatures(network).fit(features, torch.tensor([0, 1])).threshold == math.inf
    assert ClippedFeatures(network).fit(0 * features, torch.tensor([0, 1])).threshold == math.inf


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="must end in a linear layer"):
        ClippedFeatures(nn.Flatten())
    with pytest.raises(ValueError, match="threshold must be in"):
        ClippedFeatures(_network(), threshold=0.0)
    clipped = ClippedFeatures(_network())
    with pytest.raises(ValueError, match=r"features must be \(N, D\)"):
        clipped.fit(torch.zeros(0, 16), torch.zeros(0).long())
    with pytest.raises(ValueError, match="target must be class indices"):
        clipped.fit(torch.zeros(1, 16), torch.tensor([3]))
