"""The whole of `corrupt` against the outputs and statistics of the published generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from torch import Tensor

from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from sfumato.corruptions.catalogue import CATEGORIES

FIXED = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
RANDOM = tuple(name for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if name not in FIXED)
Golden = Callable[[str], dict[str, Any]]

_AXIS = np.arange(32)
_RADIUS = np.sqrt(_AXIS[:, None] ** 2 + _AXIS**2) / 32
_BANDS = [np.minimum(np.floor(_RADIUS * 4), 3) == band for band in range(4)]
_BANDS[3] &= _RADIUS <= 1.0


def _chw(array: Any) -> Tensor:
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _statistics(clean: Tensor, images: Tensor) -> dict[str, float]:
    change = images.double().numpy() - clean.double().numpy()
    spectrum = np.abs(dctn(change, axes=(2, 3), norm="ortho"))
    return {
        "mean": float(images.double().mean()),
        "std": float(images.double().std()),
        "mad": float(np.abs(change).mean()),
        **{f"dct_{i}": float(spectrum[..., band].mean()) for i, band in enumerate(_BANDS)},
    }


def _reference(content: dict[str, Any], name: str) -> list[dict[str, float]]:
    row = [str(n) for n in content["stats_corruption"]].index(name)
    names = [str(n) for n in content["stats_name"]]
    return [dict(zip(names, values, strict=True)) for values in content["stats"][row]]


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_fixed_types_equal_the_published_outputs(golden: Golden, name: str, severity: int) -> None:
    content = golden("corruptions-32")
    expected = _chw(content[f"out_{name}"][severity - 1]).int()
    difference = (corrupt(_chw(content["clean"]), name, severity).int() - expected).abs()
    # One level where a sum lands on a whole number; rounding instead of flooring would change over
    # 20 % of the values.
    assert difference.max() <= (0 if name in ("pixelate", "jpeg_compression") else 1)
    assert (difference > 0).float().mean() < 0.10


@pytest.mark.parametrize("name", RANDOM)
def test_random_types_have_the_published_statistics(golden: Golden, name: str) -> None:
    content = golden("corruptions-32")
    clean = _chw(content["stats_clean"])
    tolerance = {"frost": 0.20, "spatter": 0.10}.get(name, 0.05)
    for severity, reference in zip(SEVERITIES, _reference(content, name), strict=True):
        generator = torch.Generator().manual_seed(severity)
        draws = [
            _statistics(clean, corrupt(clean, name, severity, generator=generator))
            for _ in range(2)
        ]
        for key in draws[0]:
            mean = sum(draw[key] for draw in draws) / len(draws)
            assert mean == pytest.approx(reference[key], rel=tolerance), (severity, key)


@pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_change_grows_with_severity_where_it_does_in_the_published_sets(
    golden: Golden, name: str
) -> None:
    content = golden("corruptions-32")
    clean = _chw(content["stats_clean"])
    published = [reference["mad"] for reference in _reference(content, name)]
    ours = [
        (corrupt(clean, name, severity, generator=torch.Generator().manual_seed(7)).int() - clean)
        .abs()
        .float()
        .mean()
        .item()
        for severity in SEVERITIES
    ]
    for i in range(4):
        if published[i + 1] > published[i]:
            # Equal is possible: motion blur 3 and 4 differ in weights below 1e-7.
            assert ours[i + 1] >= ours[i], (i + 1, ours)


def test_order_and_categories() -> None:
    assert len(CORRUPTIONS) == 15
    assert CORRUPTIONS[:3] == ("gaussian_noise", "shot_noise", "impulse_noise")
    assert sum(CATEGORIES.values(), ()) == (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    assert {name: len(names) for name, names in CATEGORIES.items()} == {
        "noise": 3,
        "blur": 4,
        "weather": 4,
        "digital": 4,
        "extra": 4,
    }


def test_constants_by_name_and_by_size() -> None:
    images = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    mild, strong = (
        corrupt(images, "brightness", 1, constants=c) for c in ("cifar", "tiny-imagenet")
    )
    assert mild.unique().tolist() == [112]
    assert strong.unique().tolist() == [125]
    large = torch.full((1, 3, 64, 64), 100, dtype=torch.uint8)
    assert corrupt(large, "brightness", 1).unique().tolist() == [125]


def test_fixed_types_leave_the_generator_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    corrupt(torch.rand(2, 3, 32, 32), "contrast", 2, generator=generator)
    assert torch.equal(generator.get_state(), state)


def test_the_default_generator_obeys_manual_seed() -> None:
    images = torch.rand(2, 3, 32, 32)
    torch.manual_seed(3)
    first = corrupt(images, "fog", 2)
    torch.manual_seed(3)
    assert torch.equal(first, corrupt(images, "fog", 2))
    assert not torch.equal(first, corrupt(images, "fog", 2))


@pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_the_default_device_is_not_used(name: str) -> None:
    images = torch.rand(1, 3, 33, 34)  # a size of its own, as filters are kept by size
    with torch.device("meta"):
        found = corrupt(images, name, 3, generator=torch.Generator("cpu").manual_seed(0))
    wanted = corrupt(images, name, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, wanted)


def test_the_default_precision_is_not_used() -> None:
    images = torch.rand(1, 3, 32, 32)
    torch.set_default_dtype(torch.float64)
    try:
        found = corrupt(images, "spatter", 5, generator=torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(torch.float32)
    wanted = corrupt(images, "spatter", 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, wanted)


def test_autocast_and_gradients_do_not_reach_inside() -> None:
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    plain = corrupt(images, "gaussian_blur", 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = corrupt(images, "gaussian_blur", 5)
    assert torch.equal(plain, inside)
    assert not plain.requires_grad
