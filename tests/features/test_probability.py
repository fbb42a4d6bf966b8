"""Prob: bounded, non-negative, the paper's forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from sfumato.features import Prob, bound_features

KINDS = ("tanh", "relu6", "scale", "none", "identity")


def test_hand_worked() -> None:
    z = torch.tensor([-5.0, 0.0, 4.0, 8.0], dtype=torch.float64)
    assert bound_features(z).tolist() == pytest.approx(
        [0.0, 0.0, 10 * math.tanh(0.4), 10 * math.tanh(0.8)]
    )
    assert bound_features(z, "tanh", temperature=2.0)[2].item() == pytest.approx(2 * math.tanh(2))
    assert bound_features(z, "relu6").tolist() == [0.0, 0.0, 4.0, 6.0]
    assert bound_features(z, "scale", temperature=5.0).tolist() == [0.0, 0.0, 0.8, 1.6]
    assert bound_features(z, "none").tolist() == [0.0, 0.0, 4.0, 8.0]
    assert bound_features(z, "identity").tolist() == z.tolist()


@pytest.mark.parametrize("name", ["a", "b"])
def test_golden(golden: Callable[[str], dict[str, Any]], name: str) -> None:
    data = golden("smooth")
    z = torch.from_numpy(data[f"{name}.x"])
    for tau in (10, 2):
        expected = data[f"{name}.tanh.t{tau}"]
        np.testing.assert_allclose(bound_features(z, temperature=float(tau)), expected, rtol=1e-12)
    np.testing.assert_allclose(bound_features(z, "relu6"), data[f"{name}.relu6"], rtol=1e-12)
    released = data[f"{name}.scaling5"]  # without the ReLU that the paper has
    expected = np.maximum(released, 0)
    np.testing.assert_allclose(bound_features(z, "scale", temperature=5.0), expected, rtol=1e-12)


@given(st.floats(-1e30, 1e30), st.floats(0.1, 100))
def test_tanh_stays_in_range(value: float, temperature: float) -> None:
    bound = bound_features(torch.tensor([value]), temperature=temperature).item()
    assert 0 <= bound <= temperature * (1 + 1e-6)


def test_limits() -> None:
    z = torch.randn(50, dtype=torch.float64)
    large = bound_features(z, temperature=1e6)  # tau to infinity is the identity
    torch.testing.assert_close(large, z.relu(), rtol=1e-9, atol=0.0)
    near_zero = torch.tensor(1e-4, dtype=torch.float64)
    for temperature in (0.5, 10.0):  # the slope at zero does not depend on tau
        slope = bound_features(near_zero, temperature=temperature) / near_zero
        assert slope.item() == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_and_its_gradient(kind: Any) -> None:
    z = (torch.randn(3, 4, dtype=torch.float64) * 5).requires_grad_()

    def bound(z: torch.Tensor) -> torch.Tensor:
        return bound_features(z, kind)

    assert torch.autograd.gradcheck(bound, z)
    assert torch.autograd.gradgradcheck(bound, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_keeps_dtype_and_input(dtype: torch.dtype) -> None:
    z = torch.randn(2, 3, dtype=dtype) * 8
    before = z.clone()
    for kind in KINDS:
        assert bound_features(z, kind).dtype == dtype
    assert torch.equal(z, before)


def test_empty() -> None:
    assert bound_features(torch.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_module_is_function(kind: Any) -> None:
    z = torch.randn(5, 7)
    module = Prob(kind, 3.0)
    torch.testing.assert_close(module(z), bound_features(z, kind, temperature=3.0))
    assert list(module.state_dict()) == []


def test_repr() -> None:
    assert repr(Prob()) == "Prob('tanh', temperature=10)"
    assert repr(Prob("relu6")) == "Prob('relu6')"


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        Prob("sigmoid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"temperature must be in \(0, inf\)"):
        Prob("tanh", 0.0)
    with pytest.raises(TypeError, match="z must be floating point"):
        bound_features(torch.ones(3, dtype=torch.int64))
