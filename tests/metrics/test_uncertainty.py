"""Entropy and mutual information."""

from __future__ import annotations

import math

import pytest
import torch

from sfumato.metrics import mutual_information, predictive_entropy


def test_entropy_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    expected = [1.5 * math.log(2), 0.0, math.log(3)]
    assert predictive_entropy(probs).tolist() == pytest.approx(expected, abs=1e-6)


def test_entropy_of_pixels() -> None:
    probs = torch.randn(2, 4, 3, 5, dtype=torch.float64).softmax(1)
    entropy = predictive_entropy(probs)
    assert entropy.shape == (2, 3, 5)
    torch.testing.assert_close(
        entropy[1, 2, 3], torch.distributions.Categorical(probs[1, :, 2, 3]).entropy()
    )


def test_mutual_information_by_hand() -> None:
    agree = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).expand(4, 2, 2)
    assert mutual_information(agree).tolist() == pytest.approx([0, 0], abs=1e-7)
    split = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    assert mutual_information(split).tolist() == pytest.approx([math.log(2)])


def test_mutual_information_is_the_mean_divergence_from_the_mean() -> None:
    samples = torch.randn(6, 3, 4, 2, 2, dtype=torch.float64).softmax(2)
    mean = samples.mean(0)
    divergence = (samples * (samples / mean).log()).sum(2).mean(0)
    torch.testing.assert_close(mutual_information(samples), divergence)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"\(N, C\)"):
        predictive_entropy(torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="sum to one"):
        predictive_entropy(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"\(S, N, C\)"):
        mutual_information(torch.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="S >= 1"):
        mutual_information(torch.zeros(0, 3, 2))
    with pytest.raises(ValueError, match="samples must sum to one"):
        mutual_information(torch.ones(2, 2, 2))
