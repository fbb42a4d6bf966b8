"""Consistency and its kin against hand-worked values and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sfumato.metrics import (
    consistency,
    cross_entropy_consistency,
    flip_rate,
    relative_confidence,
)


def _probs(count: int = 5, frames: int = 7, classes: int = 4) -> torch.Tensor:
    return torch.randn(count, frames, classes, dtype=torch.float64).mul(3).softmax(2)


def test_consistency_by_hand() -> None:
    probs = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]])
    assert consistency(probs).tolist() == pytest.approx([1 / 3])
    assert consistency(probs, reference="first").tolist() == pytest.approx([2 / 3])
    assert flip_rate(probs).tolist() == pytest.approx([2 / 3])


@pytest.mark.parametrize("reference", ["previous", "first"])
def test_consistency_equals_a_loop(reference: str) -> None:
    probs = _probs()
    classes = probs.numpy().argmax(2)
    for n, got in enumerate(consistency(probs, reference=reference).tolist()):  # type: ignore[arg-type]
        kept = [
            classes[n, t] == classes[n, t - 1 if reference == "previous" else 0]
            for t in range(1, 7)
        ]
        assert got == pytest.approx(sum(kept) / 6)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_cross_entropy_consistency_equals_a_loop(form: str) -> None:
    probs = _probs()
    p = probs.numpy()
    for n, got in enumerate(cross_entropy_consistency(probs, form=form).tolist()):  # type: ignore[arg-type]
        if form == "paper":
            terms = [-(p[n, i] * np.log(p[n, i + 1])).sum() for i in range(6)]
        else:
            terms = [-(p[n, i] * np.log(p[n, i - 1])).mean() for i in range(1, 7)]
        assert got == pytest.approx(np.mean(terms))


def test_a_still_and_certain_sequence() -> None:
    probs = torch.zeros(2, 5, 3)
    probs[..., 1] = 1.0
    assert consistency(probs).tolist() == [1.0, 1.0]
    assert cross_entropy_consistency(probs).tolist() == [0.0, 0.0]
    assert flip_rate(probs).tolist() == [0.0, 0.0]


def test_a_certain_change_of_mind_is_finite() -> None:
    probs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert cross_entropy_consistency(probs).item() == pytest.approx(-math.log(1e-12))
    assert consistency(probs).item() == 0.0


def test_relative_confidence_is_one_where_right() -> None:
    probs = _probs()
    right = relative_confidence(probs, probs.argmax(2))
    assert torch.equal(right, torch.ones_like(right))
    target = torch.tensor([0, 1, 2, 3, 0])
    got = relative_confidence(probs, target)
    assert got.shape == (5, 7)
    for n in range(5):
        for t in range(7):
            expected = probs[n, t, target[n]] / probs[n, t].max()
            assert got[n, t].item() == pytest.approx(expected.item())


def test_gradients() -> None:
    probs = _probs(2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(cross_entropy_consistency, (probs,))
    target = torch.tensor([0, 2])
    assert torch.autograd.gradcheck(lambda p: relative_confidence(p, target), (probs,))


def test_empty_batch() -> None:
    assert consistency(torch.zeros(0, 4, 3)).shape == (0,)
    assert cross_entropy_consistency(torch.zeros(0, 4, 3)).shape == (0,)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"at least two frames, got \(2, 1, 3\)"):
        consistency(torch.zeros(2, 1, 3))
    with pytest.raises(TypeError, match="probs must be floating point"):
        flip_rate(torch.zeros(2, 4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="probs must be finite"):
        cross_entropy_consistency(torch.full((1, 2, 2), float("nan")))
    with pytest.raises(ValueError, match=r"reference must be one of .*'next'"):
        consistency(torch.zeros(2, 3, 3), reference="next")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"form must be one of .*'other'"):
        cross_entropy_consistency(torch.zeros(2, 3, 3), form="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one class for each of \(4,\) predictions"):
        relative_confidence(torch.ones(4, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"class indices in \[0, 2\), got 5"):
        relative_confidence(torch.ones(1, 2), torch.tensor([5]))


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    probs = _probs()
    for measure in (consistency, flip_rate, cross_entropy_consistency):
        assert torch.allclose(torch.compile(measure)(probs), measure(probs))
