"""AdaptiveBlurPool."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.engine.config.build import build_component
from sfumato.features import AdaptiveBlurPool, add_blur_pool


@pytest.mark.parametrize("sum_to", ["group", "all"])
def test_place_by_place(sum_to: str) -> None:
    layer = AdaptiveBlurPool(4, 2, groups=2, sum_to=sum_to).double().eval()
    layer.norm.running_mean.uniform_()
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    found = layer(x)
    mirrored = F.pad(x, (1, 1, 1, 1), mode="reflect")
    assert found.shape == (2, 4, 3, 3)
    for n, i, j in ((0, 0, 0), (1, 2, 1), (0, 1, 2)):
        patch = mirrored[n, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        scores = (layer.convolution.weight * patch).sum((1, 2, 3)) - layer.norm.running_mean
        scores = scores / (layer.norm.running_var + layer.norm.eps).sqrt()
        shares = scores.exp().view(2, 9)
        total = shares.sum() if sum_to == "all" else shares.sum(1, keepdim=True)
        for channel in range(4):
            weight = (shares / total)[channel // 2]
            expected = (weight * patch[channel].flatten()).sum()
            torch.testing.assert_close(found[n, channel, i, j], expected)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_constant_maps_stay_at_every_size(size: int) -> None:
    found = AdaptiveBlurPool(8).eval()(torch.full((2, 8, size, size), 7.0))
    torch.testing.assert_close(found, torch.full((2, 8, (size + 1) // 2, (size + 1) // 2), 7.0))


def test_gradient() -> None:
    layer = AdaptiveBlurPool(2, groups=1).double()
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


def test_a_network_keeps_its_names_and_learns_its_kernels() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.Conv2d(12, 5, 1, stride=2)
    )
    x = torch.randn(4, 1, 16, 16)
    before, names = network(x), set(network.state_dict())
    with pytest.raises(ValueError, match="needs example"):
        add_blur_pool(network, adaptive=True)
    add_blur_pool(network, adaptive=True, example=x)
    found = network(x)
    assert found.shape == before.shape
    assert names < set(network.state_dict())
    found.sum().backward()
    layers = [part for part in network.modules() if isinstance(part, AdaptiveBlurPool)]
    assert [layer.groups for layer in layers] == [4, 4, 4]  # what 12 channels have in common with 8
    assert all(layer.convolution.weight.grad is not None for layer in layers)


@pytest.mark.parametrize(
    "name", ["resnet", "vgg", pytest.param("torchvision:resnet18", marks=pytest.mark.slow)]
)
def test_in_a_study(name: str) -> None:
    spec = {"name": name, "blur_pool": "adaptive", "smooth": True, "dropout": 0.1}
    spec |= {} if ":" in name else {"width": 4}
    given = {"num_classes": 3, "in_channels": 3, "image_size": 32, "data_size": (32, 32)}
    network = build_component("model", spec, **given)
    assert any(isinstance(part, AdaptiveBlurPool) for part in network.modules())
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(TypeError, match=r"blur_pool of model .* must be"):
        build_component("model", {**spec, "blur_pool": "fixed"}, **given)


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="groups must divide"):
        AdaptiveBlurPool(12)
    with pytest.raises(ValueError, match="size must be odd"):
        AdaptiveBlurPool(8, size=4)


def test_an_empty_batch_has_an_empty_result() -> None:
    pool = AdaptiveBlurPool(8, groups=2)
    for module in (pool, pool.eval()):
        assert module(torch.zeros(0, 8, 8, 8)).shape == (0, 8, 4, 4)
