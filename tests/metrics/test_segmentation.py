"""Mean intersection over union."""

from __future__ import annotations

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_jaccard_index

from sfumato.metrics import MeanIoU, confusion_matrix, mean_iou

PREDICTIONS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
TARGET = torch.tensor([0, 0, 1, 1])


def test_hand_worked_value() -> None:
    assert confusion_matrix(PREDICTIONS, TARGET).tolist() == [[2, 0], [1, 1]]
    assert float(mean_iou(PREDICTIONS, TARGET)) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_agrees_with_torchmetrics_where_every_class_occurs() -> None:
    logits, target = torch.randn(3, 4, 16, 16), torch.randint(4, (3, 16, 16))
    target[0, :4] = 255
    theirs = multiclass_jaccard_index(logits, target, 4, ignore_index=255)
    assert float(mean_iou(logits, target, ignore_index=255)) == pytest.approx(float(theirs))


def test_takes_arrays() -> None:
    probs = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(20) % 3
    found = mean_iou(probs.numpy(), target.numpy())  # type: ignore[arg-type]
    assert float(found) == float(mean_iou(probs, target))


def test_absent_classes_are_left_out() -> None:
    logits = torch.tensor([[5.0, 0, 0], [5.0, 0, 0], [0, 5.0, 0]])
    target = torch.tensor([0, 1, 1])
    each = mean_iou(logits, target, reduction="none")
    assert each[:2].tolist() == [0.5, 0.5]
    assert math.isnan(each[2])
    assert float(mean_iou(logits, target)) == 0.5


def test_streamed() -> None:
    logits, target = torch.randn(4, 5, 6, 7), torch.randint(5, (4, 6, 7))
    target[1] = -100
    metric = MeanIoU(5)
    for part, labels in zip(logits, target, strict=True):
        metric.update(part.unsqueeze(0), labels.unsqueeze(0))
    torch.testing.assert_close(metric.compute(), mean_iou(logits, target))


def test_edges() -> None:
    assert math.isnan(mean_iou(PREDICTIONS, torch.full((4,), -100)))
    with pytest.raises(ValueError, match="have 2 classes, not 3"):
        MeanIoU(3).update(PREDICTIONS, TARGET)
    with pytest.raises(ValueError, match="got 7 at position"):
        mean_iou(PREDICTIONS, torch.tensor([0, 1, 7, 0]))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_nan_is_refused_where_it_counts(kind: torch.dtype) -> None:
    logits, target = torch.randn(2, 3, 4, 4).to(kind), torch.randint(3, (2, 4, 4))
    logits[1, 2, 0, 3] = torch.nan
    for measure in (mean_iou, MeanIoU(3).update):
        with pytest.raises(ValueError, match=r"must hold no NaN at sample \(1, 0, 3\)"):
            measure(logits, target)
    target[1, 0, 3] = -100
    assert 0 <= float(mean_iou(logits, target)) <= 1
