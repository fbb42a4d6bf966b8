"""BlurPool and MaxBlurPool."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.engine.config.build import build_component
from sfumato.features import BlurPool, MaxBlurPool, add_blur_pool


def test_by_hand() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    found = BlurPool(2)(x)
    mirrored = F.pad(x, (1, 1, 1, 1), mode="reflect")[0, 0]
    weight = torch.tensor([1.0, 2.0, 1.0])
    for i in range(2):
        for j in range(2):
            patch = mirrored[2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            assert found[0, 0, i, j].item() == pytest.approx(float(weight @ patch @ weight) / 16)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("kernel", [(1, 1), (1, 2, 1), (1, 4, 6, 4, 1)])
def test_constant_maps_stay_at_every_size(size: int, kernel: tuple[int, ...]) -> None:
    found = BlurPool(2, kernel=kernel)(torch.full((2, 3, size, size), 7.0))
    assert found.shape == (2, 3, (size + 1) // 2, (size + 1) // 2)
    torch.testing.assert_close(found, torch.full_like(found, 7.0))


def test_max_blur_pool_is_both() -> None:
    x = torch.randn(2, 3, 9, 8)
    expected = BlurPool(2)(F.max_pool2d(x, 3, 1, 1))
    assert torch.equal(MaxBlurPool(3, 2, 1)(x), expected)
    pooled = add_blur_pool(nn.Sequential(nn.MaxPool2d(3, 2, 1)))
    assert torch.equal(pooled(x), expected)


def test_a_network_keeps_its_names_and_shapes_and_moves_less() -> None:
    """An image shifted by a pixel changes what is left of it by less."""
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 1, stride=2, bias=False),
    )
    x = torch.randn(8, 1, 32, 32)
    before, names = network(x), set(network.state_dict())

    def change() -> float:
        moved = network(x.roll(1, -1))
        return ((moved - network(x)).norm() / network(x).norm()).item()

    changed = change()
    add_blur_pool(network)
    assert network(x).shape == before.shape
    assert set(network.state_dict()) == names
    assert change() < 0.7 * changed


def test_points_are_blurred_before_a_convolution_of_points() -> None:
    point = nn.Conv2d(3, 5, 1, stride=2)
    x = torch.randn(2, 3, 6, 6)
    expected = F.conv2d(BlurPool(2)(x), point.weight, point.bias)
    torch.testing.assert_close(add_blur_pool(point)(x), expected)


def test_patches_that_do_not_overlap_stay() -> None:
    patches = nn.Sequential(nn.Conv2d(3, 5, 4, stride=4))
    with pytest.raises(ValueError, match="nothing in Sequential subsamples"):
        add_blur_pool(patches)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "resnet", "depth": 8, "width": 4},
        {"name": "vgg", "width": 4},
        {"name": "torchvision:mobilenet_v3_small"},
    ],
    ids=lambda spec: spec["name"],
)
def test_networks_of_a_study_take_it(spec: dict[str, object]) -> None:
    given = {"num_classes": 3, "in_channels": 3, "image_size": (32, 32), "data_size": (32, 32)}
    network = build_component("model", {**spec, "blur_pool": True}, **given)
    assert any(isinstance(part, BlurPool) for part in network.modules())
    plain = build_component("model", spec, **given)
    assert not any(isinstance(part, BlurPool) for part in plain.modules())
    plain.load_state_dict(network.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert network.eval()(images).shape == plain.eval()(images).shape


@pytest.mark.parametrize("options", [{"kernel": (-1.0, 1.0)}, {"kernel": (1.0, 1.0)}])
def test_a_failed_call_leaves_the_network_alone(options: dict[str, Any]) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.MaxPool2d(2))
    images = torch.zeros(1, 3, 16, 16)
    with pytest.raises(ValueError, match=r"kernel|size"):
        add_blur_pool(network, adaptive=True, example=images, **options)
    assert network(images).shape == (1, 8, 4, 4)


def test_pooling_that_returns_indices_is_refused() -> None:
    with pytest.raises(ValueError, match="leave out return_indices"):
        add_blur_pool(nn.Sequential(nn.MaxPool2d(2, return_indices=True)))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="stride must be at least 1"):
        BlurPool(0)
    with pytest.raises(ValueError, match="kernel"):
        BlurPool(kernel=())
