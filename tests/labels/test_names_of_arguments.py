"""Arguments under the names of other libraries: understood, or refused with ours."""

from __future__ import annotations

import pickle

import pytest
import torch

from sfumato.labels import (
    ACLSLoss,
    CRLLoss,
    CrossEntropyLoss,
    FocalLoss,
    MbLSLoss,
    MMCELoss,
    OnlineLabelSmoothingLoss,
)

LOGITS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(20) % 3
WEIGHT = torch.tensor([0.5, 1.0, 2.0])


def test_cross_entropy_takes_torchs_arguments() -> None:
    ours = CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)  # type: ignore[call-arg]
    theirs = torch.nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)
    torch.testing.assert_close(ours(LOGITS, TARGET), theirs(LOGITS, TARGET))
    assert ours.smoothing == 0.1
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again(LOGITS, TARGET), theirs(LOGITS, TARGET))
    with pytest.raises(TypeError, match="give smoothing or label_smoothing, which mean the same"):
        CrossEntropyLoss(smoothing=0.1, label_smoothing=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("loss", "given", "message"),
    [
        (ACLSLoss, {"weight": WEIGHT}, "ACLSLoss calls weight class_weight: give class_weight="),
        (FocalLoss, {"alpha": WEIGHT}, "FocalLoss calls alpha class_weight: give class_weight="),
        (ACLSLoss, {"label_smoothing": 0.1}, "calls label_smoothing smoothing: give smoothing="),
        (MMCELoss, {"size_average": True}, "calls size_average reduction: give reduction="),
        (MbLSLoss, {"label_smoothing": 0.1}, "MbLSLoss has no label_smoothing; it takes margin,"),
        (OnlineLabelSmoothingLoss, {"reduce": True}, "calls reduce reduction"),
    ],
)
def test_others_name_the_argument_to_use(loss: type, given: dict, message: str) -> None:
    needs = {"num_classes": 3} if loss is OnlineLabelSmoothingLoss else {}
    with pytest.raises(TypeError, match=message):
        loss(**given, **needs)


def test_a_weight_of_ones_own_stays() -> None:
    assert MbLSLoss(weight=0.3).weight == 0.3
    assert CRLLoss(20, weight=0.5).weight == 0.5
