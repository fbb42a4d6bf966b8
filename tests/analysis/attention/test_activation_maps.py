"""Activation maps against what each equation says, written out another way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import densenet121, mobilenet_v2, resnet18

from sfumato.analysis import (
    ActivationMaps,
    class_activation_map,
    grad_cam,
    grad_cam_plus_plus,
    plot_activation_maps,
)
from sfumato.analysis.attention import overlay_maps
from sfumato.models import resnet, vgg

METHODS = (class_activation_map, grad_cam, grad_cam_plus_plus)


def _network() -> nn.Module:
    return resnet(8, num_classes=5, width=4).eval()


def _images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 24, 32)


def test_cam_is_weights_times_features_and_adds_up_to_the_logit() -> None:
    model, images = _network(), _images()
    target = torch.tensor([0, 3, 4])
    found = class_activation_map(model, images, target)
    with torch.no_grad():
        features = model.stages(model.stem(images))
        logits = model(images)
    for n, c in enumerate(target.tolist()):
        expected = sum(
            model.head.linear.weight[c, k] * features[n, k] for k in range(features.shape[1])
        )
        torch.testing.assert_close(found.raw[n], expected.detach())
        total = found.raw[n].mean() + model.head.linear.bias[c]
        torch.testing.assert_close(total.detach(), logits[n, c], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "build",
    [
        _network,
        lambda: resnet18(num_classes=5),
        lambda: resnet(8, num_classes=5, width=4, kind="preactivation"),
    ],
    ids=["ours", "torchvision", "preactivation"],
)
def test_grad_cam_is_cam_without_its_negative_part(build: Callable[[], nn.Module]) -> None:
    model, images = build().eval(), torch.randn(2, 3, 64, 64)
    cam = class_activation_map(model, images)
    grad = grad_cam(model, images)
    points = cam.raw[0].numel()
    torch.testing.assert_close(grad.raw * points, cam.raw.relu(), atol=1e-4, rtol=1e-3)


class _Small(nn.Module):
    """A head that is not linear, so that slopes differ from place to place."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def test_grad_cam_plus_plus_by_explicit_loops() -> None:
    model, images = _Small().double(), torch.randn(2, 1, 4, 4, dtype=torch.float64)
    target = torch.tensor([1, 2])
    found = grad_cam_plus_plus(model, images, target, module="features")
    for n in range(2):
        maps = model.features(images[n : n + 1]).detach().requires_grad_()
        score = model.head(maps)[0, target[n]]
        g = torch.autograd.grad(score, maps)[0][0]
        a = maps.detach()[0]
        total = torch.zeros(4, 4, dtype=torch.float64)
        for k in range(3):
            weight = 0.0
            for i in range(4):
                for j in range(4):
                    above = g[k, i, j] ** 2
                    below = 2 * g[k, i, j] ** 2 + float(a[k].sum()) * g[k, i, j] ** 3
                    alpha = float(above / below) if below > 0 else 0.0
                    weight += alpha * max(0.0, float(g[k, i, j]))
            total += weight * a[k]
        torch.testing.assert_close(found.raw[n], total.clamp_min(0))


def test_default_target_range_and_probabilities() -> None:
    model, images = _network(), _images()
    found = grad_cam_plus_plus(model, images)
    with torch.no_grad():
        logits = model(images)
    assert torch.equal(found.target, logits.argmax(1))
    torch.testing.assert_close(found.probs, logits.softmax(1))
    assert found.maps.shape == (3, 24, 32)
    assert float(found.maps.min()) >= 0
    assert float(found.maps.max()) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_model_is_left_as_it_was(method: Callable[..., ActivationMaps]) -> None:
    model = resnet(8, num_classes=5, width=4).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.requires_grad_(False)
    method(model, _images())
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("build", [mobilenet_v2, densenet121])
def test_other_torchvision_networks(build: Callable[..., nn.Module]) -> None:
    model = build(num_classes=5).eval()
    found = grad_cam_plus_plus(model, torch.randn(1, 3, 64, 64))
    assert found.raw.shape == (1, 2, 2)


def test_cam_refuses_other_heads_and_modules() -> None:
    model = vgg(16, num_classes=5, width=4).eval()
    with pytest.raises(ValueError, match="global average pooling"):
        class_activation_map(model, torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match="global average pooling"):
        class_activation_map(_network(), _images(), module="stages.0")
    with pytest.raises(ValueError, match="modules must name"):
        grad_cam(_network(), _images(), module="nowhere")
    with pytest.raises(ValueError, match="target"):
        grad_cam(_network(), _images(), torch.tensor([0, 1, 7]))
    with pytest.raises(TypeError, match="normalised"):
        grad_cam(_network(), torch.zeros(1, 3, 24, 24, dtype=torch.uint8))


def test_overlay_and_figure() -> None:
    images = torch.full((2, 3, 24, 32), 100, dtype=torch.uint8)
    model = _network()
    found = grad_cam(model, images.float() / 255)
    assert torch.equal(overlay_maps(images, found.maps, opacity=0.0), images)
    full = overlay_maps(images, torch.ones(2, 24, 32), opacity=1.0)
    assert full[0, :, 0, 0].tolist() == [128, 0, 0]  # the red end of the colour map
    boxes = torch.tensor([[[2.0, 3.0, 10.0, 12.0]], [[0.0, 0.0, 0.0, 0.0]]])
    figure = plot_activation_maps(
        images, {"a": found, "b": found}, target=torch.tensor([1, 2]), classes="vwxyz", boxes=boxes
    )
    panels = figure.axes
    assert len(panels) == 6
    assert [len(panel.patches) for panel in panels] == [1, 1, 1, 0, 0, 0]
    assert all(len(panel.texts) == 3 for panel in (panels[1], panels[4]))
    with pytest.raises(ValueError, match="found must hold at least one"):
        plot_activation_maps(images, {}, target=torch.tensor([1, 2]), classes="vwxyz")
