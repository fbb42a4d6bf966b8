"""The form that all classifiers here have: stem, stages, head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class StagedNetwork(nn.Module):
    """A stem, stages that halve the resolution, and a head.

    `network.stages[i]` gives the i-th stage with its smoothing layer, as encoders need it.
    """

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        self.head = head
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))
