"""Randomness per image: independent of batching, and of the right distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sfumato.corruptions.random_numbers import Streams, draw_seeds, poisson, seeded_generator


def _streams(count: int, seed: int = 0) -> Streams:
    return Streams(draw_seeds(count, torch.Generator().manual_seed(seed)), device="cpu")


def _mix(number: int) -> int:
    number ^= number >> 16
    number = number * 0x21F0AAAD & 0xFFFFFFFF
    number ^= number >> 15
    number = number * 0x735A2D97 & 0xFFFFFFFF
    return number ^ number >> 15


def test_bits_equal_the_hash_in_python_integers() -> None:
    seeds = torch.tensor([5, -7, 2**62 + 12345])
    streams = Streams(seeds, device="cpu")
    streams.uniform(4)
    numbers = streams.uniform(4)
    for i, seed in enumerate(seeds.tolist()):
        low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
        for position in range(4):
            mixed = _mix(position + (1 << 24)) ^ low
            expected = (_mix(mixed + high & 0xFFFFFFFF) >> 8) / 2**24
            assert numbers[i, position].item() == expected


def test_an_image_keeps_its_numbers_in_any_batch() -> None:
    seeds = draw_seeds(9, torch.Generator().manual_seed(2))
    whole, part = Streams(seeds, device="cpu"), Streams(seeds[4:7], device="cpu")
    for _ in range(3):
        assert torch.equal(whole.uniform(2, 5)[4:7], part.uniform(2, 5))
        assert torch.equal(whole.normal(7)[4:7], part.normal(7))
        assert torch.equal(whole.integers(3, low=-2, high=2)[4:7], part.integers(3, low=-2, high=2))


def test_seeds_of_two_calls_are_those_of_one() -> None:
    generator = torch.Generator().manual_seed(3)
    parts = [draw_seeds(count, generator) for count in (1, 0, 17, 46)]
    assert torch.equal(torch.cat(parts), draw_seeds(64, torch.Generator().manual_seed(3)))


def test_uniform_numbers_are_uniform_and_independent() -> None:
    streams = Streams(torch.arange(300), device="cpu")  # neighbouring seeds are the hard case
    first, second = streams.uniform(3072), streams.uniform(3072)
    counts = torch.histc(first, 1024, 0.0, 1.0).double()
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    pairs = (first[:-1] * 32).long() * 32 + (first[1:] * 32).long()  # the same place, next image
    assert stats.chisquare(np.bincount(pairs.flatten(), minlength=1024)).pvalue > 1e-3
    between = np.corrcoef(first[:100].numpy())
    np.fill_diagonal(between, 0.0)
    assert np.abs(between).max() < 6 / np.sqrt(3072)
    draws = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
    assert abs(float(draws)) < 5 / np.sqrt(first.numel())


def test_normal_numbers_are_normal() -> None:
    numbers = _streams(200).normal(3, 31, 33)  # an odd count
    assert stats.kstest(numbers.flatten().numpy()[:200_000], "norm").pvalue > 1e-3
    assert abs(stats.kurtosis(numbers.flatten().numpy())) < 0.03
    scaled = _streams(200).normal(3, 31, 33, mean=2.0, std=0.5)
    assert torch.allclose(scaled, numbers * 0.5 + 2.0, atol=1e-5)


def test_integers_cover_their_range_evenly() -> None:
    numbers = _streams(50).integers(2000, low=-3, high=3)
    values, counts = numbers.unique(return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2]
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.2, 1.0, 5.0, 9.9, 10.0, 15.0, 60.0, 500.0])
def test_poisson_is_the_quantile(rate: float) -> None:
    normal = torch.linspace(-4.5, 4.5, 40_001)
    counts = poisson(torch.full_like(normal, rate), normal).numpy()
    expected = stats.poisson.ppf(stats.norm.cdf(normal.double().numpy()), rate)
    weight = stats.norm.pdf(normal.numpy())
    assert np.abs(counts - expected).max() <= 1
    assert (weight * (counts != expected)).sum() / weight.sum() < 6e-4


def test_poisson_of_nothing_is_nothing() -> None:
    assert poisson(torch.zeros(5), torch.linspace(-5, 5, 5)).tolist() == [0.0] * 5


def test_named_generators_differ_and_repeat() -> None:
    first = seeded_generator(0, "fog", 1).initial_seed()
    assert first == seeded_generator(0, "fog", 1).initial_seed()
    others = {seeded_generator(*key).initial_seed() for key in ((1, "fog", 1), (0, "fog", 2))}
    assert first not in others
    assert len(others) == 2


def test_a_generator_of_another_device_is_refused() -> None:
    class Elsewhere:
        device = torch.device("cuda")

    with pytest.raises(ValueError, match=r"generator must be on the CPU, got one on cuda"):
        draw_seeds(2, Elsewhere())  # type: ignore[arg-type]
