"""Normalised cross entropy, log-expectation estimators: quadrature, golden vectors, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from sfumato.labels.likelihood import (
    NormalisedCrossEntropyLoss,
    bias_corrected_log_likelihood,
    geometric_log_likelihood,
    jensen_log_likelihood,
    log_normaliser,
    monte_carlo_log_likelihood,
    normalised_cross_entropy_loss,
)

CASES = ["nce10", "nce100", "nce10_large", "nce_equal"]
ESTIMATORS = [
    jensen_log_likelihood,
    monte_carlo_log_likelihood,
    bias_corrected_log_likelihood,
    geometric_log_likelihood,
]


def integral(logits: np.ndarray) -> float:
    """Z of appendix C as written: a sum over labels of an integral over the smoothing."""
    probs = np.exp(logits) / np.exp(logits).sum()
    classes = len(probs)
    amounts = (np.arange(20000) + 0.5) / 20000
    total = 0.0
    for j in range(classes):
        smoothed = (1 - amounts)[:, None] * np.eye(classes)[j] + amounts[:, None] / classes
        total += np.exp(smoothed @ np.log(probs)).mean()
    return total


def test_log_normaliser_by_hand() -> None:
    # f = (0.8, 0.2), g = 0.4: both terms are 0.4 / log 2 and 0.2 / log 2
    logits = torch.tensor([[math.log(4), 0.0]], dtype=torch.float64)
    expected = math.log(0.6 / math.log(2))
    assert log_normaliser(logits).item() == pytest.approx(expected, rel=1e-12)


def test_log_normaliser_is_the_integral() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64)
    for row, value in zip(logits.numpy(), log_normaliser(logits), strict=True):
        assert value.item() == pytest.approx(math.log(integral(row)), abs=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_golden(golden, case: str) -> None:
    arrays = golden("mollify")
    logits = torch.tensor(arrays[f"{case}.logits"]).requires_grad_()
    value = log_normaliser(logits)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    expected = arrays[f"{case}.log_z_grad"]
    np.testing.assert_allclose(value.detach(), arrays[f"{case}.log_z"], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())
    loss = normalised_cross_entropy_loss(logits, torch.tensor(arrays[f"{case}.targets"]))
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = arrays[f"{case}.grad"]
    np.testing.assert_allclose(loss.item(), arrays[f"{case}.loss"], rtol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_equal_probabilities_are_finite() -> None:
    logits = torch.zeros(2, 5, requires_grad=True)
    value = log_normaliser(logits)
    value.sum().backward()
    torch.testing.assert_close(value, torch.zeros(2), rtol=0, atol=1e-6)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.zeros(2, 5), rtol=0, atol=1e-6)


def test_smooth_where_series_and_logarithm_meet() -> None:
    """A two-class gap d gives x = d / 4: the series ends at d = 1."""
    gaps = torch.tensor([1 - 1e-9, 1 + 1e-9], dtype=torch.float64, requires_grad=True)
    value = log_normaliser(torch.stack([gaps, torch.zeros(2)], 1))
    (slope,) = torch.autograd.grad(value.sum(), gaps)
    torch.testing.assert_close(value[0], value[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(slope[0], slope[1], rtol=0, atol=1e-8)


def test_hard_target_is_its_one_hot() -> None:
    logits, target = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    hard = normalised_cross_entropy_loss(logits, target)
    soft = normalised_cross_entropy_loss(logits, F.one_hot(target, 4).float())
    torch.testing.assert_close(hard, soft)
    torch.testing.assert_close(
        hard, F.cross_entropy(logits, target) + log_normaliser(logits).mean()
    )


def test_gradcheck() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64)
    logits[0] = 0.3
    target = torch.tensor([0, -100, 2, 3])
    logits.requires_grad_()
    assert gradcheck(lambda z: normalised_cross_entropy_loss(z, target), logits)
    assert gradcheck(log_normaliser, logits)


@pytest.mark.parametrize("classes", [2, 5])
def test_huge_logits(classes: int) -> None:
    logits = (torch.randn(6, classes).sign() * 1e4 + torch.randn(6, classes)).requires_grad_()
    value = normalised_cross_entropy_loss(logits, torch.tensor([0, 1, 0, 1, 0, 1]))
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    value = normalised_cross_entropy_loss(logits, torch.full((shape[0], *shape[2:]), -100))
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_dense_half_precision_and_ignored() -> None:
    logits = torch.randn(2, 4, 3, 5).bfloat16()
    target = torch.randint(4, (2, 3, 5))
    target[0, 0] = 255
    flat, keep = logits.float().movedim(1, -1).reshape(-1, 4), target.flatten() != 255
    expected = normalised_cross_entropy_loss(flat[keep], target.flatten()[keep])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = normalised_cross_entropy_loss(logits, target, ignore_index=255)
    torch.testing.assert_close(value, expected)
    assert log_normaliser(logits).shape == (2, 3, 5)


def test_module_is_function() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    module = NormalisedCrossEntropyLoss(ignore_index=1, reduction="sum")
    expected = normalised_cross_entropy_loss(logits, target, ignore_index=1, reduction="sum")
    assert torch.equal(module(logits, target), expected)
    with pytest.raises(ValueError, match="reduction must be one of"):
        NormalisedCrossEntropyLoss(reduction="avg")  # type: ignore[arg-type]


def test_torch_func() -> None:
    logits, target = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    gradient = torch.func.grad(normalised_cross_entropy_loss)(logits, target)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(normalised_cross_entropy_loss(logits, target), logits)
    torch.testing.assert_close(gradient, expected)


def test_estimators_by_hand() -> None:
    copies = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    mean = 1 / 3
    variance = ((0.5 - mean) ** 2 + 2 * (0.25 - mean) ** 2) / (3 * 2)
    jensen = (math.log(0.5) + 2 * math.log(0.25)) / 3
    assert jensen_log_likelihood(copies).item() == pytest.approx(jensen)
    assert geometric_log_likelihood(copies).item() == pytest.approx(jensen)
    assert monte_carlo_log_likelihood(copies).item() == pytest.approx(math.log(mean))
    corrected = math.log(mean) + variance / (2 * mean**2)
    assert bias_corrected_log_likelihood(copies).item() == pytest.approx(corrected)


def test_correction_removes_most_of_the_bias() -> None:
    """Likelihoods uniform on (0.5, 1): the log expectation is log 0.75."""
    copies = (0.5 + 0.5 * torch.rand(3, 200_000, dtype=torch.float64)).log()
    truth = math.log(0.75)
    jensen, plain, corrected = (
        (estimator(copies).mean() - truth).item()
        for estimator in (
            jensen_log_likelihood,
            monte_carlo_log_likelihood,
            bias_corrected_log_likelihood,
        )
    )
    assert jensen < plain < -5e-3
    assert abs(corrected) < 0.1 * abs(plain)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_tiny_likelihoods_shift(estimator) -> None:
    copies = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(estimator(copies - 5000.0), estimator(copies) - 5000.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_copy_and_equal_copies(estimator) -> None:
    values = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(estimator(values[None]), values)
    torch.testing.assert_close(estimator(values.expand(6, 5)), values)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_impossible_copies(estimator) -> None:
    copies = torch.full((3, 2), -math.inf)
    copies[0, 1] = 0.0
    value = estimator(copies)
    assert value[0] == -math.inf
    assert not value.isnan().any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_dim_and_gradcheck(estimator) -> None:
    copies = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(estimator(copies, dim=1), estimator(copies.T))
    torch.testing.assert_close(estimator(copies, dim=-1), estimator(copies.T))
    assert gradcheck(estimator, copies)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_bad_input(estimator) -> None:
    with pytest.raises(ValueError, match="at least one copy along dim 0"):
        estimator(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="dim must name a dimension"):
        estimator(torch.zeros(2, 3), dim=2)
    with pytest.raises(TypeError, match="log_likelihood must be floating point"):
        estimator(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.slow
def test_compiled_is_eager() -> None:
    logits, target = torch.randn(16, 5, requires_grad=True), torch.randint(5, (16,))
    value = torch.compile(normalised_cross_entropy_loss, fullgraph=True)(logits, target)
    eager = normalised_cross_entropy_loss(logits, target)
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)
