"""A classifier's trunk in Faster R-CNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from sfumato.models import faster_rcnn, resnet

STATISTICS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}


def _build(network: nn.Module, **options: int | float | bool) -> nn.Module:
    return faster_rcnn(network, num_classes=3, channels=16, hidden=16, **STATISTICS, **options)


def test_levels_anchors_and_the_size_of_images() -> None:
    detector = _build(resnet(8, num_classes=5, width=4)).eval()
    assert detector.backbone.strides == [2, 4, 8]
    assert detector.rpn.anchor_generator.sizes == ((12.0,), (24.0,), (48.0,))
    batch, _ = detector.transform([torch.zeros(3, 64, 96)])
    assert batch.tensors.shape == (1, 3, 64, 96)  # neither enlarged nor padded
    expected = (0 - torch.tensor(STATISTICS["mean"])) / torch.tensor(STATISTICS["std"])
    torch.testing.assert_close(batch.tensors[0, :, 0, 0], expected)
    maps = detector.backbone(batch.tensors)
    assert [tuple(m.shape[2:]) for m in maps.values()] == [(32, 48), (16, 24), (8, 12)]


def test_boxes_are_pooled_from_the_level_of_their_anchors() -> None:
    detector = _build(resnet(14, num_classes=5, width=4))
    pool = detector.roi_heads.box_roi_pool
    maps = detector.backbone(torch.zeros(1, 3, 64, 64))
    pool(maps, [torch.tensor([[0.0, 0, 12, 12]])], [(64, 64)])  # sets the levels up
    boxes = [torch.tensor([[0.0, 0, side, side]]) for side in (6, 12, 24, 48)]
    levels = [int(pool.map_levels([box])[0]) for box in boxes]
    assert levels == [0, 0, 1, 1]


@pytest.mark.parametrize("freeze_norm", [True, False])
def test_trunk_is_the_classifiers(freeze_norm: bool) -> None:
    """The same maps as in the classifier; batch norm fixed or not."""
    network = resnet(8, num_classes=5, width=4)
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, 32, 32)
    expected = network.eval().stages(network.stem(x)).detach()
    detector = _build(network, freeze_norm=freeze_norm)
    torch.testing.assert_close(detector.eval().backbone.maps(x)[-1], expected, atol=1e-5, rtol=1e-4)
    after_training_mode = detector.train().backbone.maps(x)[-1]
    assert torch.allclose(after_training_mode, expected, atol=1e-4) == freeze_norm


def test_torchvision_trunk_learns() -> None:
    detector = _build(resnet18(num_classes=5), finest=8, freeze_norm=False).train()
    assert detector.backbone.strides == [8, 16, 32, 64]
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.tensor([2])}
    losses = detector([torch.rand(3, 64, 64)] * 2, [target] * 2)
    sum(losses.values()).backward()
    assert float(detector.backbone.maps.stages.conv1.weight.grad.abs().sum()) > 0


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="finest must be at most 4"):
        _build(resnet(8, num_classes=5, width=4), finest=8)
    with pytest.raises(ValueError, match="no stages"):
        _build(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5)))
