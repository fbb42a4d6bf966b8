"""Every confidence in its right-closed bin and cell, as it is written."""

from __future__ import annotations

import pytest
import torch

from sfumato.metrics.grid import bin_edges, bin_index, cell_edges, cell_index, cells_per_unit

CPU = torch.device("cpu")
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", BIN_COUNTS)
def test_cells_lie_inside_bins(num_bins: int, dtype: torch.dtype) -> None:
    cells = cells_per_unit(num_bins)
    edges = (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins).to(dtype)
    up, down = torch.tensor(2.0, dtype=dtype), torch.tensor(-1.0, dtype=dtype)
    confidence = torch.cat(
        [
            edges,
            torch.nextafter(edges, up).clamp(max=1),
            torch.nextafter(edges, down).clamp(min=0),
            torch.rand(20_000, dtype=dtype),
            1 - 1e-4 * torch.rand(20_000, dtype=dtype),
            1 - 1e-6 * torch.rand(20_000, dtype=dtype),
        ]
    )
    cell = cell_index(confidence.double(), cells, dtype=dtype)
    upper = cell_edges(cells, CPU)[1:]
    assert torch.equal(bin_index(upper[cell], num_bins), bin_index(confidence, num_bins))


def test_cells_hold_what_their_edges_say() -> None:
    cells = cells_per_unit(15)
    edges = cell_edges(cells, CPU)
    assert bool((edges.diff() > 0).all())
    confidence = torch.cat([torch.rand(50_000), 1 - 1e-4 * torch.rand(50_000)]).double()
    cell = cell_index(confidence, cells, dtype=torch.float64)
    assert bool((edges[cell] < confidence).all())
    assert bool((confidence <= edges[cell + 1] * (1 + 1e-15)).all())


def test_common_bin_counts_share_a_grid() -> None:
    assert {cells_per_unit(n) for n in (10, 15, 20, 25, 50, 100)} == {15_000}


def test_confidence_zero_one_and_a_rounding_above() -> None:
    confidence = torch.tensor([0.0, 1.0, 1.0000001])
    assert bin_index(confidence, 15).tolist() == [0, 14, 14]
    cells = cells_per_unit(15)
    cell = cell_index(confidence.double(), cells, dtype=torch.float32)
    last = len(cell_edges(cells, CPU)) - 2
    assert int(cell[0]) == 0
    # Two roundings below 1 are in the same cell as 1.
    assert last - 3 <= int(cell[1]) <= int(cell[2]) <= last


def test_edges_of_the_bins() -> None:
    assert bin_edges(4, torch.zeros(1)).tolist() == [0.25, 0.5, 0.75, 1.0]
