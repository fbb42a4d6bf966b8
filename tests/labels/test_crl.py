"""CRL: hand-worked values, pair loop, golden vectors, the history and its processes, edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from sfumato.labels.crl import (
    ConfidenceKind,
    CRLLoss,
    conditional_confidence_penalty,
    crl_loss,
    ranking_penalty,
)
from tools.endurance.loss_references import penalty_of

KINDS: list[ConfidenceKind] = ["softmax", "margin", "entropy"]


def batch(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    entries = (shape[0], *shape[2:])
    correctness = torch.randint(4, entries).to(dtype) / 3
    return torch.randn(shape, dtype=dtype), torch.randint(shape[1], entries), correctness


def test_by_hand() -> None:
    # confidences 3/4 and 2/3, and the less confident one was right more often: twice 1/12 + 1/2
    logits = torch.tensor([[math.log(3), 0.0], [0.0, math.log(2)]], dtype=torch.float64)
    correctness = torch.tensor([0.25, 0.75], dtype=torch.float64)
    value = ranking_penalty(logits, torch.tensor([0, 1]), correctness)
    assert value.item() == pytest.approx(1 / 12 + 1 / 2, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_against_reference(kind: ConfidenceKind) -> None:
    logits, target, correctness = batch(11, 5)
    expected = penalty_of("crl", logits, target, extra=correctness, confidence=kind)
    value = ranking_penalty(logits, target, correctness, confidence=kind)
    assert value.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("case", ["crl", "crl_fresh"])
def test_golden(golden, case: str) -> None:
    arrays = golden("losses")
    logits = torch.tensor(arrays[f"{case}.logits"]).requires_grad_()
    target = torch.tensor(arrays[f"{case}.labels"])
    correctness = torch.tensor(arrays[f"{case}.history_normalised"][arrays[f"{case}.index"]])
    for kind in KINDS:
        value = ranking_penalty(logits, target, correctness, confidence=kind)
        (gradient,) = torch.autograd.grad(value, logits)
        expected = arrays[f"{case}.{kind}.rank_loss_grad"]
        np.testing.assert_allclose(value.item(), arrays[f"{case}.{kind}.rank_loss"], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())
    value = crl_loss(logits, target, correctness)
    (gradient,) = torch.autograd.grad(value, logits)
    np.testing.assert_allclose(value.item(), arrays[f"{case}.loss"], rtol=1e-6)
    np.testing.assert_allclose(gradient, arrays[f"{case}.grad"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", ["crl", "crl_fresh"])
def test_golden_history(golden, case: str) -> None:
    arrays = golden("losses")
    loss = CRLLoss(int(arrays[f"{case}.n_data"]))
    loss.history.counts.copy_(torch.tensor(arrays[f"{case}.history"]))
    loss.history.completed_epochs.fill_(int(arrays[f"{case}.epoch"]) - 1)
    everything = torch.arange(len(loss.history.counts))
    np.testing.assert_allclose(
        loss.history.correctness(everything), arrays[f"{case}.history_normalised"], rtol=1e-6
    )
    logits, target, index = (
        torch.tensor(arrays[f"{case}.{name}"]) for name in ("logits", "labels", "index")
    )
    np.testing.assert_allclose(loss(logits, target, index), arrays[f"{case}.loss"], rtol=1e-6)
    np.testing.assert_array_equal(loss.history.counts, arrays[f"{case}.history_after"])
    loss.history.end_epoch()
    after = int(arrays[f"{case}.max_correctness_after_epoch"])
    assert max(1, int(loss.history.completed_epochs)) == after


def test_limits() -> None:
    logits, target, correctness = batch(6, 4)
    torch.testing.assert_close(
        crl_loss(logits, target, correctness, weight=0.0), F.cross_entropy(logits, target)
    )
    assert ranking_penalty(logits, target, torch.full((6,), 0.5)).item() == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: ConfidenceKind) -> None:
    logits, target, correctness = batch(6, 4)
    target[2] = -100
    assert gradcheck(
        lambda z: crl_loss(z, target, correctness, confidence=kind), logits.requires_grad_()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_batch_of_one_has_no_partner(kind: ConfidenceKind) -> None:
    logits = torch.randn(1, 4, requires_grad=True)
    value = ranking_penalty(logits, torch.tensor([0]), torch.tensor([0.7]), confidence=kind)
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...], kind: ConfidenceKind) -> None:
    logits, target, correctness = batch(*shape, dtype=torch.float32)
    logits.requires_grad_()
    value = crl_loss(logits, torch.full_like(target, -100), correctness, confidence=kind)
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_pairs_skip_ignored_entries() -> None:
    logits, target, correctness = batch(2, 4, 3, 5)
    target[0, 1] = 255
    dense = logits.clone().requires_grad_()
    crl_loss(dense, target, correctness, ignore_index=255).backward()
    flat = logits.movedim(1, -1).reshape(-1, 4).clone().requires_grad_()
    keep = target.flatten() != 255
    crl_loss(flat[keep], target.flatten()[keep], correctness.flatten()[keep]).backward()
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad.movedim(1, -1).reshape(-1, 4), flat.grad)


def test_reductions_agree() -> None:
    logits, target, correctness = batch(5, 3)
    target[1] = -100
    each = crl_loss(logits, target, correctness, reduction="none")
    assert each.shape == (5,)
    assert each[1] == 0
    torch.testing.assert_close(each.sum(), crl_loss(logits, target, correctness, reduction="sum"))
    torch.testing.assert_close(each.sum() / 4, crl_loss(logits, target, correctness))


def test_soft_target() -> None:
    logits, target, correctness = batch(5, 3)
    soft = F.one_hot(target, 3).double()
    torch.testing.assert_close(
        crl_loss(logits, soft, correctness), crl_loss(logits, target, correctness)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target, correctness = batch(8, 5)
    half = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = crl_loss(half, target, correctness)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, crl_loss(half.detach().float(), target, correctness))
    assert half.grad is not None
    assert half.grad.dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 4])
def test_huge_logits(kind: ConfidenceKind, classes: int) -> None:
    logits = (torch.randn(6, classes).sign() * 1e4 + torch.randn(6, classes)).requires_grad_()
    target, correctness = torch.tensor([0, 1, 1, 1, 0, 1]), torch.linspace(0, 1, 6)
    value = crl_loss(logits, target, correctness, confidence=kind)
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_masked_class(kind: ConfidenceKind) -> None:
    """A class switched off by -inf has probability 0 and no gradient."""
    logits, target, correctness = batch(6, 3)
    masked = torch.cat([logits, torch.full((6, 1), -math.inf)], 1).requires_grad_()
    value = crl_loss(masked, target, correctness, confidence=kind)
    value.backward()
    assert value.isfinite()
    assert masked.grad is not None
    assert masked.grad.isfinite().all()
    assert (masked.grad[:, 3] == 0).all()


def test_torch_func() -> None:
    logits, target, correctness = batch(6, 4)
    gradient = torch.func.grad(crl_loss)(logits, target, correctness)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(crl_loss(logits, target, correctness), logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -1.0}, "weight must be in"),
        ({"confidence": "max"}, "confidence must be one of"),
        ({"reduction": "avg"}, "reduction must be one of"),
    ],
)
def test_bad_parameters(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        crl_loss(torch.randn(2, 3), torch.tensor([0, 1]), torch.rand(2), **change)
    with pytest.raises(ValueError, match=message):
        CRLLoss(2, **change)


def test_bad_correctness() -> None:
    logits, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"one number per entry, shape \(2,\), got \(3,\)"):
        crl_loss(logits, target, torch.rand(3))
    with pytest.raises(TypeError, match="correctness must be floating point"):
        crl_loss(logits, target, torch.tensor([1, 0]))


def test_label_maps_have_no_index_each() -> None:
    logits, target = torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 4\), got \(2,\): .*one entry per sample"):
        CRLLoss(2)(logits, target, torch.arange(2))


def test_module_is_function_and_learns_after() -> None:
    logits, target, _ = batch(4, 3)
    target[3] = -100
    index = torch.tensor([5, 0, 3, 1])
    loss = CRLLoss(6, weight=2.0, confidence="margin", reduction="sum")
    loss.history.counts.copy_(torch.tensor([1, 0, 2, 2, 0, 1]))
    loss.history.completed_epochs.fill_(2)
    correctness = torch.tensor([0.5, 0.5, 1.0, 0.0], dtype=torch.float64)
    expected = crl_loss(
        logits, target, correctness, weight=2.0, confidence="margin", reduction="sum"
    )
    right = (logits.argmax(1) == target).long()
    torch.testing.assert_close(loss(logits, target, index), expected)
    counts = torch.tensor([1 + right[1], 0, 2, 2 + right[2], 0, 1 + right[0]])
    assert torch.equal(loss.history.counts, counts)
    loss.eval()(logits, target, index)
    assert torch.equal(loss.history.counts, counts)


def test_module_refuses_soft_targets() -> None:
    with pytest.raises(TypeError, match="target must hold class indices"):
        CRLLoss(4)(torch.randn(2, 3), torch.full((2, 3), 1 / 3), torch.tensor([0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_is_eager(kind: ConfidenceKind) -> None:
    logits, target, correctness = batch(16, 5, dtype=torch.float32)
    logits.requires_grad_()
    compiled = torch.compile(crl_loss, fullgraph=True)
    value = compiled(logits, target, correctness, confidence=kind)
    eager = crl_loss(logits, target, correctness, confidence=kind)
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)


def test_the_margin_condition_gates_each_class() -> None:
    """Table 6 of ACLS: the gradient is Eq. (20) times Eq. (11), written out class by class."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(40, 5, dtype=torch.float64)).requires_grad_()
    target, margin, weight = torch.randint(5, (40,)), 4.0, 0.7
    loss = CRLLoss(40, weight=weight, condition="margin", margin=margin, reduction="sum")
    loss(logits, target, torch.arange(40)).backward()
    probs = logits.detach().softmax(1).numpy()
    expected = probs.copy()
    for row, (p, z) in enumerate(zip(probs, logits.detach().numpy(), strict=True)):
        expected[row, int(target[row])] -= 1
        top = int(p.argmax())
        for j in range(5):
            if j == top:
                expected[row, j] += weight * p[j] * (1 - p[j]) * (z[j] - z.min() > margin)
            else:
                expected[row, j] -= weight * p[top] * p[j] * (z[top] - z[j] > margin)
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-10, atol=1e-12)
    assert not loss.history.counts.any()
    assert not CRLLoss.remembers_samples({"condition": "margin"})
    assert CRLLoss.remembers_samples({})
    # Within the margin nothing is added.
    wide = conditional_confidence_penalty(logits, margin=100.0)
    assert wide.item() == 0.0


def test_ignored_entries_get_no_gradient_whatever_they_hold() -> None:
    logits = torch.tensor([[torch.inf, 0.0, 0.0], [3.0, 0.0, 0.0]], requires_grad=True)
    conditional_confidence_penalty(logits, torch.tensor([-100, 0]), margin=1.0).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad[0], torch.zeros(3))
    assert logits.grad[1].any()


def test_margin_and_its_condition_need_each_other() -> None:
    options: dict[str, Any]
    for options in (
        {"condition": "margin"},
        {"margin": 1.0},
        {"condition": "ranking", "margin": 1.0},
    ):
        with pytest.raises(ValueError, match="need each other"):
            CRLLoss(3, **options)
    with pytest.raises(ValueError, match="margin must be"):
        CRLLoss(3, condition="margin", margin=-1.0)
    with pytest.raises(ValueError, match="defined for confidence='softmax'"):
        CRLLoss(3, condition="margin", margin=1.0, confidence="entropy")
