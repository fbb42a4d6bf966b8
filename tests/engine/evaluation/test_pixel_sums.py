"""Sums over frames give the metrics of all pixels, and of resamples of whole units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.pixels import PixelSums
from sfumato.metrics import evaluate_predictions, mean_iou

CLASSES = ("a", "b", "c")


def _frames(count: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, 3, 4, 5, generator=generator)
    labels = torch.randint(0, 3, (count, 4, 5), generator=generator)
    labels[0, :2] = -100
    labels[3] = -100
    return logits, labels


def _filled(streams: list[int] | None = None) -> PixelSums:
    logits, labels = _frames()
    sums = PixelSums(3, background=(2,))
    for i in range(len(logits)):
        stream = None if streams is None else streams[i]
        unit = i if stream is None else stream
        sums.add_frame(logits[i : i + 1], labels[i : i + 1], unit, stream)
    return sums


def test_same_as_the_metrics_of_all_pixels() -> None:
    logits, labels = _frames()
    found = _filled().measure(_filled().total())
    expected = evaluate_predictions(logits=logits, target=labels)
    for name in ("accuracy", "nll", "ece"):
        assert float(found[name]) == pytest.approx(expected[name], rel=1e-6)
    for name in ("aurc", "augrc", "accuracy_at_80"):
        assert float(found[name]) == pytest.approx(expected[name], rel=0.03)
    assert float(found["mean_iou"]) == pytest.approx(float(mean_iou(logits, labels)))
    foreground = evaluate_predictions(logits=logits, target=labels.masked_fill(labels == 2, -100))
    assert float(found["foreground_ece"]) == pytest.approx(foreground["ece"], rel=1e-6)


def test_ranking_of_many_confident_pixels() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = 6 * torch.randn(8, 3, 60, 60, generator=generator)
    labels = torch.distributions.Categorical(logits=logits.movedim(1, -1) / 2).sample()
    sums = PixelSums(3)
    sums.add(logits, labels)
    found = sums.measure(sums.total())
    expected = evaluate_predictions(logits=logits, target=labels)
    for name in ("aurc", "accuracy_at_80"):
        assert float(found[name]) == pytest.approx(expected[name], rel=1e-3)
    # Its bins end at cells of the ranking and not within them.
    assert float(found["aece"]) == pytest.approx(expected["aece"], rel=0.02)


def test_adaptive_error_of_the_foreground() -> None:
    logits, labels = _frames(40, seed=3)
    sums = PixelSums(3, background=(2,))
    sums.add(logits, labels)
    found = sums.measure(sums.total())
    foreground = evaluate_predictions(logits=logits, target=labels.masked_fill(labels == 2, -100))
    assert float(found["foreground_aece"]) == pytest.approx(foreground["aece"], rel=0.1)
    empty = PixelSums(3, background=(2,))
    empty.add(logits, torch.full_like(labels, 2))
    assert empty.measure(empty.total())["foreground_aece"].isnan()


def test_batches_and_order_change_nothing() -> None:
    logits, labels = _frames()
    whole = PixelSums(3, background=(2,))
    whole.add(logits, labels)
    torch.testing.assert_close(whole.total(), _filled().total())
    assert len(whole.total()) == whole.length


def test_consistency_by_a_loop() -> None:
    logits, labels = _frames()
    streams = [0, 0, 0, 1, 1, 2]
    predicted = logits.argmax(1).numpy()
    kept, total, kept_labels, total_labels = 0, 0, 0, 0
    for i in range(1, 6):
        if streams[i] == streams[i - 1]:
            kept += (predicted[i] == predicted[i - 1]).sum()
            total += predicted[i].size
            now, before = labels[i].numpy(), labels[i - 1].numpy()
            known = (now != -100) & (before != -100)
            kept_labels += ((now == before) & known).sum()
            total_labels += known.sum()
    found = _filled(streams).measure(_filled(streams).total())
    assert float(found["consistency"]) == pytest.approx(kept / total)
    assert float(found["label_consistency"]) == pytest.approx(kept_labels / total_labels)


def test_intervals_draw_whole_units() -> None:
    """Two pixels a frame, all right or all wrong: the bootstrap of frames is a binomial."""
    sums = PixelSums(2)
    for i in range(40):
        logits = torch.tensor([[2.0, 0.0]]).view(1, 2, 1, 1).expand(1, 2, 30, 30)
        sums.add_frame(logits, torch.full((1, 30, 30), int(i % 2)), i, None)
    draws = sums.resample(2000, generator=torch.Generator().manual_seed(0))
    found = sums.summary(classes=("a", "b"), draws=draws)
    low, high = found["accuracy_interval"]
    half = 1.96 * np.sqrt(0.25 / 40)  # of 40 frames, not of 36,000 pixels
    assert high - low == pytest.approx(2 * half, rel=0.15)
    assert "foreground_ece" not in found
    assert "consistency" not in found
    assert found["pixels"] == 40 * 900
    assert found["units"] == 40


def test_summary_details() -> None:
    found = _filled().summary(classes=CLASSES)
    assert list(found["class_iou"]) == list(CLASSES)
    assert np.nanmean(list(found["class_iou"].values())) == pytest.approx(found["mean_iou"])
    bins = found["reliability"]
    gaps = [
        n * abs(c - a)
        for n, c, a in zip(bins["counts"], bins["confidence"], bins["accuracy"], strict=True)
        if n
    ]
    assert sum(gaps) / sum(bins["counts"]) == pytest.approx(found["ece"])
    assert not any(name.endswith("_interval") for name in found)


def test_memory_does_not_grow_with_pixels() -> None:
    small, large = PixelSums(3), PixelSums(3)
    small.add(torch.randn(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
    large.add(torch.randn(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.int64))
    assert small.rows[0].shape == large.rows[0].shape == (small.length,)
