"""Features before the last layer: found in networks of ours, of torchvision and of timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from sfumato.models import (
    HeadFeatures,
    allconv,
    densenet,
    resnet,
    timm_model,
    torchvision_model,
    vgg,
    wide_resnet,
)

OURS = {
    "resnet": partial(resnet, 8, width=4),
    "smooth resnet": partial(resnet, 8, width=4, smooth=True),
    "wide_resnet": partial(wide_resnet, 10, widen=1),
    "densenet": partial(densenet, 22),
    "vgg": partial(vgg, 16, width=4),
    "allconv": allconv,
}


def _taken(network: nn.Module, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    network.eval()
    torch.manual_seed(0)
    with torch.no_grad(), HeadFeatures(network) as head:
        logits = network(torch.rand(3, 3, size, size))
    (features,) = head.taken
    assert features.ndim == 2
    assert len(features) == 3
    assert features.std(0).max() > 0  # of the image, not of the network alone
    return features, logits


@pytest.mark.parametrize("name", OURS)
def test_networks_of_ours(name: str) -> None:
    _taken(OURS[name](num_classes=10), 32)


def test_features_are_what_the_layer_is_given() -> None:
    network = resnet(8, num_classes=10, width=4)
    features, logits = _taken(network, 32)
    torch.testing.assert_close(network.head.linear(features), logits)


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_networks_of_torchvision(name: str) -> None:
    _taken(torchvision_model(name, num_classes=10), 64)


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "test_vit"])
def test_networks_of_timm(name: str) -> None:
    if name not in pytest.importorskip("timm").list_models():
        pytest.skip(f"this timm has no {name}")
    size = 160 if name == "test_vit" else 64
    _taken(timm_model(name, num_classes=10), size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "densenet121", "vgg11_bn", "efficientnet_b0", "convnext_tiny"),
        *("mnasnet0_5", "regnet_y_400mf", "swin_t", "vit_b_32", "googlenet", "alexnet"),
    ],
)
def test_more_networks_of_torchvision(name: str) -> None:
    network: Callable[..., nn.Module] = partial(torchvision_model, num_classes=10)
    _taken(network(name), 224)


def test_names() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    wrapped = nn.ModuleDict({"network": network})
    with HeadFeatures(wrapped, "0") as head:  # a prefix of a wrapper may be left out
        network(torch.ones(2, 4))
    assert torch.equal(head.taken[0], torch.ones(2, 4))
    with pytest.raises(ValueError, match="has no modules 'trunk' to take features before; its"):
        HeadFeatures(network, "trunk")
    with pytest.raises(ValueError, match="no features found: ReLU has no linear"):
        HeadFeatures(nn.ReLU())
