"""A network leaves Python together with its scaler: torch.export, ONNX, compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sfumato.predictions import (
    BiasScaler,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    LogitNormaliser,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    VectorScaler,
)

torch.manual_seed(0)
LOGITS = torch.randn(40, 4) * 3
TARGET = torch.multinomial((LOGITS / 2).softmax(1), 1)[:, 0]
NEW = torch.randn(6, 5)
SCALERS: dict[str, Callable[[], nn.Module]] = {
    "temperature": TemperatureScaler,
    "ensemble temperature": EnsembleTemperatureScaler,
    "normalised": LogitNormaliser,
    "normalised, order 2": partial(LogitNormaliser, order=2),
    "centred": partial(LogitNormaliser, order=0),
    "vector": VectorScaler,
    "spline": SplineScaler,
    "matrix": StructuredMatrixScaler,
    "bias": BiasScaler,
    "isotonic": IsotonicScaler,
}
# Isotonic scaling searches sorted values, which ONNX can't.
IN_ONNX = ["temperature", "ensemble temperature", "normalised, order 2"]
IN_ONNX_TOO = [name for name in SCALERS if name not in (*IN_ONNX, "isotonic")]


def _shipped(name: str) -> nn.Module:
    if name == "isotonic":
        pytest.importorskip("sklearn")
    scaler = SCALERS[name]()
    if "order" not in name and name != "centred":
        scaler.fit(logits=LOGITS, target=TARGET)  # type: ignore[operator]
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), scaler, nn.Softmax(1)).eval()


@pytest.mark.parametrize("name", SCALERS)
@pytest.mark.parametrize("strict", [True, False])
def test_torch_export(name: str, strict: bool) -> None:
    model = _shipped(name)
    torch.compiler.reset()  # old versions count the exports of a process and refuse the ninth
    batch = torch.export.Dim("batch", min=2)
    shapes = ({0: batch},)
    exported = torch.export.export(model, (NEW,), dynamic_shapes=shapes, strict=strict)
    torch.testing.assert_close(exported.module()(NEW[:3]), model(NEW[:3]))


@pytest.mark.parametrize(
    "name", [*IN_ONNX, *(pytest.param(name, marks=pytest.mark.slow) for name in IN_ONNX_TOO)]
)
def test_onnx(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, path = _shipped(name), tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(model, (NEW,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: NEW[:3].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(NEW[:3]), atol=1e-5, rtol=1e-4)


def test_the_exported_temperature_is_a_buffer() -> None:
    """Another temperature can be loaded into what was exported."""
    scaler = TemperatureScaler().fit(logits=LOGITS, target=TARGET)
    exported = torch.export.export(scaler, (LOGITS,)).module()
    other = TemperatureScaler().fit(logits=LOGITS * 2, target=TARGET)
    exported.load_state_dict(other.state_dict())
    torch.testing.assert_close(exported(LOGITS), other(LOGITS))


@pytest.mark.parametrize("make", [TemperatureScaler, EnsembleTemperatureScaler, LogitNormaliser])
def test_unfitted_scalers_are_refused_and_loaded_ones_work(make: type[nn.Module]) -> None:
    with pytest.raises(Exception, match="call fit"):
        torch.export.export(make(), (LOGITS,), strict=False)
    fitted = make().fit(logits=LOGITS, target=TARGET)  # type: ignore[operator]
    nested = nn.Sequential(nn.Identity(), make())
    nested.load_state_dict({f"1.{key}": value for key, value in fitted.state_dict().items()})
    assert torch.equal(nested(LOGITS), fitted(LOGITS))
    nested.load_state_dict({f"1.{key}": value for key, value in make().state_dict().items()})
    with pytest.raises(ValueError, match="call fit"):
        nested(LOGITS)
