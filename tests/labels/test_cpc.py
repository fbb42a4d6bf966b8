"""CPC: hand-worked values, pair loop, golden vectors, memory, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from sfumato.labels.cpc import CPCLoss, cpc_loss, discrimination_penalty, exclusion_penalty
from tools.endurance.loss_references import penalty_of

CASES = ["c10", "c200", "c10_large", "allright", "allwrong"]


def terms(logits: torch.Tensor, target: torch.Tensor) -> list[float]:
    """Both terms alone by the reference."""
    each = ((1.0, 0.0), (0.0, 1.0))
    names = ("discrimination_weight", "exclusion_weight")
    options = (dict(zip(names, weights, strict=True)) for weights in each)
    return [penalty_of("cpc", logits.detach(), target, **option).item() for option in options]


def batch(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, dtype=dtype), torch.randint(shape[1], (shape[0], *shape[2:]))


def test_by_hand() -> None:
    # probabilities 4/7, 2/7, 1/7 with label 0
    logits = torch.tensor([[4.0, 2.0, 1.0]], dtype=torch.float64).log()
    target = torch.tensor([0])
    discrimination = -(math.log(4 / 6) + math.log(4 / 5)) / 2
    exclusion = -(math.log(2 / 3) + math.log(1 / 3) + 2 * math.log(1 / 2)) / 4
    assert discrimination_penalty(logits, target).item() == pytest.approx(discrimination)
    assert exclusion_penalty(logits, target).item() == pytest.approx(exclusion)
    loss = -math.log(4 / 7) + 0.1 * discrimination + exclusion
    assert cpc_loss(logits, target).item() == pytest.approx(loss)


@pytest.mark.parametrize("classes", [3, 4, 5, 8])
def test_against_reference(classes: int) -> None:
    logits, target = batch(6, classes)
    discrimination, exclusion = terms(logits, target)
    assert discrimination_penalty(logits, target).item() == pytest.approx(discrimination)
    assert exclusion_penalty(logits, target).item() == pytest.approx(exclusion)


@pytest.mark.parametrize("case", CASES)
def test_golden(golden, case: str) -> None:
    arrays = golden("losses")
    logits = torch.tensor(arrays[f"{case}.logits"]).requires_grad_()
    target = torch.tensor(arrays[f"{case}.labels"])
    for function, name, gradient_name in [
        (discrimination_penalty, "bdc", "bdc_grad"),
        (exclusion_penalty, "bec", "bec_grad"),
        (cpc_loss, "loss", "grad"),
    ]:
        value = function(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        expected = arrays[f"{case}.cpc.{gradient_name}"]
        np.testing.assert_allclose(value.item(), arrays[f"{case}.cpc.{name}"], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_golden_discrimination_of_two_classes(golden) -> None:
    arrays = golden("losses")
    logits = torch.tensor(arrays["c2.logits"]).requires_grad_()
    value = discrimination_penalty(logits, torch.tensor(arrays["c2.labels"]))
    (gradient,) = torch.autograd.grad(value, logits)
    np.testing.assert_allclose(value.item(), arrays["c2.cpc.bdc"], rtol=1e-6)
    np.testing.assert_allclose(gradient, arrays["c2.cpc.bdc_grad"], rtol=1e-6, atol=1e-9)


def test_two_classes_have_no_pair_to_exclude() -> None:
    logits = torch.randn(4, 2, requires_grad=True)
    value = exclusion_penalty(logits, torch.tensor([0, 1, 0, 1]))
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_limits() -> None:
    logits, target = batch(6, 4)
    plain = cpc_loss(logits, target, discrimination_weight=0.0, exclusion_weight=0.0)
    torch.testing.assert_close(plain, F.cross_entropy(logits, target))
    level = torch.zeros(1, 6)
    least = 5 * math.log(2) / (2 * 4)
    assert exclusion_penalty(level, torch.tensor([3])).item() == pytest.approx(least)


def test_label_has_no_part_in_exclusion() -> None:
    logits, target = batch(5, 6)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(exclusion_penalty(logits, target), logits)
    assert (gradient.gather(1, target[:, None]) == 0).all()
    torch.testing.assert_close(gradient.sum(1), torch.zeros(5, dtype=torch.float64))


def test_gradcheck() -> None:
    logits, target = batch(4, 5)
    target[1] = -100
    logits.requires_grad_()
    assert gradcheck(lambda z: cpc_loss(z, target), logits)
    assert gradgradcheck(lambda z: cpc_loss(z, target), logits)


def test_many_blocks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = batch(9, 7)
    logits.requires_grad_()
    (whole,) = torch.autograd.grad(exclusion_penalty(logits, target), logits)
    monkeypatch.setattr("sfumato.labels.cpc._BLOCK_ELEMENTS", 12)
    monkeypatch.setattr("sfumato.labels.cpc._FACTORS_PER_LOG", 2)
    value = exclusion_penalty(logits, target)
    (parts,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(parts, whole)
    assert value.item() == pytest.approx(terms(logits, target)[1])


def test_a_thousand_classes_in_float32() -> None:
    """Products of 100 factors must not overflow, nor their logarithm lose the sum."""
    logits = 20 * torch.randn(3, 1000)
    target = torch.tensor([0, 500, 999])
    value = exclusion_penalty(logits, target).item()
    assert value == pytest.approx(exclusion_penalty(logits.double(), target).item(), rel=1e-5)


def test_memory_is_linear_in_the_classes() -> None:
    """The largest tensor that backward keeps has the size of the logits, not of their pairs."""
    logits = torch.randn(8, 64, requires_grad=True)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cpc_loss(logits, torch.arange(8))
    assert max(kept) <= logits.numel()


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    value = cpc_loss(logits, torch.full((shape[0], *shape[2:]), -100))
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_dense_with_ignored_is_the_flat_batch_without_them() -> None:
    logits, target = batch(2, 4, 3, 5)
    target[0, 1] = 255
    dense = logits.clone().requires_grad_()
    cpc_loss(dense, target, ignore_index=255).backward()
    flat = logits.movedim(1, -1).reshape(-1, 4).clone().requires_grad_()
    keep = target.flatten() != 255
    cpc_loss(flat[keep], target.flatten()[keep]).backward()
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad.movedim(1, -1).reshape(-1, 4), flat.grad)


@pytest.mark.parametrize("function", [cpc_loss, discrimination_penalty, exclusion_penalty])
def test_reductions_agree(function) -> None:
    logits, target = batch(5, 3)
    target[1] = -100
    each = function(logits, target, reduction="none")
    assert each.shape == (5,)
    assert each[1] == 0
    torch.testing.assert_close(each.sum(), function(logits, target, reduction="sum"))
    torch.testing.assert_close(each.sum() / 4, function(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = batch(8, 5)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = cpc_loss(half, target)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, cpc_loss(half.detach().float(), target))
    assert half.grad is not None
    assert half.grad.dtype == dtype


def test_huge_logits() -> None:
    logits = (torch.randn(6, 4).sign() * 1e4 + torch.randn(6, 4)).requires_grad_()
    value = cpc_loss(logits, torch.tensor([0, 1, 2, 3, 0, 1]))
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_torch_func() -> None:
    logits, target = batch(3, 5)
    gradient = torch.func.grad(cpc_loss)(logits, target)
    hessian = torch.func.jacrev(torch.func.grad(cpc_loss))(logits, target).reshape(15, 15)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(cpc_loss(logits, target), logits)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(hessian, hessian.T)
    assert torch.linalg.eigvalsh(hessian).min() > -1e-12  # all its terms are convex


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discrimination_weight": -1.0}, "discrimination_weight must be in"),
        ({"exclusion_weight": math.nan}, "exclusion_weight must be in"),
        ({"reduction": "avg"}, "reduction must be one of"),
    ],
)
def test_bad_parameters(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpc_loss(torch.randn(2, 3), torch.tensor([0, 1]), **change)
    with pytest.raises(ValueError, match=message):
        CPCLoss(**change)


@pytest.mark.parametrize("function", [cpc_loss, discrimination_penalty, exclusion_penalty])
def test_soft_target_is_refused(function) -> None:
    with pytest.raises(TypeError, match="target must hold class indices"):
        function(torch.randn(2, 3), torch.full((2, 3), 1 / 3))


def test_module_is_function() -> None:
    logits, target = batch(6, 4)
    module = CPCLoss(
        discrimination_weight=0.3, exclusion_weight=2.0, ignore_index=1, reduction="sum"
    )
    expected = cpc_loss(
        logits,
        target,
        discrimination_weight=0.3,
        exclusion_weight=2.0,
        ignore_index=1,
        reduction="sum",
    )
    assert torch.equal(module(logits, target), expected)


@pytest.mark.slow
def test_compiled_is_eager() -> None:
    logits, target = batch(16, 5, dtype=torch.float32)
    logits.requires_grad_()
    value, eager = torch.compile(cpc_loss, fullgraph=True)(logits, target), cpc_loss(logits, target)
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)
