"""Resamples of blocks against the plain bootstrap, theory, and rare samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sfumato._core.statistics import bin_index
from sfumato.metrics import compare_predictions, evaluate_predictions
from sfumato.metrics.evaluate import BLOCKS, Evaluation, confidence_cells


def _predictions(samples: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, 5, generator=generator) * 2
    return logits * 1.4, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def _evaluation(logits: Tensor, labels: Tensor) -> Evaluation:
    return Evaluation(
        logits, labels, from_logits=True, num_bins=15, ignore_index=-100, validate=True
    )


def test_spread_and_centre_are_those_of_the_plain_bootstrap() -> None:
    evaluation = _evaluation(*_predictions(6000))
    fast = evaluation.resample(1000, generator=torch.Generator().manual_seed(1), in_blocks=True)
    plain = evaluation.resample(1000, generator=torch.Generator().manual_seed(2))
    assert fast.keys() == plain.keys()
    for name, draws in plain.items():
        # Standard deviations of 1,000 draws scatter by 2.2 % each, the partition adds 1.6 %.
        assert float(fast[name].std()) == pytest.approx(float(draws.std()), rel=0.12), name
        assert abs(float(fast[name].mean() - draws.mean())) < 0.2 * float(draws.std()), name


def test_means_have_the_spread_of_theory() -> None:
    """The variance of a mean is that of a sample over N: on average over many partitions."""
    ratios = []
    for samples in range(2500, 2512):  # each number of samples has a partition of its own
        evaluation = _evaluation(*_predictions(samples, seed=samples))
        draws = evaluation.resample(
            150, generator=torch.Generator().manual_seed(samples), in_blocks=True
        )
        losses = evaluation.samples.log_likelihood.double()
        ratios.append(float(draws["nll"].var() / (losses.var() / samples)))
    # One ratio scatters by 12 % (150 draws) and 3 % (partition): the mean of 12 by 3.5 %.
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.12)


def test_few_samples_are_drawn_one_by_one() -> None:
    evaluation = _evaluation(*_predictions(BLOCKS))
    fast = evaluation.resample(20, generator=torch.Generator().manual_seed(1), in_blocks=True)
    plain = evaluation.resample(20, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(fast[name], plain[name]) for name in plain)


def test_one_impossible_label_is_drawn_as_often_as_by_itself() -> None:
    """A sample is missing in a resample with probability (1 - 1/N)^N, near 1/e."""
    probs = torch.tensor([[0.9, 0.1]]).repeat(5000, 1)
    labels = (torch.arange(5000) % 10 == 0).long()
    probs[7], labels[7] = torch.tensor([1.0, 0.0]), 1
    evaluation = Evaluation(
        probs, labels, from_logits=False, num_bins=15, ignore_index=-100, validate=True
    )
    draws = evaluation.resample(2000, generator=torch.Generator().manual_seed(0), in_blocks=True)[
        "nll"
    ]
    assert float(draws.isfinite().double().mean()) == pytest.approx(math.exp(-1), abs=0.04)


def test_pairs_are_drawn_together() -> None:
    logits, labels = _predictions(6000)
    noise = 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(5))
    second = logits * 1.05 + noise
    generator = torch.Generator().manual_seed(0)
    found = compare_predictions(
        logits=(logits, second), target=labels, resamples=500, generator=generator
    )["nll"]
    first_alone = evaluate_predictions(
        logits=logits, target=labels, resamples=500, generator=torch.Generator().manual_seed(0)
    )["nll_interval"]
    assert found.high - found.low < 0.3 * (first_alone[1] - first_alone[0])
    change = torch.nn.functional.cross_entropy(second, labels, reduction="none")
    change -= torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = 2 * 1.96 * float(change.std()) / math.sqrt(6000)
    assert found.high - found.low == pytest.approx(expected, rel=0.2)


def test_cells_keep_bins_apart_and_are_few() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(50_000, generator=generator).pow(0.05)  # most are near 1
    cell, upper = confidence_cells(confidence, 15)
    assert len(upper) <= BLOCKS
    assert torch.equal(bin_index(confidence, 15), bin_index(upper, 15)[cell])
    sizes = torch.bincount(cell)
    assert int(sizes.min()) > 0
    assert int(sizes.max()) <= 51  # a thousandth of the samples, and one
    assert bool((upper.diff() > 0).all())
    assert bool((upper[cell] >= confidence).all())
    assert float((upper[cell] - confidence).max()) <= 1 / 960 + 1e-6
    few = (confidence * 100).round() / 100
    cell, upper = confidence_cells(few, 15)
    assert torch.equal(upper[cell], few)
