"""Smooth = Blur after Prob: golden vectors, low-pass properties, modes of running it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sfumato.features import Smooth, blur_features, bound_features, smooth_features

KINDS = ("tanh", "relu6", "scale", "none", "identity")
PADDINGS = ("zeros", "replicate", "reflect", "grow")


def test_hand_worked() -> None:
    z = torch.tensor([[[[-4.0, 20.0], [5.0, 0.0]]]], dtype=torch.float64)
    high, low = 10 * math.tanh(2.0), 10 * math.tanh(0.5)
    expected = [[(high + low) / 4, high / 4], [low / 4, 0.0]]
    assert smooth_features(z)[0, 0].tolist() == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("smooth", [smooth_features, lambda z, **options: Smooth(**options)(z)])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"prob": "soft"}, "prob must be one of"), ({"kernel": 5}, "kernel must be a vector")],
)
def test_wrong_options_are_named(smooth: Any, options: dict[str, Any], message: str) -> None:
    z = torch.zeros(1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    with pytest.raises((TypeError, ValueError), match=message):
        smooth(z, **options)


@pytest.mark.parametrize("name", ["a", "b"])
def test_golden_every_form(golden: Callable[[str], dict[str, Any]], name: str) -> None:
    data = golden("smooth")
    z = torch.from_numpy(data[f"{name}.x"])
    paddings = {"constant": "zeros", "replicate": "replicate", "reflect": "reflect"}
    kernels = {key: tuple(k) for key, k in data["params"]["kernels"].items()}
    checked = 0
    for key in data:
        parts = key.split(".")
        if parts[0] != name or parts[1] not in ("tanhblur", "tanhblur_pool"):
            continue
        tau = float(parts[-1].removeprefix("t"))
        if parts[1] == "tanhblur":
            module = Smooth(kernels[parts[2]], temperature=tau, padding=paddings[parts[3]])  # type: ignore[arg-type]
        else:
            module = Smooth(temperature=tau, padding="grow")
        np.testing.assert_allclose(module(z), data[key], rtol=1e-12, atol=1e-14)
        checked += 1
    assert checked == 20
    relu6 = Smooth((1, 2, 1), prob="relu6", padding="replicate")(z)
    np.testing.assert_allclose(relu6, data[f"{name}.relu6blur.k121.replicate"], rtol=1e-12)
    grown = Smooth(prob="relu6", padding="grow")(z)
    np.testing.assert_allclose(grown, data[f"{name}.relu6blur_pool"], rtol=1e-12)
    blurred = Smooth(prob="identity", padding="grow")(z)
    np.testing.assert_allclose(blurred, data[f"{name}.blur_pool"], rtol=1e-12)
    # The released scaling has no ReLU, which is Blur alone on the scaled map.
    scaled = Smooth((1, 2, 1), prob="identity", padding="replicate")(z / 5)
    np.testing.assert_allclose(scaled, data[f"{name}.scaling5blur.k121.replicate"], rtol=1e-12)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [(1,), (1, 1), (1, 2, 1)])
def test_module_is_function_is_composition(
    kernel: tuple[float, ...], kind: Any, padding: Any
) -> None:
    z = torch.randn(2, 3, 5, 6, dtype=torch.float64) * 6
    module = Smooth(kernel, prob=kind, temperature=4.0, padding=padding)
    function = smooth_features(z, kernel, prob=kind, temperature=4.0, padding=padding)
    composed = blur_features(
        bound_features(z, kind, temperature=4.0), kernel, padding=padding
    )  # Eq. (5)
    torch.testing.assert_close(function, composed, rtol=0, atol=0)
    torch.testing.assert_close(module(z), function, rtol=1e-12, atol=1e-14)


def test_constant_map_is_kept_away_from_the_border() -> None:
    z = torch.full((1, 2, 8, 8), 3.0, dtype=torch.float64)
    level = 10 * math.tanh(0.3)
    for kernel, border in (((1, 1), 1), ((1, 2, 1), 1), ((1, 4, 6, 4, 1), 2)):
        inner = smooth_features(z, kernel)[..., border:-border, border:-border]
        assert torch.allclose(inner, torch.full_like(inner, level))
        for padding in ("replicate", "reflect"):
            everywhere = smooth_features(z, kernel, padding=padding)
            assert torch.allclose(everywhere, torch.full_like(everywhere, level))


@pytest.mark.parametrize("direction", ["rows", "columns", "checkerboard"])
def test_two_by_two_box_removes_the_nyquist_pattern(direction: str) -> None:
    i, j = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    phase = {"rows": i, "columns": j, "checkerboard": i + j}[direction]
    z = ((-1.0) ** phase)[None, None]
    assert blur_features(z)[..., :-1, :-1].abs().max() < 1e-6
    assert blur_features(z, (1, 2, 1))[..., 1:-1, 1:-1].abs().max() < 1e-6


@settings(max_examples=40)
@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(lambda k: sum(k) > 0.1),
    st.sampled_from(["zeros", "grow"]),
    st.sampled_from(KINDS),
    st.integers(0, 1000),
)
def test_energy_never_grows(kernel: list[float], padding: Any, kind: Any, seed: int) -> None:
    z = 9 * torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(seed)).double()
    bounded = bound_features(z, kind)
    smooth = smooth_features(z, kernel, prob=kind, padding=padding)
    assert smooth.square().sum() <= bounded.square().sum() * (1 + 1e-12)


def test_damps_high_frequencies_most() -> None:
    noise = torch.randn(200, 1, 16, 16, dtype=torch.float64)
    gain = torch.fft.fft2(blur_features(noise)).abs().mean(0) / torch.fft.fft2(noise).abs().mean(0)
    diagonal = gain[0].diagonal()[:9]  # frequencies 0 to pi
    assert diagonal[0] > 0.9
    assert diagonal[8] < 0.1
    assert (diagonal[1:] < diagonal[:-1] + 0.05).all()


@given(st.floats(-1e20, 1e20), st.floats(0.5, 20))
def test_range_is_zero_to_temperature(value: float, temperature: float) -> None:
    z = torch.full((1, 1, 3, 3), value)
    out = smooth_features(z, temperature=temperature)
    assert out.min() >= 0
    assert out.max() <= temperature * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: Any) -> None:
    z = (torch.randn(1, 2, 3, 4, dtype=torch.float64) * 5).requires_grad_()
    module = Smooth(prob=kind)
    assert torch.autograd.gradcheck(module, z)
    assert torch.autograd.gradgradcheck(module, z)


@pytest.mark.parametrize("kind", KINDS)
def test_inplace_gives_the_same_values_and_gradients(kind: Any) -> None:
    start = (torch.randn(2, 3, 4, 5) * 5).requires_grad_()
    grads, outs = [], []
    for inplace in (False, True):
        out = Smooth(prob=kind, inplace=inplace)(start * 1.0)
        grads.append(torch.autograd.grad(out.square().sum(), start)[0])
        outs.append(out.detach())
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*grads)


def test_input_is_left_alone_unless_inplace() -> None:
    z = torch.randn(1, 2, 4, 4)
    before = z.clone()
    with torch.no_grad():
        Smooth()(z)
        assert torch.equal(z, before)
        Smooth(inplace=True)(z)
    assert not torch.equal(z, before)


def test_runs_under_inference_mode_and_vmap() -> None:
    z = torch.randn(4, 2, 3, 5, 5)
    module = Smooth()
    expected = torch.stack([module(part) for part in z])
    torch.testing.assert_close(torch.vmap(module)(z), expected)
    with torch.inference_mode():
        torch.testing.assert_close(module(z[0]), expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    z = torch.randn(2, 4, 6, 6) * 8
    out = Smooth()(z.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), Smooth()(z), atol=0.06, rtol=0.02)
    huge = torch.full((1, 1, 3, 3), 6e4, dtype=dtype)
    assert Smooth(padding="replicate")(huge).float().allclose(torch.tensor(10.0))


def test_autocast_trains() -> None:
    z = torch.randn(2, 4, 6, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = Smooth()(z)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_no_state_and_copies() -> None:
    module = Smooth((1, 2, 1), prob="relu6", padding="reflect")
    assert list(module.state_dict()) == []
    z = torch.randn(1, 2, 5, 5)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(z), module(z))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="feature map"):
        Smooth()(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="prob must be one of"):
        Smooth(prob="softmax")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("padding", PADDINGS)
def test_compiled_is_eager(padding: Any) -> None:
    module = Smooth(padding=padding)
    z = torch.randn(2, 3, 5, 6, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(z), module(z))
    (fast,) = torch.autograd.grad(compiled(z).sum(), z)
    (slow,) = torch.autograd.grad(module(z).sum(), z)
    torch.testing.assert_close(fast, slow)
