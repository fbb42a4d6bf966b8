"""Smoothed, tempered and objectness-weighted labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.augment import LabelledAugment, ObjectnessLabels
from sfumato.labels import ObjectnessLabel, objectness_labels, smooth_labels, temper_labels

Golden = Callable[[str], dict[str, Any]]


def test_smooth_by_hand() -> None:
    target = torch.tensor([1])
    torch.testing.assert_close(
        smooth_labels(target, 0.3, num_classes=3), torch.tensor([[0.1, 0.8, 0.1]])
    )
    torch.testing.assert_close(
        smooth_labels(target, 0.3, num_classes=3, over="others"),
        torch.tensor([[0.15, 0.7, 0.15]]),
    )


@pytest.mark.parametrize("over", ["all", "others"])
def test_smooth_against_loop(over: Any) -> None:
    labels = np.random.default_rng(0).dirichlet(np.ones(5), size=4)
    amounts = np.array([0.0, 0.25, 0.7, 1.0])
    expected = np.empty_like(labels)
    for n in range(4):
        for k in range(5):
            y, a = labels[n, k], amounts[n]
            expected[n, k] = (1 - a) * y + (a / 5 if over == "all" else (1 - y) * a / 4)
    result = smooth_labels(torch.tensor(labels), torch.tensor(amounts), over=over)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_precision_is_that_of_the_soft_target(dtype: torch.dtype) -> None:
    labels = torch.eye(3, dtype=dtype)
    for amount in (0.1, torch.full((3,), 0.1), torch.full((3,), 0.1, dtype=torch.float64)):
        assert smooth_labels(labels, amount).dtype == dtype


def test_mollified_golden(golden: Golden) -> None:
    arrays = golden("mollify")
    for case in ("labels10", "labels7"):
        labels = torch.tensor(arrays[f"{case}.labels"])
        decay = torch.tensor(arrays[f"{case}.gamma_k1p0"])
        mixed = torch.tensor(arrays[f"{case}.mixed"])
        classes = mixed.shape[1]
        smoothed = smooth_labels(labels, decay, num_classes=classes)
        np.testing.assert_allclose(smoothed, arrays[f"{case}.smoothed_k1p0"], rtol=1e-12)
        smoothed = smooth_labels(mixed, decay)
        np.testing.assert_allclose(smoothed, arrays[f"{case}.mixed_smoothed_k1p0"], rtol=1e-12)
        tempered = temper_labels(labels, decay, num_classes=classes)
        np.testing.assert_allclose(tempered, arrays[f"{case}.decayed_k1p0"], rtol=1e-12)


def test_objectness_by_hand() -> None:
    # Eq. (6): beta ((1 - a) y + (1 - y) a / (K - 1)) + (1 - beta) y with a = 0.8, K = 5.
    result = objectness_labels(torch.tensor([0]), torch.tensor([0.2]), num_classes=5, beta=0.75)
    torch.testing.assert_close(result, torch.tensor([[0.4, 0.15, 0.15, 0.15, 0.15]]))


def test_objectness_limits() -> None:
    target = torch.tensor([0, 2, 1])
    hard = torch.nn.functional.one_hot(target, 3).float()
    objectness = torch.tensor([0.0, 0.5, 1.0])
    torch.testing.assert_close(objectness_labels(target, objectness, num_classes=3, beta=0.0), hard)
    result = objectness_labels(target, objectness, num_classes=3, absent="others")
    torch.testing.assert_close(
        result, smooth_labels(target, 1 - objectness, num_classes=3, over="others")
    )
    torch.testing.assert_close(result[0], torch.tensor([0.0, 0.5, 0.5]))
    torch.testing.assert_close(result[2], hard[2])
    least = objectness_labels(target, torch.zeros(3), num_classes=3, beta=0.75, absent="others")
    torch.testing.assert_close(least[0, 0], torch.tensor(0.25))


def test_function_transform_and_engine_agree_where_no_object_is_left() -> None:
    label = objectness_labels(torch.tensor([1]), torch.zeros(1), num_classes=4)[0]
    torch.testing.assert_close(label, torch.full((4,), 0.25))
    nothing = {"label": 1, "masks": torch.zeros(8, 8)}
    assert torch.equal(ObjectnessLabel(4, by="mask")(nothing)["soft_label"], label)
    batch = {
        "image": torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        "label": torch.tensor([1]),
        "boxes": torch.zeros(1, 1, 4),
    }
    engine = LabelledAugment(4, ObjectnessLabels()).apply(batch, torch.zeros(1, 0))
    assert torch.equal(engine["soft_label"][0], label)


def test_zero_amount_is_identity() -> None:
    mixed = torch.rand(4, 3, dtype=torch.float64)
    assert torch.equal(smooth_labels(mixed, 0.0), mixed)
    assert torch.equal(temper_labels(mixed, 0.0), mixed)


def test_sums() -> None:
    target = torch.randint(0, 7, (3, 2, 5))
    amount = torch.rand(3, dtype=torch.float64)
    ones = torch.ones(3, 2, 5, dtype=torch.float64)
    for over in ("all", "others"):
        sums = smooth_labels(target, amount, num_classes=7, over=over).sum(1)
        torch.testing.assert_close(sums, ones)
    sums = temper_labels(target, amount, num_classes=7).sum(1)
    torch.testing.assert_close(sums, ones * (1 - amount)[:, None, None])


def test_dense_amount_per_pixel() -> None:
    target = torch.randint(0, 4, (2, 3, 5))
    amount = torch.rand(2, 3, 5)
    result = smooth_labels(target, amount, num_classes=4)
    assert result.shape == (2, 4, 3, 5)
    one = smooth_labels(target[1, 2, 3:4], amount[1, 2, 3:4], num_classes=4)
    torch.testing.assert_close(result[1, :, 2, 3], one[0])


def test_dtypes() -> None:
    target = torch.tensor([1], dtype=torch.uint8)
    assert smooth_labels(target, 0.1, num_classes=2).dtype == torch.float32
    amount = torch.tensor([0.1], dtype=torch.float64)
    assert smooth_labels(target, amount, num_classes=2).dtype == torch.float64
    assert smooth_labels(torch.ones(1, 2).half(), 0.1).dtype == torch.float16


def test_empty_batch() -> None:
    empty = torch.empty(0, dtype=torch.long)
    assert smooth_labels(empty, torch.empty(0), num_classes=3).shape == (0, 3)


def test_gradient_reaches_soft_labels() -> None:
    labels = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    amount = torch.rand(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(smooth_labels, (labels, amount))
    assert torch.autograd.gradcheck(temper_labels, (labels, amount))


def test_vmap_over_amounts() -> None:
    target = torch.tensor([0, 2])
    amounts = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    together = torch.func.vmap(lambda a: smooth_labels(target, a, num_classes=3))(amounts)
    torch.testing.assert_close(together[1], smooth_labels(target, amounts[1], num_classes=3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: smooth_labels(t, 0.1), TypeError, "num_classes must be given"),
        (lambda t: smooth_labels(t, 1.1, num_classes=3), ValueError, r"amount must be in \[0, 1\]"),
        (
            lambda t: smooth_labels(t, torch.tensor([0.1, 1.5]), num_classes=3),
            ValueError,
            r"amount must be in \[0, 1\], got values in \[0.1, 1.5\]",
        ),
        (
            lambda t: smooth_labels(t, torch.tensor([0.1, torch.nan]), num_classes=3),
            ValueError,
            r"amount must be in \[0, 1\]",
        ),
        (
            lambda t: smooth_labels(t, torch.rand(3), num_classes=3),
            ValueError,
            r"amount must be a number, \(2,\)",
        ),
        (lambda t: smooth_labels(t, torch.tensor([0, 1]), num_classes=3), TypeError, "amount must"),
        (lambda t: smooth_labels(t, 0.1, num_classes=2), ValueError, r"target must be class ind"),
        (lambda t: smooth_labels(t, 0.1, num_classes=1), ValueError, "num_classes must be at"),
        (lambda t: smooth_labels(t, 0.1, num_classes=3, over="some"), ValueError, "over must be"),
        (lambda t: smooth_labels(t.float(), 0.1), ValueError, r"soft target must have shape"),
        (lambda t: smooth_labels([0], 0.1), TypeError, "target must be a tensor"),
        (lambda t: smooth_labels(t[0], 0.1, num_classes=3), ValueError, "batch dimension"),
        (lambda t: temper_labels(t, -0.1, num_classes=3), ValueError, "amount must be in"),
        (
            lambda t: objectness_labels(t, torch.rand(2), num_classes=3, beta=2.0),
            ValueError,
            "beta must be in",
        ),
        (
            lambda t: objectness_labels(t, torch.tensor([0.0, 2.0]), num_classes=3),
            ValueError,
            "objectness must be in",
        ),
    ],
)
def test_bad_input(call: Callable[[Tensor], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.tensor([0, 2]))
