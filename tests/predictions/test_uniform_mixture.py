"""Logarithms of probabilities that are exactly 0: the amount by hand, and a real file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.predictions import (
    BiasScaler,
    EnsembleTemperatureScaler,
    LogitNormaliser,
    TemperatureScaler,
    UniformMixture,
    VectorScaler,
)
from sfumato.predictions.scalers import ece_of_confidences

RULED_OUT = pytest.mark.filterwarnings("ignore:.* labels had probability 0")


def _error(logits: Tensor, labels: Tensor) -> float:
    confidence, predicted = logits.softmax(1).max(1)
    return float(ece_of_confidences(confidence, (predicted == labels).double(), 15))


@pytest.fixture
def news(real_data: Callable[[str], Path]) -> tuple[Tensor, Tensor]:
    """Probabilities (7532, 20), three quarters of them exactly 0, and labels."""
    probs = np.load(real_data("predictions/20news-probs.npy"))
    labels = np.load(real_data("predictions/20news-labels.npy"))
    return torch.from_numpy(probs), torch.from_numpy(labels).long()


def test_value_by_hand() -> None:
    """Certain and right in 9 of 10: (1 - a) + a/2 = 0.9 gives a = 0.2, and the label 0 gets 0.1."""
    probs, target = torch.tensor([[1.0, 0.0]] * 10), torch.tensor([0] * 9 + [1])
    with pytest.warns(UserWarning, match="1 of 10 held-out labels had probability 0"):
        mixture = UniformMixture().fit(probs=probs, target=target)
    assert mixture.amount == pytest.approx(0.2, rel=1e-6)
    expected = torch.tensor([[math.log(0.9), math.log(0.1)]])
    torch.testing.assert_close(mixture(probs[:1]), expected)


@RULED_OUT
@pytest.mark.parametrize("free_temperature", [False, True])
def test_the_amount_is_the_best_of_a_grid(free_temperature: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    probs = (logits * 2).softmax(1)
    probs = probs.where(probs > 0.02, 0)
    probs = probs / probs.sum(1, keepdim=True)
    found = UniformMixture(free_temperature=free_temperature).fit(probs=probs, target=labels).amount

    def loss(amount: float) -> float:
        mixed = np.log((1 - amount) * probs.numpy() + amount / 4)
        losses = []
        for temperature in np.geomspace(0.1, 10, 301) if free_temperature else [1.0]:
            scaled = mixed / temperature
            scaled -= np.log(np.exp(scaled).sum(1, keepdims=True))
            losses.append(-scaled[np.arange(400), labels.numpy()].mean())
        return min(losses)

    assert loss(found) <= min(loss(amount) for amount in np.geomspace(1e-3, 0.9, 60)) + 1e-5


def test_real_file_before_and_after(news: tuple[Tensor, Tensor]) -> None:
    """Taking the logarithm of a tiny number instead ended at temperature 100 and ECE 67 %."""
    probs, labels = news
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, test = order[:3766], order[3766:]
    mixture = UniformMixture(free_temperature=True)
    with pytest.warns(UserWarning, match="33 of 3,766 held-out labels had probability 0"):
        mixture.fit(probs=probs[held_out], target=labels[held_out])
    logits = mixture(probs)
    scaler = TemperatureScaler().fit(logits=logits[held_out], target=labels[held_out])
    before = _error(probs[test].clamp_min(1e-300).log(), labels[test])
    assert before == pytest.approx(0.201, abs=0.001)
    assert _error(scaler(logits[test]), labels[test]) < 0.02
    assert torch.equal(scaler(logits).argmax(1), probs.argmax(1))


@RULED_OUT
@pytest.mark.parametrize(
    "make",
    [BiasScaler, EnsembleTemperatureScaler, LogitNormaliser, TemperatureScaler, VectorScaler],
)
def test_every_scaler_takes_what_it_gives(make: type, news: tuple[Tensor, Tensor]) -> None:
    probs, labels = (part[:2000] for part in news)
    logits = UniformMixture().fit(probs=probs, target=labels)(probs)
    scaled = make().fit(logits=logits, target=labels)(logits)
    assert bool(scaled.isfinite().all())
    if make is not LogitNormaliser:  # its scores are no probabilities
        assert _error(scaled, labels) <= _error(logits, labels) + 0.01


def test_state_survives_saving_and_export() -> None:
    probs, target = torch.tensor([[0.7, 0.3]] * 20), torch.tensor([0] * 12 + [1] * 8)
    mixture = UniformMixture().fit(probs=probs, target=target)
    other = UniformMixture()
    other.load_state_dict(mixture.state_dict())
    assert other.amount == mixture.amount == pytest.approx(0.5, rel=1e-6)
    exported = torch.export.export(mixture, (probs,)).module()
    torch.testing.assert_close(exported(probs), mixture(probs))


def test_bad_input() -> None:
    probs, target = torch.tensor([[0.7, 0.3]] * 4), torch.tensor([0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"call fit\(probs, target\) first"):
        UniformMixture()(probs)
    with pytest.raises(ValueError, match=r"must not be negative, got -0\.1"):
        UniformMixture().fit(probs=torch.tensor([[1.1, -0.1]] * 4), target=target)
    with pytest.raises(ValueError, match="sum to one"):
        UniformMixture().fit(probs=probs * 3, target=target)
    with pytest.warns(UserWarning, match=r"ended at its bound 0\.99"):
        UniformMixture().fit(probs=probs, target=target + 1)


@pytest.mark.filterwarnings("error")
def test_a_model_that_is_never_wrong_needs_no_share() -> None:
    probs, target = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4), torch.tensor([0, 1] * 4)
    assert UniformMixture().fit(probs, target).amount == pytest.approx(1e-6)
