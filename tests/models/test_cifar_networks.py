"""Networks at CIFAR stems: published sizes, resolutions, smoothing, dropout, training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfumato.features import Smooth, add_dropout, add_smoothing
from sfumato.models import allconv, densenet, resnext, wide_resnet

Build = Callable[..., nn.Module]


def _small() -> dict[str, Callable[..., nn.Module]]:
    return {
        "wide_resnet": lambda **options: wide_resnet(10, num_classes=4, widen=1, **options),
        "resnext": lambda **o: resnext(11, num_classes=4, cardinality=2, group_width=4, **o),
        "densenet": lambda **options: densenet(10, num_classes=4, growth=4, **options),
        "allconv": lambda **options: allconv(num_classes=4, width=8, **options),
    }


@pytest.mark.parametrize(
    ("build", "options", "millions"),
    [
        (wide_resnet, {"depth": 40, "widen": 2}, "2.2"),
        (wide_resnet, {"depth": 16, "widen": 8}, "11.0"),
        (wide_resnet, {"depth": 28, "widen": 10}, "36.5"),
        (resnext, {"cardinality": 8, "group_width": 64}, "34.4"),
        (resnext, {"cardinality": 16, "group_width": 64}, "68.2"),
        (densenet, {"depth": 40, "growth": 12}, "1.0"),
        (densenet, {"depth": 100, "growth": 24}, "27.2"),
        (allconv, {}, "1.4"),
    ],
)
def test_sizes_are_the_published_ones(build: Build, options: dict[str, Any], millions: str) -> None:
    """Of the papers' tables. Xie et al. print 68.1 for what the released code makes 68.16."""
    with torch.device("meta"):
        network = build(num_classes=10, **options)
    assert f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f}" == millions


def test_the_small_resnext_counted_by_hand() -> None:
    """Four groups of 32: 3 stages of 3 bottlenecks, widths 128, 256, 512 inside."""
    total, inputs = 64 * 27 + 2 * 64, 64
    for stage in range(3):
        middle, outputs = 128 * 2**stage, 256 * 2**stage
        total += inputs * outputs + 2 * outputs  # the shortcut
        for _ in range(3):
            total += inputs * middle + 9 * middle * middle // 4 + middle * outputs
            total += 2 * (2 * middle + outputs)
            inputs = outputs
    with torch.device("meta"):
        network = resnext(num_classes=10)
    assert sum(p.numel() for p in network.parameters()) == total + inputs * 10 + 10


@pytest.mark.parametrize("name", _small())
def test_they_train_with_smoothing_and_dropout(name: str) -> None:
    build = _small()[name]
    plain, full = build(), build(smooth=True, dropout=0.2)
    assert plain.state_dict().keys() == full.state_dict().keys()
    places = [key for key, part in full.named_modules() if isinstance(part, Smooth)]
    last = [] if name in ("wide_resnet", "densenet") else ["stages.2.smooth"]
    assert places == ["stages.0.smooth", "stages.1.smooth", *last]
    assert any(isinstance(part, nn.Dropout) for part in full.modules())
    full(torch.randn(3, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in full.parameters())
    stem, stages = (full.eval().get_submodule(part) for part in ("stem", "stages"))
    assert stages(stem(torch.randn(1, 3, 32, 32))).shape[2:] == (8, 8)


@pytest.mark.parametrize("name", _small())
def test_layers_can_be_inserted_as_in_any_network(name: str) -> None:
    """Where the paper smooths: before each down-sampling, and before global pooling."""
    network = add_smoothing(_small()[name](), torch.zeros(1, 3, 32, 32))
    assert sum(isinstance(part, Smooth) for part in network.modules()) == 3
    if name != "densenet":  # its layers are rows of one convolution
        assert any(isinstance(p, nn.Dropout) for p in add_dropout(_small()[name](), 0.1).modules())


def test_impossible_depths() -> None:
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 4"):
        wide_resnet(41, num_classes=4)
    with pytest.raises(ValueError, match=r"depth must be 9n \+ 2"):
        resnext(30, num_classes=4)
    with pytest.raises(ValueError, match=r"depth must be 3n \+ 4"):
        densenet(41, num_classes=4)
