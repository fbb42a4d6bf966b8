"""Cross entropy: hard, soft, smoothed, weighted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sfumato.labels import CrossEntropyLoss, cross_entropy_loss, smooth_labels
from tools.endurance.loss_references import reference


def test_by_hand() -> None:
    # p = (3/4, 1/4).
    logits = torch.tensor([[math.log(3.0), 0.0]])
    target = torch.tensor([1])
    assert cross_entropy_loss(logits, target).item() == pytest.approx(math.log(4))
    smoothed = 0.75 * math.log(4) + 0.25 * math.log(4 / 3)
    value = cross_entropy_loss(logits, target, smoothing=0.5)
    assert value.item() == pytest.approx(smoothed)
    value = cross_entropy_loss(logits, target, smoothing=0.25, smoothing_over="others")
    assert value.item() == pytest.approx(smoothed)


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_reference(over: Any, smoothing: float, weighted: bool) -> None:
    logits = torch.randn(6, 5, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, 4, 0])
    options: dict[str, Any] = {"smoothing": smoothing, "smoothing_over": over, "reduction": "none"}
    if weighted:
        options["class_weight"] = torch.rand(5, dtype=torch.float64)
    values = cross_entropy_loss(logits, target, **options)
    expected = reference("cross_entropy", logits, target, **options)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ce", {}),
        ("ls05", {"smoothing": 0.05}),
        ("lsk1_10", {"smoothing": 0.1, "smoothing_over": "others"}),
    ],
)
def test_golden(check_golden: Callable[..., int], name: str, parameters: dict[str, Any]) -> None:
    compared = check_golden(name, lambda z, y, **k: cross_entropy_loss(z, y, **parameters, **k))
    assert compared == (7 if name == "lsk1_10" else 10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(7, 4), (2, 4, 3, 5)])
def test_equals_torch(
    shape: tuple[int, ...], smoothing: float, weighted: bool, reduction: Any
) -> None:
    logits = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, shape[:1] + shape[2:])
    target.view(-1)[2] = -100
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    ours = cross_entropy_loss(
        logits, target, smoothing=smoothing, class_weight=weight, reduction=reduction
    )
    stock = F.cross_entropy(
        logits, target, weight=weight, label_smoothing=smoothing, reduction=reduction
    )
    torch.testing.assert_close(ours, stock)
    direction = torch.randn_like(stock)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits, direction), torch.autograd.grad(stock, logits, direction)
    )


@pytest.mark.parametrize("over", ["all", "others"])
def test_soft_target_equals_torch(over: Any) -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    mixed = torch.rand(3, 4, 5, dtype=torch.float64)
    weight = torch.rand(4, dtype=torch.float64)
    ours = cross_entropy_loss(
        logits, mixed, smoothing=0.3, smoothing_over=over, class_weight=weight
    )
    stock = F.cross_entropy(logits, smooth_labels(mixed, 0.3, over=over), weight=weight)
    torch.testing.assert_close(ours, stock)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits), torch.autograd.grad(stock, logits)
    )


def test_gradient_reaches_soft_target() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    mixed = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cross_entropy_loss, (logits, mixed))


def test_smoothed_targets_compose() -> None:
    logits, target = torch.randn(5, 3), torch.randint(0, 3, (5,))
    soft = smooth_labels(target, 0.2, num_classes=3)
    torch.testing.assert_close(
        cross_entropy_loss(logits, soft), cross_entropy_loss(logits, target, smoothing=0.2)
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradcheck(reduction: Any) -> None:
    logits = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [1, 1], [0, 2]])

    def loss(z: torch.Tensor) -> torch.Tensor:
        return cross_entropy_loss(z, target, smoothing=0.1, reduction=reduction)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


def test_certain_wrong_prediction_stays_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = cross_entropy_loss(logits, torch.tensor([1]))
    loss.backward()
    assert loss.item() == 2e4
    assert torch.equal(logits.grad, torch.tensor([[1.0, -1.0, 0.0]]))


def test_masked_class_keeps_its_zero() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    loss = cross_entropy_loss(logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.5, 0.0, 0.5]]))


def test_weight_zero_everywhere_gives_zero() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = cross_entropy_loss(logits, torch.tensor([0, 1]), class_weight=torch.zeros(3))
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"smoothing": -0.1}, ValueError, "smoothing must be in"),
        ({"smoothing": "much"}, TypeError, "smoothing must be a number"),
        ({"smoothing_over": "most"}, ValueError, "smoothing_over must be one of"),
        ({"class_weight": torch.ones(2)}, ValueError, r"class_weight must have shape \(3,\)"),
        ({"class_weight": torch.ones(3).long()}, TypeError, "class_weight must be floating"),
        (
            {"class_weight": torch.ones(3, requires_grad=True)},
            ValueError,
            "class_weight must not require",
        ),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cross_entropy_loss(torch.randn(2, 3), torch.tensor([0, 1]), **parameters)


def test_module_keeps_class_weight_as_buffer() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    module = CrossEntropyLoss(class_weight=weight, smoothing=0.1)
    assert torch.equal(module.state_dict()["class_weight"], weight)
    logits, target = torch.randn(4, 3), torch.randint(0, 3, (4,))
    expected = cross_entropy_loss(logits, target, class_weight=weight, smoothing=0.1)
    assert torch.equal(module(logits, target), expected)
    with pytest.raises(ValueError, match="smoothing must be in"):
        CrossEntropyLoss(smoothing=2.0)
