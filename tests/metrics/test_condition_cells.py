"""Many cells of few images: the RMS error of a perfect network is about 0, and order is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.metrics import calibration_error
from sfumato.metrics.robustness import CellScores

CELLS, IMAGES = 15, 200


def _scores(temperature: float, seed: int) -> CellScores:
    """Images that are easy or hard in all cells; labels follow the logits over `temperature`."""
    generator = torch.Generator().manual_seed(seed)
    ease = torch.randn(1, IMAGES, generator=generator)
    damage = torch.randn(CELLS, 1, generator=generator)
    logit = 1.2 + 1.2 * ease + 0.6 * damage
    logit = logit + 0.5 * torch.randn(CELLS, IMAGES, generator=generator)
    chance = torch.rand(CELLS, IMAGES, generator=generator)
    confidence = torch.maximum(logit.sigmoid(), (-logit).sigmoid())
    true = (confidence.logit() / temperature).sigmoid()
    correct = chance < true
    return CellScores(confidence, correct, torch.where(correct, confidence, 1 - confidence).log())


def test_a_perfect_network_shows_about_nothing() -> None:
    tables = [_scores(1.0, seed).table() for seed in range(200)]
    ece = np.mean([float(each.ece.mean()) for each in tables])
    squared = np.array([float(each.squared_gap.mean()) for each in tables])
    rmsce = np.sqrt(squared.clip(0)).mean()
    assert ece > 0.06
    assert rmsce < 0.016
    assert abs(squared.mean()) < 0.01**2 * 3
    floors = [_scores(1.0, seed).measure() for seed in range(5)]
    assert np.mean([each["ece_floor"] for each in floors]) == pytest.approx(ece, rel=0.05)
    assert np.mean([each["rmsce_floor"] for each in floors]) == pytest.approx(rmsce, rel=0.35)


def test_squared_gaps_are_unbiased() -> None:
    for temperature in (1.0, 1.5, 2.5):
        tables = [_scores(temperature, seed) for seed in range(100)]
        found = np.mean([float(each.table().squared_gap.mean()) for each in tables])
        joined = CellScores(*(torch.cat(parts, 1) for parts in zip(*tables, strict=True)))
        expected = float(joined.table().squared_gap.mean())  # of 20,000 images
        assert found == pytest.approx(expected, abs=4e-4, rel=0.04)


def test_order_of_networks_is_kept() -> None:
    squared = {
        temperature: [float(_scores(temperature, s).table().squared_gap.mean()) for s in range(30)]
        for temperature in (1.0, 1.4, 2.0)
    }
    assert np.mean(np.less(squared[1.0], squared[1.4])) > 0.9
    assert np.mean(np.less(squared[1.4], squared[2.0])) > 0.9


def test_cells_equal_a_plain_loop() -> None:
    scores = _scores(1.5, 0)
    table = scores.table()
    for cell in range(CELLS):
        top, correct = scores.confidence[cell].double(), scores.correct[cell]
        probs, target = torch.stack([top, 1 - top], 1), (~correct).long()
        assert float(table.ece[cell]) == pytest.approx(float(calibration_error(probs, target)))
        gaps, squared = (top - correct.double()).numpy(), 0.0
        bins = np.minimum((top.numpy() * 15).astype(int), 14)
        for number in range(15):
            inside = gaps[bins == number]
            if len(inside) > 1:
                pairs = np.outer(inside, inside)[~np.eye(len(inside), dtype=bool)]
                squared += len(inside) / IMAGES * pairs.mean()
        assert float(table.squared_gap[cell]) == pytest.approx(squared)
    assert scores.measure()["error"] == pytest.approx(float((~scores.correct).double().mean()))


def test_resamples_draw_an_image_with_all_its_versions() -> None:
    """All cells are copies: the mean over them must scatter as one cell does."""
    one = _scores(1.5, 1)
    copies = CellScores(*(part[:1].expand(CELLS, -1) for part in one))
    generator = torch.Generator().manual_seed(0)
    error = copies.resample(2000, generator=generator)["error"]
    rate = float((~one.correct[0]).double().mean())
    assert float(error.std()) == pytest.approx((rate * (1 - rate) / IMAGES) ** 0.5, rel=0.06)


def test_spread_of_resamples_is_that_of_new_images() -> None:
    """Or a little more: near zero the scatter of the bins counts as signal in a resample."""
    tables = [_scores(1.6, seed).table() for seed in range(100)]
    draws = [
        _scores(1.6, seed).resample(200, generator=torch.Generator().manual_seed(0))
        for seed in range(8)
    ]
    rmsce = [float(each.squared_gap.mean().clamp(min=0).sqrt()) for each in tables]
    ece = [float(each.ece.mean()) for each in tables]
    for name, values in (("rmsce", rmsce), ("ece", ece)):
        found = np.mean([float(each[name].std()) for each in draws])
        assert 0.8 * np.std(values) < found < 1.6 * np.std(values)
