"""Scores of strange inputs: against their equations and those of pytorch-ood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.metrics import predictive_entropy
from sfumato.predictions import (
    MahalanobisDistance,
    NeighbourDistance,
    energy_score,
    generalised_entropy_score,
    maximum_logit_score,
    maximum_probability_score,
)

Golden = Callable[[str], dict[str, Any]]
SCORES = (
    maximum_probability_score,
    maximum_logit_score,
    energy_score,
    generalised_entropy_score,
)


def _logits(scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(50, 7, generator=generator, dtype=torch.float64)


def _features(count: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64)


def test_scores_of_logits_are_their_equations() -> None:
    rows = _logits().numpy()
    probs = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    expected = {
        maximum_probability_score: 1 - probs.max(1),
        maximum_logit_score: -rows.max(1),
        energy_score: -np.log(np.exp(rows).sum(1)),
        generalised_entropy_score: (probs**0.1 * (1 - probs) ** 0.1).sum(1),
    }
    for score, values in expected.items():
        np.testing.assert_allclose(score(_logits()).numpy(), values, rtol=1e-10)


def test_options_of_the_equations() -> None:
    rows = _logits().numpy()
    probs = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    kept = np.sort(probs, 1)[:, -3:]
    found = generalised_entropy_score(_logits(), exponent=0.5, largest=3).numpy()
    np.testing.assert_allclose(found, np.sqrt(kept * (1 - kept)).sum(1), rtol=1e-10)
    warm = -2.5 * np.log(np.exp(rows / 2.5).sum(1))
    np.testing.assert_allclose(energy_score(_logits(), temperature=2.5).numpy(), warm, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_a_flat_prediction_is_stranger_than_a_sharp_one(score) -> None:
    flat, sharp = torch.zeros(1, 5), torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0]])
    assert float(score(flat)) > float(score(sharp))


def test_confident_predictions_have_no_ties() -> None:
    score = maximum_probability_score(torch.tensor([[40.0, 0.0], [60.0, 0.0]]))
    assert score[0] > score[1] > 0
    score = generalised_entropy_score(torch.tensor([[40.0, 0.0], [60.0, 0.0]]))
    assert score[0] > score[1] > 0


@pytest.mark.parametrize("score", SCORES)
def test_logits_that_are_not_numbers(score) -> None:
    with pytest.raises(ValueError, match="logits must be finite, got NaN or infinity in 1 of 2"):
        score(torch.tensor([[0.0, torch.nan], [0.0, 1.0]]))


def test_neighbours_are_those_of_a_full_search() -> None:
    bank, asked = _features(80, 5), _features(9, 5, seed=1)
    unit, other = (each / each.norm(dim=1, keepdim=True) for each in (bank, asked))
    expected = (other[:, None] - unit[None]).norm(dim=2).sort(1).values[:, 3]
    found = NeighbourDistance(neighbours=4).fit(bank).score(asked)
    torch.testing.assert_close(found, expected)


def test_neighbours_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    distance = NeighbourDistance(neighbours=3).fit(_features(40, 4))
    whole = distance.score(_features(11, 4, seed=1))
    monkeypatch.setattr("sfumato.predictions.ood._ENTRIES", 80)
    torch.testing.assert_close(distance.score(_features(11, 4, seed=1)), whole)


def _by_hand(features: np.ndarray, labels: np.ndarray, asked: np.ndarray, rho: float) -> np.ndarray:
    means = [features[labels == c].mean(0) for c in np.unique(labels)]
    centred = np.concatenate(
        [features[labels == c] - means[i] for i, c in enumerate(np.unique(labels))]
    )
    covariance = centred.T @ centred / len(features)
    width = covariance.shape[0]
    covariance = (1 - rho) * covariance + rho * np.trace(covariance) / width * np.eye(width)
    inverse = np.linalg.inv(covariance)
    return np.min([np.einsum("nd,de,ne->n", asked - m, inverse, asked - m) for m in means], 0)


def test_mahalanobis_is_its_equation_and_streams() -> None:
    features, labels = _features(300, 4), torch.arange(300) % 3
    asked = _features(20, 4, seed=1) * 2
    distance = MahalanobisDistance(4).fit(features, labels)  # class 3 never occurs
    expected = _by_hand(features.numpy(), labels.numpy(), asked.numpy(), 0.0)
    np.testing.assert_allclose(distance.score(asked).numpy(), expected, rtol=1e-8)
    assert distance.shrinkage == 0
    streamed = MahalanobisDistance(4)
    for rows, classes in zip(features.split(70), labels.split(70), strict=True):
        streamed.update(rows, classes)
    torch.testing.assert_close(streamed.score(asked), distance.score(asked))


def test_few_samples_shrink_the_covariance_and_say_so() -> None:
    features, labels = _features(16, 6), torch.arange(16) % 4
    distance = MahalanobisDistance(4)
    with pytest.warns(UserWarning, match="a class has 4 samples for 6 features: .* shrunk by"):
        distance.fit(features, labels)
    rows = features.numpy()
    centred = rows - np.stack([rows[labels.numpy() == c].mean(0) for c in range(4)])[labels.numpy()]
    sigma = centred.T @ centred / 16
    square, trace, p, n = (sigma**2).sum(), np.trace(sigma), 6, 12
    rho = ((1 - 2 / p) * square + trace**2) / ((n + 1 - 2 / p) * (square - trace**2 / p))
    assert distance.shrinkage == pytest.approx(min(1.0, rho))
    expected = _by_hand(rows, labels.numpy(), rows, min(1.0, rho))
    np.testing.assert_allclose(distance.score(features).numpy(), expected, rtol=1e-8)


def test_a_dead_feature_counts_for_nothing() -> None:
    features, labels = _features(60, 3), torch.arange(60) % 2
    dead = torch.cat([features, torch.zeros(60, 1)], 1)
    asked = torch.cat([features, torch.ones(60, 1)], 1)
    found = MahalanobisDistance(2).fit(dead, labels).score(asked)
    torch.testing.assert_close(found, MahalanobisDistance(2).fit(features, labels).score(features))


def test_bad_features() -> None:
    with pytest.raises(ValueError, match="at least neighbours=50 training images, got 7"):
        NeighbourDistance().fit(torch.zeros(7, 2))
    with pytest.raises(ValueError, match="no training features yet: call fit"):
        NeighbourDistance().score(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="no training features yet: call fit"):
        MahalanobisDistance(2).score(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="features must be finite"):
        NeighbourDistance(1).fit(torch.tensor([[torch.nan, 0.0]]))
    with pytest.raises(ValueError, match=r"features must be \(N, D\) in floating point"):
        NeighbourDistance(1).fit(torch.zeros(3, 2, 4, 4))
    fitted = NeighbourDistance(1).fit(torch.ones(3, 2))
    with pytest.raises(ValueError, match="the 2 columns of the fit, got 5"):
        fitted.score(torch.ones(1, 5))
    with pytest.raises(ValueError, match="at least one training image"):
        MahalanobisDistance(2).fit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


OF_PYTORCH_OOD = {
    "MaxSoftmax": maximum_probability_score,
    "MaxLogit": maximum_logit_score,
    "EnergyBased": energy_score,
    "GEN": generalised_entropy_score,
    "Entropy": lambda logits: predictive_entropy(logits.softmax(1)),
}


@pytest.mark.parametrize("name", OF_PYTORCH_OOD)
def test_scores_of_logits_are_those_of_pytorch_ood(name: str, golden: Golden) -> None:
    arrays = golden("ood")  # of its version 0.4.0
    theirs = arrays[name] * (7 if name == "GEN" else 1)  # theirs is a mean over the classes
    theirs = theirs + 1 if name == "MaxSoftmax" else theirs  # which leaves the 1 of 1 - p out
    found = OF_PYTORCH_OOD[name](torch.from_numpy(arrays["logits"]))
    np.testing.assert_allclose(found.numpy(), theirs, rtol=1e-9, atol=1e-12)


def test_distances_are_those_of_pytorch_ood(golden: Golden) -> None:
    arrays = golden("ood")
    bank, labels, asked = (torch.from_numpy(arrays[name]) for name in ("bank", "labels", "asked"))
    near = NeighbourDistance(4).fit(bank).score(asked)
    np.testing.assert_allclose(near.numpy(), arrays["KNN"], rtol=1e-5, atol=1e-5)
    far = MahalanobisDistance(3).fit(bank, labels).score(asked)
    # Theirs is half of it, in units of the sum over the samples where ours is the mean.
    np.testing.assert_allclose(far.numpy(), 2 * len(bank) * arrays["Mahalanobis"], rtol=1e-4)
