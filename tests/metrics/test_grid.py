"""Every confidence in its right-closed cell, however close to an edge."""

from __future__ import annotations

import pytest
import torch

from sfumato.metrics.grid import bin_edges, bin_index, cell_edges, cell_index, cells_per_unit

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", [1, 7, 15, 64, 97, 100])
def test_cell_index_is_a_search_over_the_edges(num_bins: int, dtype: torch.dtype) -> None:
    cells = cells_per_unit(num_bins)
    edges = cell_edges(cells, dtype, CPU)
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
    expected = torch.bucketize(confidence, edges[1:-1].contiguous())
    assert torch.equal(cell_index(confidence.double(), cells, dtype=dtype), expected)
    assert bool((edges.diff() > 0).all())


@pytest.mark.parametrize("num_bins", [1, 7, 10, 15, 16, 25, 64, 97, 100, 1000])
def test_edges_of_bins_are_edges_of_cells(num_bins: int) -> None:
    cells = cell_edges(cells_per_unit(num_bins), torch.float64, CPU)
    assert bool(torch.isin(bin_edges(num_bins, cells), cells).all())


def test_common_bin_counts_share_a_grid() -> None:
    assert {cells_per_unit(n) for n in (10, 15, 20, 25, 50, 100)} == {15_000}


def test_bins_are_right_closed_as_written() -> None:
    confidence = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.30001, 0.7, 1.0])
    for dtype in (torch.float32, torch.float64):
        assert bin_index(confidence.to(dtype), 10).tolist()[0] == 0
    assert bin_index(confidence, 10).tolist() == [0, 0, 1, 2, 3, 6, 9]


def test_confidence_rounded_above_one_is_in_the_last_cell() -> None:
    above = torch.tensor([1.0, 1.0000001], dtype=torch.float64)
    cells = cells_per_unit(15)
    assert cell_index(above, cells, dtype=torch.float32).unique().tolist() == [
        len(cell_edges(cells, torch.float32, CPU)) - 2
    ]
