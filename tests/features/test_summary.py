"""The table of inserted layers."""

from __future__ import annotations

import torch

from sfumato.features import add_smoothing, model_summary
from sfumato.models import resnet, vgg


def test_lists_layers_and_maps() -> None:
    model = resnet(8, num_classes=4, width=8, smooth={"prob": "relu6"}, dropout=0.2)
    model.train()
    lines = model_summary(model, torch.zeros(5, 3, 16, 16)).splitlines()
    assert lines[0] == "StagedNetwork: 3 Smooth layers, 3 dropout layers"
    assert lines[1].split() == ["stages.0.0.branch.dropout", "Dropout", "0.2", "(8,", "16,", "16)"]
    assert lines[2].split("  ")[0] == "stages.0.smooth"
    assert "Smooth (1, 1) relu6 zeros" in lines[2]
    assert lines[6].endswith("(32, 4, 4)")
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_without_example_and_without_layers() -> None:
    plain = resnet(8, num_classes=4, width=8)
    assert model_summary(plain) == "StagedNetwork: 0 Smooth layers, 0 dropout layers"
    smoothed = add_smoothing(plain, torch.zeros(1, 3, 16, 16))
    assert model_summary(smoothed).splitlines()[1] == "stages.0.smooth  Smooth (1, 1) tanh 10 zeros"
    assert "Dropout 0.5" in model_summary(vgg(16, num_classes=4, width=4))
