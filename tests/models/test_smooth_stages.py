"""Smoothing at chosen stages: the same key in every network, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfumato.features import Smooth
from sfumato.models import allconv, densenet, resnet, resnext, unet, vgg, wide_resnet

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet": lambda **o: resnet(18, num_classes=4, width=4, **o),
    "preactivation": lambda **o: resnet(18, num_classes=4, width=4, kind="preactivation", **o),
    "vgg": lambda **o: vgg(16, num_classes=4, width=4, head="gap", **o),
    "wide_resnet": lambda **o: wide_resnet(10, num_classes=4, widen=1, **o),
    "resnext": lambda **o: resnext(11, num_classes=4, group_width=4, **o),
    "densenet": lambda **o: densenet(7, num_classes=4, growth=4, **o),
    "allconv": lambda **o: allconv(num_classes=4, width=4, **o),
    "unet": lambda **o: unet(num_classes=4, width=2, depth=3, **o),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_named_stage_is_smoothed(name: str) -> None:
    """And the others still activate: a stage hands its ReLU over to a layer that is there."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"stages": [2], "kernel": (1, 2, 1), "padding": "grow"}
    network = NETWORKS[name](smooth=options).eval()
    found = {key: part for key, part in network.named_modules() if isinstance(part, Smooth)}
    place = "smooths.1.smooth" if name == "unet" else "stages.1.smooth"
    assert [*found] == [place]
    assert found[place].blur.kernel == (1, 2, 1)
    assert found[place].blur.padding == "grow"
    plain = NETWORKS[name]().eval()
    plain.load_state_dict(network.state_dict())
    host = plain.get_submodule(place.rpartition(".")[0])
    assert isinstance(host, nn.Sequential)
    layers = dict(host.named_children())
    pooled = [layers.popitem() for key in tuple(layers) if key == "pool" and name == "densenet"]
    blurred = nn.Sequential(*layers.values(), found[place], *(part for _, part in pooled))
    plain.set_submodule(place.rpartition(".")[0], blurred)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(network(images), plain(images))


def test_stages_that_a_network_has_not() -> None:
    for stages in ([5], [0], []):
        with pytest.raises(ValueError, match=r"smooth.stages must be numbers of stages, 1 to 4"):
            resnet(18, num_classes=4, width=4, smooth={"stages": stages})
    last = resnet(18, num_classes=4, width=4, kind="preactivation", smooth={"stages": [4]})
    assert [key for key, part in last.named_modules() if isinstance(part, Smooth)] == [
        "stages.3.smooth"
    ]


def test_mlp_without_dropout() -> None:
    """The same weights as with it, and the same logits in evaluation mode (Appendix C.1)."""
    for build in (resnet, vgg):
        depth: Any = 18 if build is resnet else 16
        with_it = build(depth, num_classes=4, width=4, head="mlp").eval()
        without = build(depth, num_classes=4, width=4, head="mlp_without_dropout").eval()
        without.load_state_dict(with_it.state_dict())
        assert not any(isinstance(part, nn.Dropout) for part in without.modules())
        images = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(without(images), with_it(images))
