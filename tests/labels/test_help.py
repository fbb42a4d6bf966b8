"""`help(ACLSLoss)` explains every argument: people ask the class, not the function behind it."""

from __future__ import annotations

import inspect
import re

import pytest
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
