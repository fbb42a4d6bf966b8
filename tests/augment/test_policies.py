"""Policies: torchvision's own tables, shares of the draws, independence of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from sfumato.augment import (
    AugMix,
    AutoAugment,
    RandAugment,
    TrivialAugment,
    policies,
    policies as module,
)
from sfumato.augment.policies import PixelPolicy

POLICIES: tuple[PixelPolicy, ...] = (RandAugment(), AutoAugment(), TrivialAugment(), AugMix())


def _images(count: int = 12, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, 16, 20)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def _uniforms(policy: PixelPolicy, count: int = 12) -> Tensor:
    return torch.rand(count, policy.draws, generator=torch.Generator().manual_seed(1))


def _snake(name: str) -> str:
    return {"ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x"}.get(
        name, {"TranslateY": "translate_y"}.get(name, name.lower())
    )


@pytest.mark.parametrize(
    ("space", "theirs", "bins"),
    [
        (policies.RANDAUGMENT_SPACE, v2.RandAugment, 31),
        (policies.TRIVIALAUGMENT_SPACE, v2.TrivialAugmentWide, 31),
        (policies.AUTOAUGMENT_SPACE, v2.AutoAugment, 10),
        (policies.AUGMIX_SPACE, v2.AugMix, 10),
    ],
)
def test_ranges_are_torchvisions(
    space: policies.Space, theirs: type, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = theirs._AUGMENTATION_SPACE  # type: ignore[attr-defined]
    assert {_snake(name) for name in table} == set(space)
    seen: list[Tensor] = []
    monkeypatch.setattr(module, "apply_operations", lambda *a, **_: seen.append(a[3]))
    height, width = 48, 64
    names = list(space)
    for name, (magnitudes, signed) in table.items():
        expected = magnitudes(bins, height, width)
        level = torch.arange(bins, dtype=torch.float64) / (bins - 1)
        choice = torch.full((bins,), names.index(_snake(name)))
        images = torch.empty(bins, 3, height, width, dtype=torch.uint8)
        for sign, factor in ((0.2, -1 if signed else 1), (0.7, 1)):
            module._step(images, space, choice, level, torch.full((bins,), sign))
            values = torch.zeros(bins) if expected is None else expected.float()
            torch.testing.assert_close(seen.pop().float(), factor * values, rtol=1e-5, atol=1e-5)


def test_policies_are_torchvisions() -> None:
    table = v2.AutoAugment()._policies
    expected = tuple(
        tuple((_snake(name), probability, level or 0) for name, probability, level in steps)
        for steps in table
    )
    assert expected == policies.AUTOAUGMENT_POLICIES


def test_operations_are_drawn_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []

    def spy(images: Tensor, _: object, choice: Tensor, *__: object, **___: object) -> Tensor:
        drawn.append(choice)
        return images

    monkeypatch.setattr(module, "apply_operations", spy)
    images = torch.zeros(14_000, 1, 1, 1, dtype=torch.uint8)
    for policy, steps in ((RandAugment(), 2), (TrivialAugment(), 1)):
        drawn.clear()
        policy.apply(images, torch.rand(14_000, policy.draws))
        assert len(drawn) == steps
        for choice in drawn:
            counts = torch.bincount(choice, minlength=14)
            # Five standard deviations of a count with mean 1,000.
            assert ((counts - 1_000).abs() < 5 * 31).all()


def test_autoaugment_obeys_its_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []

    def spy(images: Tensor, _: object, choice: Tensor, *__: object, **___: object) -> Tensor:
        drawn.append(choice)
        return images

    monkeypatch.setattr(module, "apply_operations", spy)
    uniforms = torch.rand(20_000, 5)
    uniforms[:, 0] = 0.5 / 25  # the first policy: posterize 0.4, rotate 0.6
    AutoAugment().apply(torch.zeros(20_000, 1, 1, 1, dtype=torch.uint8), uniforms)
    names = list(policies.AUTOAUGMENT_SPACE)
    for choice, name, probability in zip(drawn, ("posterize", "rotate"), (0.4, 0.6), strict=True):
        assert set(choice.tolist()) == {-1, names.index(name)}
        assert float((choice >= 0).float().mean()) == pytest.approx(probability, abs=0.02)


def test_augmix_mixes_image_and_chains() -> None:
    images = _images(1)
    uniforms = torch.full((1, AugMix().draws), 0.5)
    uniforms[:, 0] = 0.0
    assert AugMix().apply(images, uniforms).equal(images)  # all weight on the image itself
    # One chain of one step (depth 0 of 3), all weight on it: the operation alone.
    single = AugMix(width=1)
    uniforms = torch.zeros(1, single.draws)
    uniforms[:, 0] = 1.0
    uniforms[:, 3] = (list(policies.AUGMIX_SPACE).index("equalize") + 0.5) / len(
        policies.AUGMIX_SPACE
    )
    expected = v2.functional.equalize(images)
    assert single.apply(images, uniforms).equal(expected)
    halves = uniforms.clone()
    halves[:, 0] = 0.5
    mean = (images.float() + expected.float()) / 2
    assert (single.apply(images, halves).float() - mean).abs().max() <= 0.5


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_does_not_know_its_batch(policy: PixelPolicy, channels: int) -> None:
    images, uniforms = _images(channels=channels), _uniforms(policy)
    together = policy.apply(images, uniforms)
    assert together.dtype == torch.uint8
    assert together.shape == images.shape
    assert not together.equal(images)
    for i in range(len(images)):
        assert policy.apply(images[i : i + 1], uniforms[i : i + 1]).equal(together[i : i + 1])
    order = torch.randperm(12)
    assert policy.apply(images[order], uniforms[order]).equal(together[order])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_edges(policy: PixelPolicy) -> None:
    images = _images()
    before = images.clone()
    for value in (0.0, 1 - 2**-24):
        uniforms = torch.full((12, policy.draws), value)
        assert policy.apply(images, uniforms).shape == images.shape
    assert images.equal(before)
    assert policy.apply(images[:0], torch.rand(0, policy.draws)).shape == (0, 3, 16, 20)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_bad_input(policy: PixelPolicy) -> None:
    images, uniforms = _images(), _uniforms(policy)
    with pytest.raises(TypeError, match=r"images must be uint8, got torch\.float32\. Pixel"):
        policy.apply(images.float(), uniforms)
    with pytest.raises(ValueError, match=r"1 \(grey\) or 3 \(colour\) channels"):
        policy.apply(images[:, :2], uniforms)
    with pytest.raises(ValueError, match=rf"uniforms must have shape \(12, {policy.draws}\)"):
        policy.apply(images, uniforms[:, 1:])


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="magnitude must be at least 0 and at most 30, got 31"):
        RandAugment(magnitude=31)
    with pytest.raises(ValueError, match="num_ops must be at least 0"):
        RandAugment(num_ops=-1)
    with pytest.raises(ValueError, match="severity must be at least 1 and at most 10, got 0"):
        AugMix(severity=0)
    with pytest.raises(ValueError, match="width must be at least 1"):
        AugMix(width=0)
