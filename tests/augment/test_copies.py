"""Copies of a batch, and the four marginal likelihoods of appendix D over them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.augment import repeat_samples, split_copies
from sfumato.inputs import Mollify
from sfumato.labels.likelihood import (
    bias_corrected_log_likelihood,
    geometric_log_likelihood,
    jensen_log_likelihood,
    monte_carlo_log_likelihood,
)


def test_rows_go_copy_by_copy() -> None:
    images = torch.arange(3.0).reshape(3, 1, 1, 1)
    repeated, target = repeat_samples(images, torch.tensor([5, 6, 7]), 2)
    assert repeated.flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert target.tolist() == [5, 6, 7, 5, 6, 7]
    soft = torch.rand(3, 4)
    assert split_copies(repeat_samples(images, soft, 5)[1], 5).equal(soft.expand(5, 3, 4))


def test_marginal_likelihood_training() -> None:
    """The example: K mollified copies of each image, one forward pass, any estimator."""
    torch.manual_seed(0)
    copies, model = 4, nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    images, target = torch.randn(6, 3, 8, 8), torch.randint(10, (6,))

    images, target = repeat_samples(images, target, copies)
    images, soft_target = Mollify(10)(images, target)
    log_likelihood = -F.cross_entropy(model(images), soft_target, reduction="none")  # Eq. (15)
    per_copy = split_copies(log_likelihood, copies)  # (K, N)
    loss = -bias_corrected_log_likelihood(per_copy).mean()
    loss.backward()
    assert model[1].weight.grad.abs().sum() > 0

    assert per_copy.shape == (4, 6)
    jensen, average = jensen_log_likelihood(per_copy), monte_carlo_log_likelihood(per_copy)
    torch.testing.assert_close(geometric_log_likelihood(per_copy), jensen)
    # Eq. (21): Jensen's bound is below; Eq. (25): the correction only adds.
    assert (jensen <= average + 1e-6).all()
    assert (average <= bias_corrected_log_likelihood(per_copy) + 1e-6).all()
    # Copy k of sample n is in row k N + n, whatever the estimator.
    expected = torch.stack([log_likelihood[[n, n + 6, n + 12, n + 18]].mean() for n in range(6)])
    torch.testing.assert_close(jensen, expected)


def test_edges() -> None:
    empty, target = repeat_samples(torch.zeros(0, 3, 4, 4), torch.zeros(0, dtype=torch.int64), 3)
    assert empty.shape == (0, 3, 4, 4)
    assert split_copies(target, 3).shape == (3, 0)
    assert split_copies(torch.zeros(4, 2), 1).shape == (1, 4, 2)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        repeat_samples(torch.zeros(2, 1), torch.zeros(2), 0)
    with pytest.raises(ValueError, match="target must hold 2 entries, got 3"):
        repeat_samples(torch.zeros(2, 1), torch.zeros(3), 2)
    with pytest.raises(ValueError, match=r"a multiple of 3 rows \(copies\), got \(4,\)"):
        split_copies(torch.zeros(4), 3)
