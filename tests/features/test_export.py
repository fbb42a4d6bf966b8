"""Smoothed models leave PyTorch: torch.export, ONNX, torch.compile, TorchScript traces."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.features import add_dropout, add_smoothing
from sfumato.models import resnet

PADDINGS = ("zeros", "replicate", "reflect", "grow")


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def small(padding: Any = "zeros") -> nn.Module:
    return resnet(8, num_classes=5, width=8, smooth={"padding": padding}, dropout=0.3).eval()


@pytest.fixture
def hooked(unet: nn.Module, images: Tensor) -> nn.Module:
    """A model whose layers run from hooks."""
    return add_smoothing(add_dropout(unet, 0.3), images).eval()


@pytest.mark.parametrize("padding", PADDINGS)
def test_torch_export(padding: Any, images: Tensor) -> None:
    model = small(padding)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    more = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(program.module()(more), model(more))


def test_torch_export_with_hooks(hooked: nn.Module, images: Tensor) -> None:
    program = torch.export.export(hooked, (images,))
    torch.testing.assert_close(program.module()(images), hooked(images))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PADDINGS, "hooks"])
@pytest.mark.filterwarnings("ignore")  # the exporter uses parts of torch that are going away
def test_onnx(name: Any, hooked: nn.Module, images: Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = hooked if name == "hooks" else small(name)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (images,), path, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    more = torch.randn(5, 3, 32, 32)
    (found,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(more), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "hooks"])
def test_compile_trains_and_predicts(kind: str, hooked: nn.Module, images: Tensor) -> None:
    model = hooked if kind == "hooks" else small()
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(images), model(images), atol=1e-4, rtol=1e-4)
    compiled(images).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("kind", ["own", "hooks"])
def test_torchscript_trace(kind: str, hooked: nn.Module, images: Tensor) -> None:
    model = hooked if kind == "hooks" else small()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but in use
        traced = torch.jit.trace(model, images)
    torch.testing.assert_close(traced(images), model(images))
