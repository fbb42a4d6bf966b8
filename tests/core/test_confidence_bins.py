"""Every confidence in its right-closed bin, as it is written, wherever an ECE is computed."""

from __future__ import annotations

import pytest
import torch

from sfumato._core.statistics import bin_edges, bin_index
from sfumato.metrics import CalibrationError, calibration_error
from sfumato.predictions import scalers

BIN_COUNTS = [1, 7, 10, 15, 25, 64, 97, 100, 1000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", BIN_COUNTS)
def test_edges_belong_to_the_bin_below(num_bins: int, dtype: torch.dtype) -> None:
    edges = (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins).to(dtype)
    expected = torch.arange(-1, num_bins).clamp(min=0)
    assert torch.equal(bin_index(edges, num_bins), expected)
    above = (edges[:-1].double() * (1 + 4e-7) + 1e-9).to(dtype)
    assert torch.equal(bin_index(above, num_bins), torch.arange(num_bins))


@pytest.mark.parametrize("num_bins", BIN_COUNTS)
def test_bin_index_is_a_search_away_from_the_edges(num_bins: int) -> None:
    confidence = torch.rand(50_000, dtype=torch.float64)
    inner = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    assert torch.equal(bin_index(confidence, num_bins), torch.bucketize(confidence, inner))


def test_edges_of_the_bins() -> None:
    assert bin_edges(4, torch.zeros(1)).tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("num_bins", BIN_COUNTS)
def test_all_ways_to_an_ece_agree_on_the_edges(num_bins: int) -> None:
    """Each edge shares its bin with a middle of the other correctness: a slip would show."""
    edges = bin_edges(num_bins, torch.zeros(1))
    confidence = torch.cat([edges, edges - 0.5 / num_bins])
    correct = torch.cat([torch.zeros(num_bins), torch.ones(num_bins)])
    sure = confidence > 0.5
    confidence, correct = confidence[sure], correct[sure]
    probs, target = torch.stack([confidence, 1 - confidence], 1), 1 - correct.long()
    expected = (2 * edges - 0.5 / num_bins - 1)[edges > 0.5].abs()
    if num_bins % 2:  # the middle of the bin around 0.5 is not above it
        expected[0] = edges[edges > 0.5][0]
    ece = float(expected.sum()) / len(confidence)
    assert float(calibration_error(probs, target, num_bins=num_bins)) == pytest.approx(ece)
    assert float(scalers.ece_of_confidences(confidence, correct, num_bins)) == pytest.approx(ece)
    stream = CalibrationError(num_bins=num_bins)
    stream.update(probs, target)
    assert float(stream.compute()) == pytest.approx(ece)
