"""MMCE: hand-worked values, double loop, golden vectors, the prefix-sum form, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from sfumato.labels.mmce import MMCELoss, mmce_loss, mmce_penalty
from tools.endurance.loss_references import penalty_of

CASES = ["c2", "c10", "c200", "c10_large", "allright", "allwrong"]


def batch(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, dtype=dtype), torch.randint(shape[1], (shape[0], *shape[2:]))


def test_two_samples_by_hand() -> None:
    # confidences 3/4 (right) and 2/3 (wrong)
    logits = torch.tensor([[math.log(3), 0.0], [0.0, math.log(2)]], dtype=torch.float64)
    kernel = math.exp(-(3 / 4 - 2 / 3) / 0.4)
    gaps = (1 / 4, -2 / 3)
    plain = (gaps[0] ** 2 + gaps[1] ** 2 + 2 * gaps[0] * gaps[1] * kernel) / 4
    weighted = math.sqrt(gaps[0] ** 2 + gaps[1] ** 2 + 2 * gaps[0] * gaps[1] * kernel)
    target = torch.tensor([0, 0])
    assert mmce_penalty(logits, target).item() == pytest.approx(plain, rel=1e-12)
    assert mmce_penalty(logits, target, weighted=True).item() == pytest.approx(weighted, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_against_reference(weighted: bool) -> None:
    logits, target = batch(40, 5)
    expected = penalty_of("mmce", logits, target, weighted=weighted).item()
    assert mmce_penalty(logits, target, weighted=weighted).item() == pytest.approx(expected)


@pytest.mark.parametrize("case", CASES)
def test_golden(golden, case: str) -> None:
    arrays = golden("losses")
    logits = torch.tensor(arrays[f"{case}.logits"]).requires_grad_()
    target = torch.tensor(arrays[f"{case}.labels"])
    for value, name, gradient_name in [
        (mmce_penalty(logits, target), "mmce.term", "mmce.term_grad"),
        (mmce_penalty(logits, target, weighted=True), "mmce_w.term", "mmce_w.term_grad"),
        (mmce_loss(logits, target), "mmce.loss", "mmce.grad"),
    ]:
        (gradient,) = torch.autograd.grad(value, logits)
        expected = arrays[f"{case}.{gradient_name}"]
        np.testing.assert_allclose(value.item(), arrays[f"{case}.{name}"], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_weight_zero_is_cross_entropy() -> None:
    logits, target = batch(6, 4)
    torch.testing.assert_close(
        mmce_loss(logits, target, weight=0.0), F.cross_entropy(logits, target)
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_gradcheck(weighted: bool) -> None:
    logits, target = batch(7, 4)
    target[2] = -100
    assert gradcheck(lambda z: mmce_loss(z, target, weighted=weighted), logits.requires_grad_())


def test_tied_confidences_have_the_gradient_of_abs() -> None:
    """Rows with exactly equal confidence: the order in which they come must not matter."""
    row = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    logits = torch.stack([row, row, row, 2 * row]).requires_grad_()
    target = torch.tensor([0, 0, 1, 0])
    (gradient,) = torch.autograd.grad(mmce_penalty(logits, target), logits)
    order = torch.tensor([2, 1, 0, 3])
    (turned,) = torch.autograd.grad(mmce_penalty(logits[order], target[order]), logits)
    torch.testing.assert_close(gradient, turned, rtol=1e-12, atol=1e-15)
    confidence = logits.softmax(1).amax(1)
    gap = (logits.argmax(1) == target).double() - confidence
    kernel = (-(confidence[:, None] - confidence[None]).abs() / 0.4).exp()
    (expected,) = torch.autograd.grad((gap[:, None] * gap[None] * kernel).sum() / 16, logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


def test_the_first_of_equal_logits_is_the_prediction() -> None:
    # only class 0 counts as right: gaps 2/3, -1/3, -1/3, 2/3 under a kernel of ones
    value = mmce_penalty(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
    assert value.item() == pytest.approx((2 / 3) ** 2 / 16)


def test_a_million_pixels_need_no_matrix() -> None:
    logits = torch.randn(2, 3, 720, 720, requires_grad=True)
    target = torch.randint(3, (2, 720, 720))
    value = mmce_penalty(logits, target)
    value.backward()
    exact = mmce_penalty(logits.detach().double(), target)
    assert value.item() == pytest.approx(exact.item(), rel=1e-4)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True])
def test_batch_of_one(weighted: bool) -> None:
    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64, requires_grad=True)
    right = mmce_penalty(logits, torch.tensor([0]), weighted=weighted)
    wrong = mmce_penalty(logits, torch.tensor([1]), weighted=weighted)
    power = 1 if weighted else 2
    assert right.item() == pytest.approx((1 / 4) ** power)
    assert wrong.item() == pytest.approx((3 / 4) ** power)


def test_root_at_zero_has_zero_gradient() -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    value = mmce_penalty(logits, torch.tensor([0, 1]), weighted=True)
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...], weighted: bool) -> None:
    logits = torch.randn(shape, requires_grad=True)
    target = torch.full((shape[0], *shape[2:]), -100)
    value = mmce_loss(logits, target, weighted=weighted)
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_dense_with_ignored_is_the_flat_batch_without_them(weighted: bool) -> None:
    logits, target = batch(2, 4, 3, 5)
    target[0, 1] = 255
    dense = logits.clone().requires_grad_()
    mmce_loss(dense, target, weighted=weighted, ignore_index=255).backward()
    flat = logits.movedim(1, -1).reshape(-1, 4).clone().requires_grad_()
    keep = target.flatten() != 255
    mmce_loss(flat[keep], target.flatten()[keep], weighted=weighted).backward()
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad.movedim(1, -1).reshape(-1, 4), flat.grad)


def test_reductions_agree() -> None:
    logits, target = batch(5, 3)
    target[1] = -100
    each = mmce_loss(logits, target, reduction="none")
    assert each.shape == (5,)
    assert each[1] == 0
    torch.testing.assert_close(each.sum(), mmce_loss(logits, target, reduction="sum"))
    torch.testing.assert_close(each.sum() / 4, mmce_loss(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = batch(8, 5)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = mmce_loss(half, target)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, mmce_loss(half.detach().float(), target))
    assert half.grad is not None
    assert half.grad.dtype == dtype


@pytest.mark.parametrize("weighted", [False, True])
def test_huge_logits(weighted: bool) -> None:
    logits = (torch.randn(6, 4).sign() * 1e4 + torch.randn(6, 4)).requires_grad_()
    value = mmce_loss(logits, torch.tensor([0, 1, 2, 3, 0, 1]), weighted=weighted)
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_torch_func() -> None:
    logits, target = batch(6, 4)
    gradient = torch.func.grad(mmce_loss)(logits, target)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(mmce_loss(logits, target), logits)
    torch.testing.assert_close(gradient, expected)


def test_second_derivative() -> None:
    logits, target = batch(4, 3)
    assert torch.autograd.gradgradcheck(lambda z: mmce_loss(z, target), logits.requires_grad_())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": -1.0}, ValueError, "weight must be in"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of"),
    ],
)
def test_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mmce_loss(torch.randn(2, 3), torch.tensor([0, 1]), **change)
    with pytest.raises(error, match=message):
        MMCELoss(**change)


def test_soft_target_is_refused() -> None:
    with pytest.raises(TypeError, match="target must hold class indices"):
        mmce_loss(torch.randn(2, 3), torch.full((2, 3), 1 / 3))


def test_module_is_function() -> None:
    logits, target = batch(6, 4)
    target[0] = 1
    module = MMCELoss(weight=2.0, weighted=True, ignore_index=1, reduction="sum")
    expected = mmce_loss(logits, target, weight=2.0, weighted=True, ignore_index=1, reduction="sum")
    assert torch.equal(module(logits, target), expected)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_compiled_is_eager(weighted: bool) -> None:
    logits, target = batch(16, 5, dtype=torch.float32)
    logits.requires_grad_()
    compiled = torch.compile(lambda z, y: mmce_loss(z, y, weighted=weighted), fullgraph=True)
    value, eager = compiled(logits, target), mmce_loss(logits, target, weighted=weighted)
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)
