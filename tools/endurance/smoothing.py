"""The smoothing layer and its gradient against a loop over the pixels in float64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor

from sfumato.features import smooth_features
from sfumato.ops import library
from tools.endurance.trials import Drawn


@dataclass(frozen=True)
class MapCase:
    """A map of features that `number` draws."""

    number: int
    samples: int = 1
    channels: int = 2
    height: int = 3
    width: int = 3
    scale: float = 1.0
    temperature: float = 10.0
    dtype: str = "float64"
    is_channels_last: bool = True
    kernels: bool = True


def draw(number: int) -> MapCase:
    dice = random.Random(number)
    return MapCase(
        number,
        samples=dice.choice([1, 2, 5]),
        channels=dice.choice([1, 3, 8, 17, 64]),
        height=dice.choice([1, 2, 3, 8, 15]),
        width=dice.choice([1, 2, 4, 9]),
        scale=dice.choice([0.01, 1.0, 20.0, 1000.0]),
        temperature=dice.choice([0.5, 5.0, 10.0, 100.0]),
        dtype=dice.choice(["float32", "float64"]),
        is_channels_last=dice.random() < 0.8,
        kernels=dice.random() < 0.7,
    )


def smaller(case: MapCase) -> Iterator[MapCase]:
    plain = MapCase(case.number)
    for name in ("kernels", "dtype", "scale", "temperature", "samples", "channels"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    for name in ("height", "width"):
        if getattr(case, name) > 1:
            yield replace(case, **{name: getattr(case, name) // 2})


def check(case: MapCase) -> bool:
    """Raise where the layer or its gradient differ from the loop."""
    dice = torch.Generator().manual_seed(case.number)
    shape = (case.samples, case.channels, case.height, case.width)
    values = case.scale * torch.randn(shape, generator=dice, dtype=torch.float64)
    upstream = torch.randn(shape, generator=dice, dtype=torch.float64)
    order = torch.channels_last if case.is_channels_last else torch.contiguous_format
    z = values.to(getattr(torch, case.dtype)).contiguous(memory_format=order).requires_grad_()
    exact = z.detach().double().requires_grad_()
    expected = _by_pixels(exact, case.temperature)
    (slope,) = torch.autograd.grad(expected, exact, upstream)
    kernels = library.library if case.kernels else lambda: None
    with mock.patch.object(library, "library", kernels):
        found = smooth_features(z, temperature=case.temperature)
        (gradient,) = torch.autograd.grad(found, z, upstream.to(z.dtype))
    close = {"rtol": 1e-4, "atol": 1e-5} if case.dtype == "float32" else {"rtol": 1e-9, "atol": 0}
    size = {"atol": close["atol"] * case.temperature + 1e-12, "rtol": close["rtol"]}
    torch.testing.assert_close(found.double(), expected, **size)
    torch.testing.assert_close(gradient.double(), slope, rtol=close["rtol"], atol=1e-5)
    return True


def _by_pixels(z: Tensor, temperature: float) -> Tensor:
    bounded = temperature * torch.tanh(z.relu() / temperature)
    rows = []
    for h in range(z.shape[2]):
        row = []
        for w in range(z.shape[3]):
            inside = [
                bounded[:, :, h + down, w + right]
                for down in (0, 1)
                for right in (0, 1)
                if h + down < z.shape[2] and w + right < z.shape[3]
            ]
            row.append(torch.stack(inside).sum(0) / 4)
        rows.append(torch.stack(row, 2))
    return torch.stack(rows, 2)


MAPS = Drawn("smoothing", draw, check, smaller, lambda case: "maps")
