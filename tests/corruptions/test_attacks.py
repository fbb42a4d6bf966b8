"""Attacks on a small model whose worst case is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sfumato.corruptions import attack_scores, fgsm, frequency_mask, pgd


class _Linear(nn.Module):
    """Two logits, +-(w . x); the gradient is known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.01
        )

    def forward(self, images: Tensor) -> Tensor:
        score = (images * self.weight).sum(dim=(1, 2, 3))
        return torch.stack([score, -score], dim=1)


def _case(count: int = 4) -> tuple[_Linear, Tensor, Tensor]:
    images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 0.6 + 0.2
    model = _Linear()
    return model, images, model(images).argmax(dim=1)


@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_linf_reaches_the_corner(attack: object) -> None:
    model, images, target = _case()
    attacked = attack(model, images, target, epsilon=0.05)  # type: ignore[operator]
    sign = torch.where(target == 0, -1.0, 1.0).view(-1, 1, 1, 1)
    worst = images + 0.05 * sign * model.weight.detach().sign()
    assert torch.allclose(attacked, worst, atol=1e-6)
    assert model.weight.grad is None


@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_l2_goes_along_the_weight(attack: object) -> None:
    model, images, target = _case()
    attacked = attack(model, images, target, epsilon=0.5, norm="l2")  # type: ignore[operator]
    change = (attacked - images).flatten(1)
    assert change.norm(dim=1).tolist() == pytest.approx([0.5] * 4, abs=1e-5)
    along = torch.nn.functional.cosine_similarity(change, model.weight.detach().flatten()[None])
    assert along.abs().min() > (0.999 if attack is fgsm else 0.9)


def test_pgd_is_at_least_as_strong_as_fgsm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.Tanh(), nn.Conv2d(8, 8, 5), nn.Flatten(), nn.Linear(512, 3)
    )
    images, target = torch.rand(16, 1, 16, 16), torch.randint(0, 3, (16,))

    def loss(x: Tensor) -> float:
        return nn.functional.cross_entropy(model(x), target).item()

    one = loss(fgsm(model, images, target, epsilon=0.1))
    many = loss(pgd(model, images, target, epsilon=0.1, steps=20))
    assert loss(images) < one < many


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_a_band_restricts_the_change(attack: object, norm: str) -> None:
    model, images, target = _case()
    mask = frequency_mask(16, 16, frequency=0.7 * math.pi, band=0.3 * math.pi)
    attacked = attack(model, images, target, epsilon=0.1, norm=norm, mask=mask)  # type: ignore[operator]
    change = attacked - images
    assert torch.fft.fft2(change).abs()[..., ~mask].max() < 1e-4
    size = change.abs().amax() if norm == "linf" else change.flatten(1).norm(dim=1).max()
    assert 0.0 < size <= 0.1 + 1e-5
    sign = torch.where(target == 0, -1.0, 1.0)
    assert ((change * model.weight.detach()).sum(dim=(1, 2, 3)) * sign > 0).all()


class _NoisyLinear(_Linear):
    """The gradient of one pass is mostly noise."""

    def forward(self, images: Tensor) -> Tensor:
        noise = torch.randn(images.shape[1:]) * 0.05
        score = (images * (self.weight + noise)).sum(dim=(1, 2, 3))
        return torch.stack([score, -score], dim=1)


def test_averaging_over_samples_finds_the_mean_gradient() -> None:
    _, images, target = _case(2)
    model = _NoisyLinear()
    quiet = model.weight.detach().sign()
    sign = torch.where(target == 0, -1.0, 1.0).view(-1, 1, 1, 1)

    def agreement(samples: int) -> float:
        change = fgsm(model, images, target, epsilon=0.05, samples=samples) - images
        return (change.sign() == sign * quiet).float().mean().item()

    assert agreement(64) > agreement(1) + 0.1


def test_the_result_stays_an_image_and_epsilon_zero_is_none() -> None:
    model, images, target = _case()
    extreme = images.round()
    for attack in (fgsm, pgd):
        attacked = attack(model, extreme, target, epsilon=0.2)
        assert attacked.min() >= 0.0
        assert attacked.max() <= 1.0
        assert torch.equal(attack(model, images, target, epsilon=0.0), images)


def test_pgd_start_does_not_depend_on_the_batch() -> None:
    model, images, target = _case()
    whole = pgd(model, images, target, epsilon=0.1, steps=2, generator=torch.Generator())
    generator = torch.Generator()
    parts = [
        pgd(model, images[i : i + 1], target[i : i + 1], epsilon=0.1, steps=2, generator=generator)
        for i in range(4)
    ]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-6)


def test_works_without_gradients_around_it() -> None:
    model, images, target = _case()
    with torch.no_grad():
        assert not torch.equal(fgsm(model, images, target, epsilon=0.1), images)


def test_scores_by_hand() -> None:
    clean = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    attacked = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    scores = attack_scores(clean, attacked, torch.tensor([0, 0, 0, 0]))
    assert scores.accuracy == 0.5
    assert scores.success_rate == pytest.approx(2 / 3)
    nothing = attack_scores(clean[2:3], attacked[2:3], torch.tensor([0]))
    assert math.isnan(nothing.success_rate)


def test_bad_input_is_named() -> None:
    model, images, target = _case()
    with pytest.raises(TypeError, match=r"images must be floating point in \[0, 1\]"):
        fgsm(model, (images * 255).to(torch.uint8), target, epsilon=0.1)
    with pytest.raises(ValueError, match=r"target must be \(4,\), one class for each image"):
        pgd(model, images, target[:2], epsilon=0.1)
    with pytest.raises(ValueError, match=r"target must be class indices in \[0, 2\), got 3"):
        fgsm(model, images, torch.full((4,), 3), epsilon=0.1)
    with pytest.raises(ValueError, match="epsilon must be in"):
        fgsm(model, images, target, epsilon=-0.1)
    with pytest.raises(ValueError, match=r"norm must be one of .*'l1'"):
        fgsm(model, images, target, epsilon=0.1, norm="l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be at least 1"):
        pgd(model, images, target, epsilon=0.1, steps=0)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        fgsm(model, images, target, epsilon=0.1, samples=0)
    with pytest.raises(ValueError, match=r"mask must be \(16, 16\) like the images, got \(8, 8\)"):
        fgsm(model, images, target, epsilon=0.1, mask=torch.ones(8, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"clean and attacked must be \(N, K\)"):
        attack_scores(torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(2, dtype=torch.int64))
