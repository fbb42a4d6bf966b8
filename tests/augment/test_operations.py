"""Batched pixel operations against torchvision's kernels, image by image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional as kernels

from sfumato.augment import policies
from sfumato.augment.policies import OPERATIONS, Interpolation, apply_operations

RANGES: dict[str, tuple[float, float]] = {
    "identity": (0, 0),
    "shear_x": (-0.99, 0.99),
    "shear_y": (-0.99, 0.99),
    "translate_x": (-12, 12),
    "translate_y": (-12, 12),
    "rotate": (-135, 135),
    "brightness": (-0.99, 0.99),
    "color": (-0.99, 0.99),
    "contrast": (-0.99, 0.99),
    "sharpness": (-0.99, 0.99),
    "posterize": (0, 8),
    "solarize": (0, 1),
    "autocontrast": (0, 0),
    "equalize": (0, 0),
    "invert": (0, 0),
}


def _torchvision(name: str, image: Tensor, amount: float, mode: InterpolationMode) -> Tensor:
    still: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    angle = math.degrees(math.atan(amount))
    moves: dict[str, dict[str, Any]] = {
        "shear_x": {"shear": [angle, 0.0], "center": [0, 0]},
        "shear_y": {"shear": [0.0, angle], "center": [0, 0]},
        "translate_x": {"translate": [int(amount), 0]},
        "translate_y": {"translate": [0, int(amount)]},
    }
    if name in moves:
        return kernels.affine(image, **{**still, **moves[name]}, interpolation=mode)
    calls = {
        "identity": lambda: image,
        "rotate": lambda: kernels.rotate(image, amount, interpolation=mode),
        "brightness": lambda: kernels.adjust_brightness(image, 1 + amount),
        "color": lambda: kernels.adjust_saturation(image, 1 + amount),
        "contrast": lambda: kernels.adjust_contrast(image, 1 + amount),
        "sharpness": lambda: kernels.adjust_sharpness(image, 1 + amount),
        "posterize": lambda: kernels.posterize(image, int(amount)),
        "solarize": lambda: kernels.solarize(image, 255 * amount),
        "autocontrast": lambda: kernels.autocontrast(image),
        "equalize": lambda: kernels.equalize(image),
        "invert": lambda: kernels.invert(image),
    }
    return calls[name]()


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 27), (3, 2, 5)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_equals_torchvision(name: str, shape: tuple[int, int, int], mode: Interpolation) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (24, *shape), dtype=torch.uint8, generator=generator)
    low, high = RANGES[name]
    amount = low + (high - low) * torch.rand(24, generator=generator, dtype=torch.float64)
    amount[0], amount[-1] = low, high
    amount = amount.round() if name == "posterize" else amount
    found = apply_operations(
        images, [name], torch.zeros(24, dtype=torch.int64), amount, interpolation=mode
    )
    assert found.dtype == torch.uint8
    expected = torch.stack(
        [
            _torchvision(name, image, float(value), InterpolationMode(mode))
            for image, value in zip(images, amount, strict=True)
        ]
    )
    gap = (found.int() - expected.int()).abs()
    # Amounts are float32 here and float64 there; a product that falls on a whole number may then
    # be cut off to the grey level below. Nearest pixels and integer operations are exact.
    assert gap.max() <= 1
    assert (gap > 0).double().mean() < 2e-3
    if name not in ("color", "contrast", "brightness") and mode == "nearest":
        assert gap.max() == 0


def test_each_image_gets_its_own_operation() -> None:
    images = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
    names = list(RANGES)
    choice = torch.arange(20) % 16 - 1
    amount = torch.full((20,), 0.5, dtype=torch.float64)
    together = apply_operations(images, names, choice, amount)
    for i in range(20):
        alone = apply_operations(images[i : i + 1], names, choice[i : i + 1], amount[i : i + 1])
        assert together[i].equal(alone[0])
        if choice[i] == -1:
            assert together[i].equal(images[i])


def test_large_groups_go_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(256, (45, 3, 8, 8), dtype=torch.uint8)
    choice, amount = torch.arange(45) % 16 - 1, torch.linspace(0, 1, 45, dtype=torch.float64)
    at_once = apply_operations(images, list(RANGES), choice, amount)
    monkeypatch.setattr(policies, "_AT_A_TIME", 2 * 3 * 8 * 8)  # two images
    assert apply_operations(images, list(RANGES), choice, amount).equal(at_once)


def test_solarize_at_its_limits() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(4, 1, 1, 1)
    amount = torch.tensor([0.0, 1.0, 100 / 255, 0.5], dtype=torch.float64)
    found = apply_operations(images, ["solarize"], torch.zeros(4, dtype=torch.int64), amount)
    turned = (found != images).flatten(1).sum(1).tolist()
    assert turned == [256, 1, 156, 128]


def test_input_is_left_alone_and_empty_batches_pass() -> None:
    images = torch.randint(256, (15, 3, 8, 8), dtype=torch.uint8)
    before = images.clone()
    apply_operations(images, list(RANGES), torch.arange(15), torch.full((15,), 0.5).double())
    assert images.equal(before)
    none = torch.zeros(0, dtype=torch.int64)
    assert apply_operations(images[:0], list(RANGES), none, none.double()).shape == (0, 3, 8, 8)


def test_every_operation_is_tested() -> None:
    geometric = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}
    assert set(OPERATIONS) | geometric == set(RANGES)
