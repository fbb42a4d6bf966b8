"""Residual networks: sizes, placements, kinds, gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torchvision import models

from sfumato.features import Smooth
from sfumato.models import resnet
from sfumato.models.layers import PreactivationResidual, Projection, Residual
from sfumato.predictions import MCDropout


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("depth", "kind", "name"),
    [
        (18, "standard", "resnet18"),
        (34, "standard", "resnet34"),
        (50, "standard", "resnet50"),
        (101, "standard", "resnet101"),
        (50, "resnext", "resnext50_32x4d"),
        (50, "wide", "wide_resnet50_2"),
    ],
)
def test_imagenet_stem_has_torchvisions_layers(depth: Any, kind: Any, name: str) -> None:
    with torch.device("meta"):
        ours = resnet(depth, num_classes=1000, stem="imagenet", kind=kind)
        theirs = models.get_model(name)
    assert count(ours) == count(theirs)

    def convolutions(model: nn.Module) -> list[Any]:
        return sorted(
            (p.in_channels, p.out_channels, p.kernel_size, p.stride, p.groups)
            for p in model.modules()
            if isinstance(p, nn.Conv2d)
        )

    assert convolutions(ours) == convolutions(theirs)


def test_same_output_as_torchvision() -> None:
    ours = resnet(18, num_classes=10, stem="imagenet", width=64).eval()
    theirs = models.resnet18(num_classes=10).eval()
    # Both register their weights in the order of the layers.
    values = list(theirs.state_dict().values())
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [8, 7])
def test_projection_is_a_strided_convolution(stride: int, side: int) -> None:
    ours, theirs = (
        Projection(3, 5, stride).double(),
        nn.Conv2d(3, 5, 1, stride, bias=False).double(),
    )
    theirs.load_state_dict(ours.state_dict())
    mine = torch.randn(2, 3, side, side, dtype=torch.float64).to(memory_format=torch.channels_last)
    yours = mine.clone()
    found, expected = ours(mine.requires_grad_()), theirs(yours.requires_grad_())
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for result in (found, expected):
        result.square().sum().backward()
    torch.testing.assert_close(mine.grad, yours.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert mine.grad is not None
    assert mine.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["standard", "preactivation"])
def test_no_convolution_of_single_pixels_strides(kind: Any) -> None:
    """oneDNN 3.13 dies in the backward pass of one with 8 channels, channels last, on AVX-512."""
    strides = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is F.conv2d or func is torch.conv2d:
                given = dict(zip(("input", "weight", "bias", "stride"), args, strict=False))
                given |= kwargs or {}
                if given["weight"].shape[2:] == (1, 1):
                    strides.append(given.get("stride", 1))
            return func(*args, **(kwargs or {}))

    network = resnet(50, num_classes=3, width=4, kind=kind)
    with Watch():
        network(torch.zeros(2, 3, 16, 16))
    assert strides
    assert all(stride in (1, (1, 1)) for stride in strides)


def test_narrow_network_on_large_batches_does_not_crash() -> None:
    """In a process of its own, since a segmentation fault can't be caught in this one."""
    script = """if True:
        import torch
        from sfumato.models import faster_rcnn, resnet
        network = resnet(8, num_classes=3, width=8).to(memory_format=torch.channels_last)
        images = torch.randn(64, 3, 64, 64).to(memory_format=torch.channels_last)
        network(images).sum().backward()
        statistics = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
        trunk = faster_rcnn(network, num_classes=3, **statistics).backbone.train()
        trunk(images)["0"].sum().backward()
    """
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=settings, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("depth", [8, 14, 18, 34, 50])
@pytest.mark.parametrize("kind", ["standard", "preactivation"])
def test_depths_and_map_sizes(depth: Any, kind: Any) -> None:
    model = resnet(depth, num_classes=6, width=4, kind=kind, smooth=True)
    sizes = []
    for stage in model.stages:
        stage.register_forward_hook(lambda m, a, out: sizes.append(tuple(out.shape[1:])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 6)
    expansion = 4 if depth >= 50 else 1
    stages = 3 if depth < 18 else 4
    assert sizes == [(4 * 2**n * expansion, 32 // 2**n, 32 // 2**n) for n in range(stages)]


def test_smooth_places() -> None:
    def names(model: nn.Module) -> list[str]:
        return [name for name, part in model.named_modules() if isinstance(part, Smooth)]

    standard = resnet(18, num_classes=4, width=4, smooth=True)
    assert names(standard) == [f"stages.{n}.smooth" for n in range(4)]
    before = resnet(18, num_classes=4, width=4, smooth=True, kind="preactivation")
    assert names(before) == [f"stages.{n}.smooth" for n in range(3)]
    assert names(resnet(18, num_classes=4, width=4)) == []


def test_smooth_options() -> None:
    model = resnet(
        8,
        num_classes=4,
        width=4,
        smooth={"kernel": (1, 2, 1), "prob": "scale", "temperature": 5.0, "padding": "reflect"},
    )
    layer = model.stages[0].smooth
    assert isinstance(layer, Smooth)
    assert layer.blur.kernel == (1, 2, 1)
    assert (layer.prob.kind, layer.prob.temperature) == ("scale", 5.0)
    assert layer.blur.padding == "reflect"


def test_growing_smooth_runs_with_the_released_sizes() -> None:
    model = resnet(18, num_classes=4, width=4, smooth={"padding": "grow"})
    sizes = []
    for stage in model.stages:
        stage.register_forward_hook(lambda m, a, out: sizes.append(out.shape[-1]))
    model(torch.randn(2, 3, 32, 32))
    assert sizes == [33, 18, 10, 6]  # the sizes of the released network


@pytest.mark.parametrize("prob", ["tanh", "relu6", "scale", "none", "identity"])
@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_activation_left_to_smooth_changes_nothing(prob: Any, activation: Any) -> None:
    """The same as stages that activate, then smooth out of place."""
    model = resnet(8, num_classes=4, width=4, smooth={"prob": prob}, activation=activation)
    reference = resnet(8, num_classes=4, width=4, activation=activation)
    reference.load_state_dict(model.state_dict())
    for stage in reference.stages:
        stage.add_module("smooth", Smooth(prob=prob))
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(4, (4,))
    for network in (model, reference):
        F.cross_entropy(network(images), labels).backward()
    torch.testing.assert_close(model(images), reference(images))
    for one, two in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4)


def test_dropout_before_the_last_convolution() -> None:
    for depth, last in ((8, "conv2"), (50, "conv3")):
        for kind in ("standard", "preactivation"):
            model = resnet(depth, num_classes=4, width=4, dropout=0.3, kind=kind)  # type: ignore[arg-type]
            blocks = [m for m in model.modules() if isinstance(m, Residual | PreactivationResidual)]
            for block in blocks:
                names = [name for name, _ in block.branch.named_children()]
                assert names[names.index("dropout") + 1] == last
            assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == len(blocks)


def test_weights_do_not_depend_on_smooth_and_dropout() -> None:
    plain = resnet(18, num_classes=4, width=4).eval()
    full = resnet(18, num_classes=4, width=4, smooth=True, dropout=0.3, activation="relu6")
    assert list(plain.state_dict()) == list(full.state_dict())
    full.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("head", ["gap", "mlp", "gmaxp", "gmedp"])
@pytest.mark.parametrize("kind", ["standard", "preactivation", "resnext", "wide"])
def test_every_kind_trains_with_every_head(kind: Any, head: Any) -> None:
    depth = 50 if kind in ("resnext", "wide") else 18
    model = resnet(
        depth, num_classes=4, width=16, kind=kind, head=head, smooth=True, dropout=0.1
    ).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    model(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_mc_dropout_with_smoothing() -> None:
    model = resnet(8, num_classes=4, width=4, smooth=True, dropout=0.3).eval()
    images = torch.randn(6, 3, 16, 16)
    mean = MCDropout(model, samples=200)(images, generator=torch.Generator().manual_seed(1))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        passes = torch.stack([model(images).softmax(1) for _ in range(200)])
    torch.testing.assert_close(mean, passes.mean(0), atol=0.05, rtol=0.0)


def test_autocast_and_half_batches() -> None:
    model = resnet(8, num_classes=4, width=4, smooth=True, norm="group")
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.randn(1, 3, 16, 16))
    assert out.isfinite().all()
    assert model.eval()(torch.zeros(0, 3, 16, 16)).shape == (0, 4)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="depth must be one of"):
        resnet(20, num_classes=4)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="'resnext' has bottlenecks: depth must be 50 or 101, got 18"
    ):
        resnet(18, num_classes=4, kind="resnext")
    with pytest.raises(ValueError, match="multiple of 16, got 8"):
        resnet(50, num_classes=4, kind="resnext", width=8)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\)"):
        resnet(8, num_classes=4, dropout=1.0)
    with pytest.raises(TypeError, match="smooth must be True, False or options"):
        resnet(8, num_classes=4, smooth="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key of smooth must be one of"):
        resnet(8, num_classes=4, smooth={"kernl": (1, 1)})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="head must be one of"):
        resnet(8, num_classes=4, head="cap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        resnet(8, num_classes=1)
