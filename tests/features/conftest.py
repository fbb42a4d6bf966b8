"""Small models that several tests share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DoubleConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Two levels, one shared pooling module, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = DoubleConv(3, 4)
        self.down2 = DoubleConv(4, 8)
        self.bottom = DoubleConv(8, 8)
        self.up2 = DoubleConv(16, 4)
        self.up1 = DoubleConv(8, 4)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        deep = F.interpolate(self.bottom(self.pool(second)), scale_factor=2)
        deep = F.interpolate(self.up2(torch.cat([deep, second], 1)), scale_factor=2)
        return self.out(self.up1(torch.cat([deep, first], 1)))


@pytest.fixture
def unet() -> UNet:
    return UNet()
