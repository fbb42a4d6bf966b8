"""add_smoothing over the families: where layers go, what stays, that it trains."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import segmentation

from sfumato.features import Smooth, add_smoothing, smooth_features
from sfumato.models import resnet, vgg


@dataclass(frozen=True)
class Family:
    name: str
    build: Callable[[], nn.Module]
    places: tuple[str, ...]
    size: int = 64
    slow: bool = False


def tv(name: str, *places: str, size: int = 64, slow: bool = False) -> Family:
    def build() -> nn.Module:
        lazy = name.startswith(("vgg", "googlenet", "inception"))
        quick = {"init_weights": False} if lazy else {}
        model = models.get_model(name, weights=None, num_classes=7, **quick)
        if name == "vgg11":  # 120 million weights less
            model.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 7))
        return model

    return Family(f"torchvision-{name}", build, places, size, slow)


def tm(name: str, *places: str, size: int = 64, slow: bool = True) -> Family:
    return Family(
        f"timm-{name}", lambda: timm.create_model(name, num_classes=7), places, size, slow
    )


def seg(name: str, *places: str, slow: bool) -> Family:
    def build() -> nn.Module:
        return getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=7)

    return Family(f"torchvision-{name}", build, places, 64, slow)


LAYERS = ("layer1", "layer2", "layer3", "layer4")
STAGES = ("stages.0", "stages.1", "stages.2", "stages.3")
FAMILIES = [
    tv("resnet18", *LAYERS),
    tv("resnet50", *LAYERS, slow=True),
    tv("resnext50_32x4d", *LAYERS, slow=True),
    tv("wide_resnet50_2", *LAYERS, slow=True),
    tv("vgg11", *(f"features.{n}" for n in (1, 4, 9, 14, 19))),
    tv("vgg16_bn", *(f"features.{n}" for n in (5, 12, 22, 32, 42)), slow=True),
    tv(
        "densenet121",
        *(f"features.transition{n}.conv" for n in (1, 2, 3)),
        "features.norm5",
        slow=True,
    ),
    tv("mobilenet_v2", *(f"features.{n}.conv.0" for n in (2, 4, 7, 14)), "features.18"),
    tv("mobilenet_v3_small", *(f"features.{n}.block.0" for n in (2, 4, 9)), "features.12"),
    tv("mobilenet_v3_large", *(f"features.{n}.block.0" for n in (2, 4, 7, 13)), "features.16"),
    tv("efficientnet_b0", *(f"features.{n}.0.block.0" for n in (2, 3, 4, 6)), "features.8"),
    tv(
        "efficientnet_v2_s",
        *("features.1", "features.2", "features.4.0.block.0", "features.6.0.block.0"),
        "features.7",
        slow=True,
    ),
    tv("regnet_y_400mf", *(f"trunk_output.block{n}" for n in (1, 2, 3, 4))),
    tv("regnet_x_400mf", *(f"trunk_output.block{n}" for n in (1, 2, 3, 4)), slow=True),
    tv("convnext_tiny", *(f"features.{n}" for n in (1, 3, 5, 7)), slow=True),
    tv("googlenet", "conv3", "inception3b", "inception4e", "inception5b"),
    tv("inception_v3", *("Conv2d_4a_3x3", "Mixed_5d", "Mixed_6e", "Mixed_7c"), size=299, slow=True),
    tv("shufflenet_v2_x0_5", "stage2", "stage3", "conv5"),
    tv("swin_t", "features.1", "features.3", "features.5", "permute"),
    tv("swin_v2_t", "features.1", "features.3", "features.5", "permute", slow=True),
    tv("maxvit_t", *(f"blocks.{n}" for n in range(4)), size=224, slow=True),
    seg("deeplabv3_resnet50", "backbone.layer1", slow=True),
    seg(
        "deeplabv3_mobilenet_v3_large",
        *(f"backbone.{n}.block.0" for n in (2, 4, 7)),
        slow=False,
    ),
    tm("resnet18", *LAYERS, slow=False),
    tm("resnet50d", *LAYERS),
    tm("seresnet50", *LAYERS),
    tm("resnetv2_50", *STAGES[:3], "norm"),
    tm("efficientnet_b0", *(f"blocks.{n}.0.bn1" for n in (1, 2, 3, 5)), "bn2", slow=False),
    tm("mobilenetv3_small_100", *(f"blocks.{n}.0.bn1" for n in (1, 2, 4)), "blocks.5"),
    tm("convnext_atto", *STAGES, slow=False),
    tm("regnety_002", "s1", "s2", "s3", "s4", slow=False),
    tm(
        "densenet121",
        *(f"features.transition{n}.conv" for n in (1, 2, 3)),
        "features.norm5",
    ),
    tm("swin_tiny_patch4_window7_224", "layers.0", "layers.1", "layers.2", "norm", size=224),
    tm("darknet53", *STAGES, "stages.4"),
    tm("repvgg_a0", *STAGES),
]
ALL = [pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f.slow else []) for f in FAMILIES]


def first(output: Any) -> Tensor:
    """The logits of whatever a model returns."""
    if isinstance(output, dict):
        return output["out"]
    return output if isinstance(output, Tensor) else output[0]


def places(model: nn.Module) -> list[str]:
    """Modules with a smoothing layer of their own."""
    names = [name for name, part in model.named_modules() if isinstance(part, Smooth)]
    return [name.removesuffix(".smooth").removesuffix(".smooth") for name in names]


@pytest.mark.parametrize("family", ALL)
def test_family(family: Family) -> None:
    model = family.build().train()
    images = torch.randn(2, 3, family.size, family.size)
    smoothed = add_smoothing(model, images)
    assert sorted(places(smoothed)) == sorted(family.places)
    assert places(model) == []
    assert list(smoothed.state_dict()) == list(model.state_dict())
    smoothed.load_state_dict(family.build().state_dict())
    smoothed.load_state_dict(model.state_dict())
    assert smoothed.training

    loss = first(smoothed(images)).square().mean()
    loss.backward()
    grads = [p.grad for p in smoothed.parameters() if p.grad is not None]
    assert len(grads) > 10
    assert all(grad.isfinite().all() for grad in grads)
    with torch.no_grad():
        plain, smooth = first(model.eval()(images)), first(smoothed.eval()(images))
    assert plain.shape == smooth.shape
    assert not torch.equal(plain, smooth)


@pytest.mark.parametrize("head", ["gap", "mlp", "gmaxp", "gmedp"])
@pytest.mark.parametrize("kind", ["resnet", "vgg"])
def test_our_models_equal_their_own_option(kind: str, head: Any) -> None:
    def build(smooth: bool) -> nn.Module:
        if kind == "vgg":
            return vgg(16, num_classes=5, width=4, head=head, smooth=smooth)
        return resnet(18, num_classes=5, width=8, head=head, smooth=smooth)

    images = torch.randn(2, 3, 32, 32)
    plain, own = build(False).eval(), build(True).eval()
    own.load_state_dict(plain.state_dict())
    added = add_smoothing(plain, images)
    assert places(added) == places(own)
    torch.testing.assert_close(added(images), own(images))


def test_unet(unet: nn.Module) -> None:
    images = torch.randn(2, 3, 16, 16)
    smoothed = add_smoothing(unet, images)
    assert places(smoothed) == ["down1", "down2"]
    assert smoothed(images).shape == (2, 5, 16, 16)
    smoothed(images).sum().backward()


def test_both_branches_read_the_smoothed_map() -> None:
    smoothed = add_smoothing(models.resnet18().eval(), torch.zeros(1, 3, 64, 64))
    seen: dict[str, Tensor] = {}
    for name in ("layer1.smooth", "layer1.1", "layer2.0.conv1", "layer2.0.downsample"):
        part = smoothed.get_submodule(name)
        part.register_forward_hook(
            lambda module, args, output, name=name: seen.update(
                {name: args[0].clone(), name + " out": output.clone()}
            )
        )
    smoothed(torch.randn(1, 3, 64, 64))
    expected = smooth_features(seen["layer1.1 out"])
    for reader in ("layer2.0.conv1", "layer2.0.downsample"):
        torch.testing.assert_close(seen[reader], expected)


def test_options_reach_the_layers() -> None:
    smoothed = add_smoothing(
        resnet(8, num_classes=4, width=4),
        torch.zeros(1, 3, 16, 16),
        kernel=(1, 2, 1),
        prob="relu6",
        padding="replicate",
    )
    layer = smoothed.get_submodule("stages.0.smooth")
    assert isinstance(layer, Smooth)
    assert (layer.blur.kernel, layer.blur.padding, layer.prob.kind) == (
        (1, 2, 1),
        "replicate",
        "relu6",
    )


def test_where_chooses() -> None:
    model, images = resnet(18, num_classes=4, width=4), torch.zeros(1, 3, 32, 32)
    assert places(add_smoothing(model, images, where=(3,))) == ["stages.2"]
    assert places(add_smoothing(model, images, where=[1, 4])) == ["stages.0", "stages.3"]
    names = ("stages.1.0", "stem")
    assert sorted(places(add_smoothing(model, images, where=names))) == sorted(names)


def test_channels_last_axis() -> None:
    swin = models.swin_t(num_classes=3).eval()
    images = torch.randn(1, 3, 64, 64)
    smoothed = add_smoothing(swin, images, where=("features.1",))
    maps: list[Tensor] = []
    swin.get_submodule("features.1").register_forward_hook(lambda m, a, out: maps.append(out))
    smoothed.get_submodule("features.1").register_forward_hook(lambda m, a, out: maps.append(out))
    swin(images), smoothed(images)
    expected = smooth_features(maps[0].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(maps[1], expected)


def test_copies_and_pickle() -> None:
    model = models.vgg11(num_classes=3, init_weights=False).features.eval()  # layers run from hooks
    images = torch.randn(1, 3, 32, 32)
    smoothed = add_smoothing(model, images)
    expected = smoothed(images)
    assert torch.equal(copy.deepcopy(smoothed)(images), expected)
    assert torch.equal(pickle.loads(pickle.dumps(smoothed))(images), expected)


def test_frozen_and_double_precision() -> None:
    model = resnet(8, num_classes=4, width=4).double().requires_grad_(False).eval()
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    smoothed = add_smoothing(model, images)
    assert smoothed(images).dtype == torch.float64
    assert not any(p.requires_grad for p in smoothed.parameters())


def test_vision_transformer_is_explained() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", depth=1)
    with pytest.raises(ValueError, match=r"nothing to smooth.*one resolution.*where=\('layer1'"):
        add_smoothing(vit, torch.zeros(1, 3, 224, 224))


def test_unrunnable_is_explained() -> None:
    with pytest.raises(ValueError, match=r"can't be run on an example_input of shape \(1, 1, 32"):
        add_smoothing(resnet(8, num_classes=4, width=4), torch.zeros(1, 1, 32, 32))


def test_bad_input() -> None:
    model, images = resnet(8, num_classes=4, width=4), torch.zeros(1, 3, 16, 16)
    with pytest.raises(ValueError, match=r"numbers of stages \(1 stages.0, 2 stages.1, 3 stages.2"):
        add_smoothing(model, images, where=(4,))
    with pytest.raises(ValueError, match="where must hold numbers"):
        add_smoothing(model, images, where=())
    with pytest.raises(ValueError, match=r"'head'.*no module.*returns a feature map.*'stages.0'"):
        add_smoothing(model, images, where=("head",))
    with pytest.raises(TypeError, match="where must be 'stages', numbers"):
        add_smoothing(model, images, where="layer1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model must be"):
        add_smoothing(torch.relu, images)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="example_input must be a tensor"):
        add_smoothing(model, (1, 3, 16, 16))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"images \(N, C, H, W\) with N >= 1, got \(3, 16, 16\)"):
        add_smoothing(model, images[0])
    with pytest.raises(ValueError, match="has Smooth layers already"):
        add_smoothing(add_smoothing(model, images), images)
