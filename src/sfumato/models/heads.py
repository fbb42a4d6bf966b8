"""Classifiers on top of the last feature map (Park & Kim 2022, Section 2.3 and Appendix C.1)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, get_args

from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_integer

Head = Literal["gap", "mlp", "mlp_without_dropout", "gmaxp", "gmedp"]


class GlobalMedianPool2d(nn.Module):
    """The median of each channel, (N, C, H, W) to (N, C, 1, 1); the upper one of two.

    Differs: the released code takes the (HW // 2)-th largest value, which for an odd number of
    points is one above the median, and has no answer for a single point.

    Example:
        >>> import torch
        >>> GlobalMedianPool2d()(torch.tensor([[[[1.0, 2.0], [3.0, 9.0]]]])).item()
        3.0
    """

    def forward(self, z: Tensor) -> Tensor:
        points = z.flatten(2)
        largest = points.topk((points.shape[2] + 1) // 2).values
        return largest[..., -1:, None]


def reads_the_map(head: Head) -> bool:
    """Whether a head has weights for each point of the map, and so a size that it is made for."""
    return head in ("mlp", "mlp_without_dropout")


def classifier(
    head: Head, features: int, num_classes: int, *, hidden: int = 4096, side: int = 7
) -> nn.Sequential:
    """A head that turns (N, features, H, W) into logits (N, num_classes).

    Global average pooling is the extreme case of spatial smoothing: one mean over all points.

    Args:
        head: `gap`, `gmaxp`, `gmedp` (global average, maximum, median pooling, then a linear layer)
            or `mlp` (three linear layers on the whole map, dropout 0.5 between them; or
            `mlp_without_dropout`, since dropout alone makes a network underfit).
        features: channels of the map.
        num_classes: number of logits.
        hidden: width of the two hidden layers of `mlp`; the paper's 4096.
        side: `mlp` reads the map averaged to side x side points.

    Differs: the released `mlp` resizes every map to 7x7, on CIFAR by repeating points. Here small
    images keep the side that their map has.
    """
    check_choice("head", head, get_args(Head))
    check_integer("num_classes", num_classes, low=2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if not reads_the_map(head):
        pools = {"gap": nn.AdaptiveAvgPool2d(1), "gmaxp": nn.AdaptiveMaxPool2d(1)}
        layers["pool"] = pools[head] if head in pools else GlobalMedianPool2d()
        layers["flatten"] = nn.Flatten()
        layers["linear"] = nn.Linear(features, num_classes)
        return nn.Sequential(layers)
    layers["pool"] = nn.AdaptiveAvgPool2d(side)
    layers["flatten"] = nn.Flatten()
    inputs = features * side**2
    for number in (1, 2):
        layers[f"linear{number}"] = nn.Linear(inputs, hidden)
        layers[f"activation{number}"] = nn.ReLU(inplace=True)
        if head == "mlp":
            layers[f"dropout{number}"] = nn.Dropout(0.5)
        inputs = hidden
    layers["linear"] = nn.Linear(inputs, num_classes)
    return nn.Sequential(layers)
