"""add_dropout: one layer in each block, where the paper has it."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import segmentation

from sfumato.features import add_dropout
from sfumato.models import resnet, vgg


def added(model: nn.Module, rate: float = 0.31) -> list[str]:
    return [
        name.removesuffix(".dropout")
        for name, part in model.named_modules()
        if isinstance(part, nn.Dropout) and part.p == rate
    ]


def check(model: nn.Module, expected: int, places: list[str], size: int = 64) -> None:
    """Number and some places of layers; keys; unchanged in evaluation; every layer runs."""
    model.train()
    dropped = add_dropout(model, 0.31)
    names = added(dropped)
    assert len(names) == expected
    assert set(places) <= set(names)
    assert added(model) == []
    assert dropped.training
    assert list(dropped.state_dict()) == list(model.state_dict())

    ran: set[str] = set()
    for name in names:
        layer = dropped.get_submodule(name + ".dropout")
        layer.register_forward_hook(lambda module, args, out, name=name: ran.add(name))
    images = torch.randn(1, 3, size, size)
    with torch.no_grad():
        first, second = model.eval()(images), dropped.eval()(images)
    assert ran == set(names)
    for one, two in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(one, two)


def tensors(output: Any) -> list[Tensor]:
    return list(output.values()) if isinstance(output, dict) else [output]


CASES = [
    ("resnet18", 8, ["layer1.0.conv2", "layer4.1.conv2"]),
    ("resnext50_32x4d", 16, ["layer1.0.conv3", "layer4.2.conv3"]),
    ("mobilenet_v2", 17, ["features.1.conv.1", "features.17.conv.2"]),
    ("mobilenet_v3_small", 11, ["features.1.block.2", "features.11.block.3"]),
    ("efficientnet_b0", 16, ["features.1.0.block.2", "features.7.0.block.3"]),
    ("regnet_y_400mf", 16, ["trunk_output.block1.block1-0.f.c"]),
    ("shufflenet_v2_x0_5", 19, ["stage2.0.branch1.2", "stage2.0.branch2.5"]),
]
SLOW = [
    ("wide_resnet50_2", 16, ["layer1.0.conv3"]),
    ("vgg16_bn", 13, ["features.2", "features.42"]),
    ("densenet121", 58, ["features.denseblock1.denselayer1.conv2"]),
    ("convnext_tiny", 18, ["features.1.0.block.5"]),
    ("swin_t", 12, ["features.1.0.mlp.3"]),
    ("swin_v2_t", 12, ["features.1.0.mlp.3"]),
]


@pytest.mark.parametrize(
    ("name", "count", "places"),
    CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW],
)
def test_torchvision(name: str, count: int, places: list[str]) -> None:
    check(models.get_model(name, weights=None, num_classes=4), count, places)


def test_vgg_after_every_activation_but_not_in_the_classifier() -> None:
    model = models.vgg11(num_classes=4, init_weights=False)
    model.classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4)
    )
    check(model, 8, [f"features.{n}" for n in (1, 4, 7, 9, 12, 14, 17, 19)])


def test_googlenet() -> None:
    model = models.googlenet(num_classes=4, init_weights=False, aux_logits=False)
    check(model, 18, ["inception3a.branch2.1", "inception3a.branch3.1"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "place"),
    [
        ("resnet50d", 16, "layer1.0.conv3"),
        ("seresnet50", 16, "layer1.0.conv3"),
        ("resnetv2_50", 16, "stages.0.blocks.0.conv3"),
        ("efficientnet_b0", 16, "blocks.1.0.conv_pwl"),
        ("convnext_atto", 12, "stages.0.blocks.0.mlp.fc2"),
        ("regnety_002", 13, "s1.b1.conv3"),
        ("densenet121", 58, "features.denseblock1.denselayer1.conv2"),
    ],
)
def test_timm(name: str, count: int, place: str) -> None:
    check(timm.create_model(name, num_classes=4), count, [place])


@pytest.mark.slow
def test_deeplab_backbone_only() -> None:
    model = segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=4)
    check(model, 16, ["backbone.layer1.0.conv3"])


def test_unet(unet: nn.Module) -> None:
    check(unet, 5, ["down1.layers.3", "up1.layers.3"], size=16)


@pytest.mark.parametrize("kind", ["standard", "preactivation"])
@pytest.mark.parametrize("depth", [18, 50])
def test_our_resnet_equals_its_own_option(depth: Any, kind: Any) -> None:
    plain = resnet(depth, num_classes=4, width=4, kind=kind)
    own = resnet(depth, num_classes=4, width=4, kind=kind, dropout=0.31)
    own.load_state_dict(plain.state_dict())
    dropped = add_dropout(plain, 0.31)
    assert len(added(dropped)) == len(added(own)) == {18: 8, 50: 16}[depth]
    images = torch.randn(2, 3, 16, 16)
    outputs = []
    for model in (own, dropped):
        torch.manual_seed(3)
        outputs.append(model.train()(images))
    torch.testing.assert_close(*outputs)


def test_our_vgg_equals_its_own_option() -> None:
    plain = vgg(16, num_classes=4, width=4, head="gap")
    own = vgg(16, num_classes=4, width=4, head="gap", dropout=0.31)
    own.load_state_dict(plain.state_dict())
    dropped = add_dropout(plain, 0.31)
    images = torch.randn(2, 3, 32, 32)
    outputs = []
    for model in (own, dropped):
        torch.manual_seed(3)
        outputs.append(model.train()(images))
    torch.testing.assert_close(*outputs)


def test_linear_network_is_a_block() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert added(add_dropout(model, 0.31)) == ["2"]


def test_modes_of_parts_are_kept() -> None:
    model = resnet(8, num_classes=4, width=4).train()
    model.stem.eval()
    dropped = add_dropout(model, 0.31)
    assert dropped.training
    assert not dropped.stem.training
    assert dropped.get_submodule("stages.0.0.branch.conv2.dropout").training


def test_rate_zero_is_allowed() -> None:
    assert len(added(add_dropout(resnet(8, num_classes=4, width=4), 0.0), 0.0)) == 3


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\), got 1"):
        add_dropout(resnet(8, num_classes=4, width=4), 1.0)
    with pytest.raises(ValueError, match="rate must be in"):
        add_dropout(resnet(8, num_classes=4, width=4), -0.1)
    with pytest.raises(TypeError, match="rate must be a number"):
        add_dropout(resnet(8, num_classes=4, width=4), "0.3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model must be"):
        add_dropout("resnet", 0.3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Linear has no block of convolutions"):
        add_dropout(nn.Linear(3, 2), 0.3)


def test_a_model_whose_blocks_have_dropout_is_told_so() -> None:
    message = r"has dropout already, at the rate 0\.1, and no block without it: set the rate where"
    with pytest.raises(ValueError, match=message):
        add_dropout(resnet(8, num_classes=3, width=4, dropout=0.1), 0.3)
