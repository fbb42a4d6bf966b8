"""MixUp and CutMix against torchvision with the same draws; RICAP by its definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torchvision.transforms import v2

from sfumato.augment import cutmix, mixing as module, mixup, ricap

MIXINGS = (mixup, cutmix, ricap)
Mixing = Callable[..., tuple[Tensor, Tensor]]


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _batch(count: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 12, 10), torch.arange(count) % 4


def _coded_batch(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Images whose every pixel tells the class, in one channel per class."""
    target = torch.arange(count) % 4
    one_hot = torch.nn.functional.one_hot(target, 4).double()
    return one_hot[:, :, None, None].expand(-1, -1, height, width).clone(), target


@pytest.mark.parametrize("share", [0.0, 0.3, 0.875, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_mixup_equals_torchvision(
    share: float, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, target = _batch()
    if soft:
        target = torch.rand(6, 4).softmax(1)
    theirs = v2.MixUp(num_classes=4)
    monkeypatch.setattr(theirs._dist, "sample", lambda _: torch.tensor([share]))
    monkeypatch.setattr(module, "sample_beta", lambda *_, **__: torch.tensor([share]))
    for ours, other in zip(
        mixup(images, target, num_classes=4), theirs(images, target), strict=True
    ):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.875, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_cutmix_equals_torchvision(
    share: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, target = _batch()
    theirs = v2.CutMix(num_classes=4)
    monkeypatch.setattr(theirs._dist, "sample", lambda _: torch.tensor([share]))
    monkeypatch.setattr(module, "sample_beta", lambda *_, **__: torch.tensor([share]))
    # torchvision draws the column first, then the row.
    torch.manual_seed(seed)
    column, row = int(torch.randint(10, (1,))), int(torch.randint(12, (1,)))
    centres = iter((row, column))
    monkeypatch.setattr(module, "_below", lambda *_: next(centres))
    torch.manual_seed(seed)
    expected = theirs(images, target)
    for ours, other in zip(cutmix(images, target, num_classes=4), expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-6)


@settings(max_examples=30)
@given(
    mixing=st.sampled_from(MIXINGS),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 5),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
)
def test_labels_are_the_shares_of_the_pixels(
    mixing: Mixing, seed: int, count: int, height: int, width: int
) -> None:
    images, target = _coded_batch(count, height, width)
    mixed, labels = mixing(images, target, num_classes=4, generator=_seeded(seed))
    torch.testing.assert_close(mixed.mean((2, 3)), labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(labels.sum(1), torch.ones(count, dtype=labels.dtype))


def test_ricap_patches_four_crops_at_their_scale() -> None:
    # Pixel values tell image and position: every patch must be a shifted piece of one image.
    places = torch.arange(64.0).reshape(1, 1, 8, 8)
    images = places + 100 * torch.arange(5.0)[:, None, None, None]
    patched, _ = ricap(images, torch.arange(5), num_classes=5, beta=5.0, generator=_seeded(3))
    for image in patched[:, 0]:
        steps_right, steps_down = image.diff(dim=1), image.diff(dim=0)
        # One vertical and one horizontal seam at most; everywhere else neighbours stay neighbours.
        assert (steps_right != 1).any(0).sum() <= 1
        assert (steps_down != 8).any(1).sum() <= 1


@pytest.mark.parametrize("mixing", MIXINGS)
def test_generator_decides(mixing: Mixing) -> None:
    images, target = _batch()
    first, again, other = (
        mixing(images, target, num_classes=4, generator=_seeded(seed)) for seed in (7, 7, 8)
    )
    assert first[0].equal(again[0])
    assert first[1].equal(again[1])
    assert not first[0].equal(other[0])


@pytest.mark.parametrize("mixing", MIXINGS)
def test_input_is_left_alone(mixing: Mixing) -> None:
    images, target = _batch()
    before, soft = images.clone(), torch.rand(6, 4)
    labels = soft.clone()
    mixing(images, target, num_classes=4)
    mixing(images, soft, num_classes=4)
    assert images.equal(before)
    assert soft.equal(labels)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_bad_input(mixing: Mixing) -> None:
    images, target = _batch()
    with pytest.raises(TypeError, match="images must be floating point"):
        mixing(images.to(torch.uint8), target, num_classes=4)
    with pytest.raises(ValueError, match=r"class indices in \[0, 3\), got 3"):
        mixing(images, target, num_classes=3)
    with pytest.raises(ValueError, match=r"soft labels, floating point, \(6, 5\)"):
        mixing(images, torch.rand(6, 4), num_classes=5)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        mixing(images, target, num_classes=1)
