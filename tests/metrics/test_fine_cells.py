"""Every confidence in its right-closed cell, inside its bin."""

from __future__ import annotations

import pytest
import torch

from sfumato._core.statistics import bin_index
from sfumato.metrics.groups import cell_edges, cell_index, cells_per_unit

CPU = torch.device("cpu")
BIN_COUNTS = [1, 7, 10, 15, 25, 64, 97, 100, 1000]


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
