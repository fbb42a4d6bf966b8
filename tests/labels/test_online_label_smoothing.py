"""Online label smoothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import (
    OnlineLabelSmoothingLoss,
    cross_entropy_loss,
    online_label_smoothing_loss,
    smooth_labels,
)
from tools.endurance.loss_references import reference


def test_against_reference() -> None:
    logits = 3 * torch.randn(8, 4, dtype=torch.float64)
    target, soft = torch.randint(0, 4, (8,)), torch.randn(4, 4, dtype=torch.float64).softmax(1)
    options = {"soft_labels": soft, "weight": 0.3, "reduction": "none"}
    expected = reference("online_label_smoothing", logits, target, **options)
    found = online_label_smoothing_loss(logits, target, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_uniform_soft_labels_are_label_smoothing() -> None:
    logits, target = torch.randn(2, 3, 4), torch.randint(0, 3, (2, 4))
    target[0, 0] = -100
    uniform = torch.full((3, 3), 1 / 3)
    found = online_label_smoothing_loss(logits, target, soft_labels=uniform, weight=0.9)
    torch.testing.assert_close(found, cross_entropy_loss(logits, target, smoothing=0.1))
    whole = smooth_labels(torch.tensor([0]), 1.0, num_classes=3)
    alone = online_label_smoothing_loss(
        logits[:1, :, 1], torch.tensor([2]), soft_labels=uniform, weight=0.0
    )
    torch.testing.assert_close(alone, cross_entropy_loss(logits[:1, :, 1], whole))


def test_gradcheck() -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])
    soft = torch.randn(4, 4, dtype=torch.float64).softmax(1)

    def loss(z: Tensor) -> Tensor:
        return online_label_smoothing_loss(z, target, soft_labels=soft)

    assert torch.autograd.gradcheck(loss, logits)


def test_soft_labels_are_means_of_right_predictions() -> None:
    loss = OnlineLabelSmoothingLoss(3)
    logits = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [3.0, 0.0, 1.0], [0.0, 0.0, 4.0]])
    target = torch.tensor([0, 0, 1, -100])
    first = loss(logits, target)
    torch.testing.assert_close(first, cross_entropy_loss(logits, target))
    loss.eval()
    loss(logits, torch.tensor([2, 2, 2, 2]))  # not in training: not gathered
    loss.end_epoch()
    p = logits.softmax(1)
    expected = torch.stack([(p[0] + p[1]) / 2, torch.full((3,), 1 / 3), torch.full((3,), 1 / 3)])
    torch.testing.assert_close(loss.soft_labels, expected)
    assert not loss.sums.any()
    assert not loss.counts.any()
    wanted = online_label_smoothing_loss(logits, target, soft_labels=expected)
    torch.testing.assert_close(loss(logits, target), wanted)


def test_pixels_are_gathered_by_class() -> None:
    loss = OnlineLabelSmoothingLoss(2)
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]).movedim(2, 1)  # (1, 2, 2)
    loss(logits, torch.tensor([[0, 1]]))
    loss.end_epoch()
    torch.testing.assert_close(loss.soft_labels, logits[0].softmax(0).T)


def test_sums_over_millions_of_pixels_stay_exact() -> None:
    loss = OnlineLabelSmoothingLoss(3)
    probs = torch.tensor([0.7, 0.299, 0.001])
    loss.counts[0] = 2.0**24  # from where on float32 can't count
    loss.sums[0] = 2.0**24 * probs
    loss(probs.log().repeat(1000, 1), torch.zeros(1000, dtype=torch.long))
    assert int(loss.counts[0]) == 2**24 + 1000
    loss.end_epoch()
    torch.testing.assert_close(loss.soft_labels[0], probs, rtol=1e-6, atol=0)


def test_state_resumes_in_the_middle_of_an_epoch() -> None:
    loss, resumed = OnlineLabelSmoothingLoss(5), OnlineLabelSmoothingLoss(5)
    logits, target = torch.randn(30, 5), torch.randint(0, 5, (30,))
    loss(logits, target)
    resumed.load_state_dict(loss.state_dict())
    for each in (loss, resumed):
        each(logits.flip(0), target)
        each.end_epoch()
    assert torch.equal(loss.soft_labels, resumed.soft_labels)


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="weight must be in"):
        OnlineLabelSmoothingLoss(3, weight=1.5)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        OnlineLabelSmoothingLoss(1)
    logits, soft = torch.randn(2, 3), torch.eye(4)
    with pytest.raises(ValueError, match=r"soft_labels must have shape \(3, 3\)"):
        online_label_smoothing_loss(logits, torch.tensor([0, 1]), soft_labels=soft)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_soft_labels_do_not_depend_on_the_precision_of_the_module(dtype: torch.dtype) -> None:
    plain, converted = OnlineLabelSmoothingLoss(4), OnlineLabelSmoothingLoss(4).to(dtype)
    logits, target = torch.eye(4).repeat(300, 1), torch.arange(4).repeat(300)
    for loss in (plain, converted):
        loss(logits, target)
        loss.end_epoch()
    torch.testing.assert_close(converted.soft_labels, plain.soft_labels)
    assert converted.soft_labels.sum(1).sub(1).abs().max() < 1e-6
