"""torchvision's classifiers by name."""

from __future__ import annotations

import pytest
import torch

from sfumato.models import torchvision_model
from sfumato.models.torchvision_models import _replace_last_linear


def test_builds_with_the_wanted_classes() -> None:
    model = torchvision_model("shufflenet_v2_x0_5", num_classes=7).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_last_linear_layer_is_fitted() -> None:
    model = torchvision_model("mobilenet_v3_small", num_classes=9).eval()
    hidden = model.get_submodule("classifier.0")
    _replace_last_linear(model, 4)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 4)
    assert model.get_submodule("classifier.0") is hidden


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="torchvision has no model 'resnet17'"):
        torchvision_model("resnet17", num_classes=7)
