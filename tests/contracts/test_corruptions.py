"""What every corruption must do: keep form and range, repeat, ignore batching, refuse bad input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sfumato.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    HARDER_PERTURBATIONS,
    PERTURBATIONS,
    corrupt,
    perturb,
)
from sfumato.corruptions.sequences import frame_count

NAMES = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
SEQUENCES = (*PERTURBATIONS, *HARDER_PERTURBATIONS)
every_name = pytest.mark.parametrize("name", NAMES)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Smooth colours with some black and some white, so that every rule has work to do."""
    coarse = torch.rand(count, channels, 5, 5, generator=_generator(seed))
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return smooth.mul(340).sub(40).clamp(0, 255).to(torch.uint8)


@every_name
@settings(max_examples=6)
@given(
    severity=st.integers(1, 5),
    channels=st.sampled_from([1, 3]),
    height=st.integers(16, 72),
    width=st.integers(16, 72),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_form_range_determinism_and_batching(
    name: str, severity: int, channels: int, height: int, width: int, count: int, seed: int
) -> None:
    images = _images(count, channels, height, width, seed % 1000)
    before = images.clone()
    whole = corrupt(images, name, severity, generator=_generator(seed))
    assert torch.equal(images, before), "the input is not touched"
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert torch.equal(whole, corrupt(images, name, severity, generator=_generator(seed)))
    generator = _generator(seed)
    singles = [corrupt(image[None], name, severity, generator=generator) for image in images]
    assert torch.equal(whole, torch.cat(singles)), "the batch does not matter"


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floating_point_stays_so_and_in_range(name: str, dtype: torch.dtype) -> None:
    images = (_images(3, 3, 33, 41).float() / 255).to(dtype)
    result = corrupt(images, name, 5, generator=_generator(1))
    assert result.dtype == dtype
    assert result.shape == images.shape
    assert bool(((result >= 0) & (result <= 1)).all())
    parts = _generator(1)
    split = [corrupt(part, name, 5, generator=parts) for part in images.split([1, 2])]
    assert torch.equal(result, torch.cat(split))


@every_name
@pytest.mark.parametrize("channels", [1, 3])
def test_uint8_is_floating_point_rounded_down(name: str, channels: int) -> None:
    images = _images(6, channels, 32, 32)
    levels = corrupt(images, name, 3, generator=_generator(2)).int()
    values = corrupt(images.double() / 255, name, 3, generator=_generator(2)) * 255
    difference = (levels - (values + 1e-3).floor().int()).abs()
    # x / 255 * 255 is off by a last bit, on which a floor inside (glass) may turn.
    assert (difference > 1).float().mean() < 0.001
    assert (difference > 0).float().mean() < 0.01


@every_name
def test_memory_format_and_large_batches(name: str) -> None:
    images = _images(90, 3, 32, 32)  # more than one piece inside
    last = images.to(memory_format=torch.channels_last)
    result = corrupt(images, name, 4, generator=_generator(3))
    assert torch.equal(result, corrupt(last, name, 4, generator=_generator(3)))
    generator = _generator(3)
    parts = [corrupt(part, name, 4, generator=generator) for part in images.split([7, 80, 3])]
    assert torch.equal(result, torch.cat(parts))


@every_name
def test_empty_batch_and_extreme_images(name: str) -> None:
    empty = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
    assert corrupt(empty, name, 1).shape == (0, 3, 32, 32)
    for level in (0, 255):
        flat = torch.full((2, 3, 32, 32), level, dtype=torch.uint8)
        assert corrupt(flat, name, 5).dtype == torch.uint8
        assert not corrupt(flat.float() / 255, name, 5).isnan().any()


@every_name
def test_images_of_a_batch_differ(name: str) -> None:
    """Random types treat equal images differently, fixed ones the same."""
    images = _images(1, 3, 32, 32).expand(2, -1, -1, -1)
    generator = _generator(4)
    state = generator.get_state()
    first, second = corrupt(images, name, 5, generator=generator)
    drew = not torch.equal(generator.get_state(), state)
    assert drew == (not torch.equal(first, second))


@pytest.mark.parametrize(
    "name", ["glass_blur", "defocus_blur", "frost", "elastic_transform", "fog"]
)
@pytest.mark.parametrize("constants", ["cifar", "tiny-imagenet", "imagenet"])
def test_every_size_with_every_constants(name: str, constants: str) -> None:
    for height, width in ((16, 16), (16, 130), (131, 40)):
        images = _images(2, 3, height, width)
        for severity in (2, 5):
            result = corrupt(images, name, severity, constants=constants)  # type: ignore[arg-type]
            assert result.shape == images.shape


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_keep_form_and_ignore_batching(name: str) -> None:
    for images in (_images(3, 3, 32, 32), _images(2, 1, 20, 35).float() / 255):
        frames = perturb(images, name, generator=_generator(5))
        assert frames.shape == (len(images), frame_count(name), *images.shape[1:])
        assert frames.dtype == images.dtype
        generator = _generator(5)
        singles = [perturb(image[None], name, generator=generator) for image in images]
        assert torch.equal(frames, torch.cat(singles))
    assert perturb(images[:0], name).shape == (0, frame_count(name), 1, 20, 35)


IMAGES = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "name", "severity", "constants", "error", "message"),
    [
        ([1, 2], "fog", 1, None, TypeError, "images must be a tensor, got list"),
        (IMAGES.int(), "fog", 1, None, TypeError, "images must be uint8 or floating point"),
        (IMAGES[0], "fog", 1, None, ValueError, "images must be \\(N, C, H, W\\) with 1 or 3"),
        (IMAGES.permute(0, 2, 3, 1), "fog", 1, None, ValueError, "permute\\(0, 3, 1, 2\\)"),
        (IMAGES[:, :, :8], "fog", 1, None, ValueError, "sides from 16 to 1024 pixels, got 8 x 32"),
        (IMAGES.float() + 2, "fog", 1, None, ValueError, "images must lie in \\[0, 1\\].*2 to 2"),
        (IMAGES.float() * float("nan"), "fog", 1, None, ValueError, "got nan to nan"),
        (IMAGES, "mist", 1, None, ValueError, "name must be one of .*'fog'.* got 'mist'"),
        (IMAGES, "fog", 0, None, ValueError, "severity must be at least 1 and at most 5, got 0"),
        (IMAGES, "fog", 6, None, ValueError, "severity must be at least 1 and at most 5, got 6"),
        (IMAGES, "fog", 2.0, None, TypeError, "severity must be an integer, got float"),
        (IMAGES, "fog", 1, "svhn", ValueError, "constants must be one of .*'imagenet'.* 'svhn'"),
    ],
)
def test_bad_input_is_named(
    images: Tensor, name: str, severity: int, constants: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        corrupt(images, name, severity, constants=constants)  # type: ignore[arg-type]


def test_bad_sequences_are_named() -> None:
    with pytest.raises(ValueError, match=r"name must be one of .*'translate'.* got 'shake'"):
        perturb(IMAGES, "shake")
    with pytest.raises(ValueError, match="images must be"):
        perturb(IMAGES[0], "tilt")
    with pytest.raises(ValueError, match="got 'shake'"):
        frame_count("shake")
