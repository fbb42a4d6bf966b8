"""MDCA: hand-worked value, class loop, golden vectors, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from sfumato.labels.mdca import MDCALoss, mdca_loss, mdca_penalty
from tools.endurance.loss_references import penalty_of

CASES = ["c2", "c10", "c200", "c10_large", "allright", "allwrong"]


def batch(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, dtype=dtype), torch.randint(shape[1], (shape[0], *shape[2:]))


def test_by_hand() -> None:
    # mean prediction (5/8, 3/8) against one label of each class
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert mdca_penalty(logits, torch.tensor([0, 1])).item() == pytest.approx(1 / 8, rel=1e-12)


def test_against_reference() -> None:
    logits, target = batch(12, 5)
    soft = torch.rand(12, 5, dtype=torch.float64).softmax(1)
    for each in (target, soft):
        expected = penalty_of("mdca", logits, each).item()
        assert mdca_penalty(logits, each).item() == pytest.approx(expected)


@pytest.mark.parametrize("case", CASES)
def test_golden(golden, case: str) -> None:
    arrays = golden("losses")
    logits = torch.tensor(arrays[f"{case}.logits"]).requires_grad_()
    target = torch.tensor(arrays[f"{case}.labels"])
    for value, name, gradient_name in [
        (mdca_penalty(logits, target), "term", "term_grad"),
        (mdca_loss(logits, target), "loss", "grad"),
    ]:
        (gradient,) = torch.autograd.grad(value, logits)
        expected = arrays[f"{case}.mdca.{gradient_name}"]
        np.testing.assert_allclose(value.item(), arrays[f"{case}.mdca.{name}"], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_limits() -> None:
    logits, target = batch(6, 4)
    torch.testing.assert_close(
        mdca_loss(logits, target, weight=0.0), F.cross_entropy(logits, target)
    )
    uniform = torch.zeros(8, 4)
    assert mdca_penalty(uniform, torch.arange(8) % 4).item() == 0.0


def test_soft_one_hot_is_hard() -> None:
    logits, target = batch(6, 4)
    soft = F.one_hot(target, 4).double()
    torch.testing.assert_close(mdca_loss(logits, soft), mdca_loss(logits, target))


def test_gradcheck() -> None:
    logits, target = batch(6, 4)
    target[2] = -100
    logits.requires_grad_()
    assert gradcheck(lambda z: mdca_loss(z, target, weight=3.0), logits)
    assert gradgradcheck(lambda z: mdca_loss(z, target, weight=3.0), logits)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_dense_with_ignored_is_the_flat_batch_without_them(layout: str) -> None:
    logits, target = batch(2, 4, 3, 5)
    target[0, 1] = 255
    dense = logits.clone()
    if layout == "channels_last":
        dense = dense.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        dense = torch.stack([logits, logits], -1)[..., 0]
    dense.requires_grad_()
    mdca_loss(dense, target, ignore_index=255).backward()
    flat = logits.movedim(1, -1).reshape(-1, 4).clone().requires_grad_()
    keep = target.flatten() != 255
    mdca_loss(flat[keep], target.flatten()[keep]).backward()
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad.movedim(1, -1).reshape(-1, 4), flat.grad)


def test_batch_of_one_and_two_classes() -> None:
    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    assert mdca_penalty(logits, torch.tensor([1])).item() == pytest.approx(3 / 4)


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5), (2, 4, 0)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    value = mdca_loss(logits, torch.full((shape[0], *shape[2:]), -100))
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_reductions_agree() -> None:
    logits, target = batch(5, 3)
    target[1] = -100
    each = mdca_loss(logits, target, reduction="none")
    assert each.shape == (5,)
    assert each[1] == 0
    torch.testing.assert_close(each.sum(), mdca_loss(logits, target, reduction="sum"))
    torch.testing.assert_close(each.sum() / 4, mdca_loss(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = batch(8, 5)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = mdca_loss(half, target)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, mdca_loss(half.detach().float(), target))
    assert half.grad is not None
    assert half.grad.dtype == dtype


def test_huge_logits() -> None:
    logits = (torch.randn(6, 4).sign() * 1e4 + torch.randn(6, 4)).requires_grad_()
    value = mdca_loss(logits, torch.tensor([0, 1, 2, 3, 0, 1]))
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_torch_func() -> None:
    logits, target = batch(3, 6, 4)
    target = torch.randint(4, (3, 6))
    gradients = torch.func.vmap(torch.func.grad(mdca_loss))(logits, target)
    for row, label, gradient in zip(logits, target, gradients, strict=True):
        row.requires_grad_()
        (expected,) = torch.autograd.grad(mdca_loss(row, label), row)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"weight": -1.0}, "weight must be in"), ({"reduction": "avg"}, "reduction must be one of")],
)
def test_bad_parameters(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mdca_loss(torch.randn(2, 3), torch.tensor([0, 1]), **change)
    with pytest.raises(ValueError, match=message):
        MDCALoss(**change)


def test_bad_target() -> None:
    with pytest.raises(ValueError, match="target must be class indices in"):
        mdca_loss(torch.randn(2, 3), torch.tensor([0, 3]))


def test_module_is_function() -> None:
    logits, target = batch(6, 4)
    module = MDCALoss(weight=2.0, ignore_index=1, reduction="sum")
    expected = mdca_loss(logits, target, weight=2.0, ignore_index=1, reduction="sum")
    assert torch.equal(module(logits, target), expected)


@pytest.mark.slow
def test_compiled_is_eager() -> None:
    logits, target = batch(16, 5, dtype=torch.float32)
    logits.requires_grad_()
    value, eager = (
        torch.compile(mdca_loss, fullgraph=True)(logits, target),
        mdca_loss(logits, target),
    )
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)
