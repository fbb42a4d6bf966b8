"""Temporal smoothing against the formula, the golden vector and its laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sfumato.predictions import TemporalSmoother, TemporalStep


def _by_formula(probs: np.ndarray, length: int, decay: float) -> np.ndarray:
    smoothed = np.zeros_like(probs)
    for t in range(len(probs)):
        weights = [np.exp(-decay * k) for k in range(min(length, t) + 1)]
        parts = [w * probs[t - k] for k, w in enumerate(weights)]
        smoothed[t] = sum(parts) / sum(weights)
    return smoothed


@pytest.mark.parametrize("case", ["l08_k5", "l04_k3"])
def test_golden(golden: Callable[[str], dict[str, Any]], case: str) -> None:
    vectors = golden("temporal")
    smoother = TemporalSmoother(int(vectors[f"{case}.n_past"]), float(vectors[f"{case}.rate"]))
    frames = torch.from_numpy(vectors["probs"])
    found = torch.stack([smoother(frame[None])[0] for frame in frames])
    expected = torch.from_numpy(vectors[f"{case}.smoothed"])
    assert torch.allclose(found.double(), expected.double(), atol=1e-6)


@settings(max_examples=30)
@given(
    st.integers(0, 6), st.floats(0, 2), st.integers(1, 12), st.integers(1, 3), st.integers(0, 999)
)
def test_stream_equals_the_batch_formula(
    length: int, decay: float, frames: int, streams: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(frames, streams, 3, generator=generator, dtype=torch.float64).softmax(2)
    smoother = TemporalSmoother(length, decay)
    found = torch.stack([smoother(frame) for frame in probs])
    expected = _by_formula(probs.numpy(), length, decay)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14)
    assert torch.allclose(found.sum(2), torch.ones(frames, streams, dtype=torch.float64))


def test_state_survives_a_restart() -> None:
    probs = torch.rand(8, 2, 3, 4, 5).softmax(2)
    whole, first = TemporalSmoother(), TemporalSmoother()
    expected = [whole(frame) for frame in probs]
    for frame in probs[:4]:
        first(frame)
    second = TemporalSmoother()
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(second(f), e) for f, e in zip(probs[4:], expected[4:], strict=True))


def test_reset_of_one_stream() -> None:
    probs = torch.rand(3, 2, 4).softmax(2)
    smoother = TemporalSmoother()
    smoother(probs[0])
    smoother.reset(torch.tensor([True, False]))
    found = smoother(probs[1])
    assert torch.allclose(found[0], probs[1, 0])
    assert not torch.allclose(found[1], probs[1, 1])
    smoother.reset()
    assert torch.equal(smoother(probs[2][:1]), probs[2][:1])  # another number of streams is fine


def test_a_scene_cut_starts_the_stream_anew() -> None:
    smoother = TemporalSmoother(cut_threshold=0.2)
    probs = torch.rand(3, 2, 4).softmax(2)
    still, cut = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    cut[1] = 1.0
    smoother(probs[0], still)
    found = smoother(probs[1], cut)
    assert torch.allclose(found[1], probs[1, 1])
    assert not torch.allclose(found[0], probs[1, 0])
    with pytest.raises(ValueError, match="cut_threshold needs the images"):
        smoother(probs[2])


def test_constant_stream_and_no_past_are_unchanged() -> None:
    frame = torch.rand(1, 5).softmax(1)
    smoother = TemporalSmoother()
    assert all(torch.allclose(smoother(frame), frame) for _ in range(9))
    none = TemporalSmoother(length=0)
    assert all(torch.equal(none(f), f) for f in torch.rand(4, 1, 5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_step_exports_to_onnx(tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    step = TemporalStep(3, 0.8).eval()
    probs, history, seen = torch.rand(2, 4), torch.rand(3, 2, 4), torch.tensor([1.0, 3.0])
    program = torch.onnx.export(step, (probs, history, seen), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    names = [each.name for each in session.get_inputs()]
    feed = dict(zip(names, (probs.numpy(), history.numpy(), seen.numpy()), strict=True))
    found = session.run(None, feed)
    for ours, theirs in zip(step(probs, history, seen), found, strict=True):
        assert np.allclose(ours.numpy(), theirs, atol=1e-6)


def test_bad_input() -> None:
    smoother = TemporalSmoother()
    smoother(torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"keep its shape \(2, 3\).*reset\(\)"):
        smoother(torch.rand(3, 3))
    with pytest.raises(TypeError, match="probs must be floating point"):
        smoother(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="streams must be boolean"):
        smoother.reset(torch.tensor([True]))
    with pytest.raises(ValueError, match="length must be at least 0"):
        TemporalSmoother(-1)
    with pytest.raises(ValueError, match="decay must be in"):
        TemporalSmoother(5, -0.1)
