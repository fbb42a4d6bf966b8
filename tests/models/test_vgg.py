"""VGG networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from sfumato.features import Smooth
from sfumato.models import resnet, vgg


@pytest.mark.parametrize("depth", [16, 19])
def test_imagenet_size_has_torchvisions_layers(depth: Any) -> None:
    with torch.device("meta"):
        ours = vgg(depth, num_classes=1000, stem="imagenet")
        theirs = models.get_model(f"vgg{depth}_bn")
    biases = sum(m.out_channels for m in theirs.modules() if isinstance(m, nn.Conv2d))
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1] - biases  # a convolution before a norm needs no bias


def test_same_features_as_torchvision() -> None:
    ours = vgg(16, num_classes=10, head="gap").eval()
    theirs = models.vgg16_bn(init_weights=False).features[:43].eval()
    for module in theirs.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.bias)
    values = [v for key, v in theirs.state_dict().items() if _is_weight(theirs, key)]
    names = [key for key in ours.state_dict() if key.startswith("stages")]
    state = dict(zip(names, values, strict=True))
    ours.load_state_dict(state, strict=False)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.stages(images), theirs(images), atol=1e-4, rtol=1e-4)


def _is_weight(model: nn.Module, key: str) -> bool:
    name, _, part = key.rpartition(".")
    return not (isinstance(model.get_submodule(name), nn.Conv2d) and part == "bias")


@pytest.mark.parametrize("kind", ["standard", "preactivation"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("head", ["gap", "mlp", "gmaxp", "gmedp"])
def test_trains(kind: Any, dropout: float, head: Any) -> None:
    model = vgg(16, num_classes=4, width=4, kind=kind, dropout=dropout, head=head, smooth=True)
    model(torch.randn(3, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()(torch.randn(1, 3, 32, 32)).sum().backward()


def test_places() -> None:
    model = vgg(19, num_classes=4, width=4, smooth=True, dropout=0.3, head="gap")
    smooth = [name for name, part in model.named_modules() if isinstance(part, Smooth)]
    assert smooth == [f"stages.{n}.smooth" for n in range(5)]
    assert [len(list(stage.children())) for stage in model.stages] == [3, 4, 6, 6, 6]
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 16
    block = [name for name, _ in model.stages[0].block1.named_children()]
    assert block == ["conv", "norm", "activation", "dropout"]
    before = vgg(16, num_classes=4, width=4, kind="preactivation", dropout=0.3)
    block = [name for name, _ in before.stages[0].block1.named_children()]
    assert block == ["norm", "activation", "conv", "dropout"]
    assert isinstance(before.stages[0].block1.norm, nn.BatchNorm2d)
    assert before.stages[0].block1.norm.num_features == 3


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_left_to_smooth_changes_nothing(dropout: float) -> None:
    model = vgg(16, num_classes=4, width=4, smooth=True, dropout=dropout, head="gap").eval()
    reference = vgg(16, num_classes=4, width=4, dropout=dropout, head="gap").eval()
    reference.load_state_dict(model.state_dict())
    for stage in reference.stages:
        stage.add_module("smooth", Smooth())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(images), reference(images))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"depth must be one of \[16, 19\]"):
        vgg(11, num_classes=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind must be one of"):
        vgg(16, num_classes=4, kind="wide")  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [partial(vgg, 16, width=4), partial(resnet, 18, width=4)])
def test_relu6_is_everywhere(build: Any) -> None:
    """Also between the linear layers of the head, as in appendix C.3 of the smoothing paper."""
    network = build(num_classes=4, head="mlp", activation="relu6")
    kinds = {type(each) for each in network.modules()}
    assert nn.ReLU6 in kinds
    assert nn.ReLU not in kinds
