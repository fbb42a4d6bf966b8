"""`help(ACLSLoss)` explains every argument: people ask the class, not the function behind it."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from sfumato import labels

CLASSES = [
    each
    for each in (getattr(labels, name) for name in labels.__all__)
    if inspect.isclass(each) and issubclass(each, nn.Module)
]


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_class_documents_its_arguments(each: type[nn.Module]) -> None:
    names = list(inspect.signature(each).parameters)
    missing = [name for name in names if not re.search(rf"\b{name}\b.*:", each.__doc__ or "")]
    assert missing == []


def test_module_shows_arguments_that_differ_from_defaults() -> None:
    assert repr(labels.ACLSLoss()) == "ACLSLoss()"
    assert repr(labels.ACLSLoss(margin=6.0)) == "ACLSLoss(margin=6.0)"
    weighted = labels.FocalLoss(gamma=2.0, class_weight=torch.ones(3))
    assert repr(weighted) == "FocalLoss(gamma=2.0, class_weight=<(3,)>)"


def test_changed_attribute_is_used() -> None:
    loss = labels.MbLSLoss()
    loss.margin = 2.0
    logits, target = torch.tensor([[12.0, 0.0, -1.0]]), torch.tensor([0])
    assert torch.equal(loss(logits, target), labels.mbls_loss(logits, target, margin=2.0))


def test_subclass_with_arguments_of_its_own() -> None:
    class Mine(labels.ACLSLoss):
        def __init__(self, closeness: float) -> None:
            super().__init__(margin=1 / closeness)

    assert Mine(0.25).margin == 4.0
    assert "margin=4.0" in repr(Mine(0.25))
    with pytest.raises(ValueError, match="margin must be in"):
        Mine(-1.0)
