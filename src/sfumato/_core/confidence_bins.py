"""Which bin a confidence falls in: the one rule for every calibration error and diagram.

Bins of equal width are closed on the right: (0, 1/B], (1/B, 2/B], ..., ((B - 1)/B, 1], and 0 is in
the first. A confidence within two roundings above an edge counts as the edge, and so belongs to
the bin below it: 0.2 in float32 is a little above 0.2, and is to be in (0.1, 0.2] as written.
"""

from __future__ import annotations

import torch
from torch import Tensor


def bin_edges(num_bins: int, like: Tensor) -> Tensor:
    """Upper edges 1/B, 2/B, ..., 1 of equal-width bins, float64."""
    steps = torch.arange(1, num_bins + 1, dtype=torch.float64, device=like.device)
    return steps / num_bins


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Number of the bin of each confidence, from 0: floor(p B (1 - slack)).

    NaN is in the first bin: the sums of that become NaN, where no bin at all would leave a
    plausible number.

    Example:
        >>> bin_index(torch.tensor([0.0, 0.1, 0.2, 0.21, 1.0]), 5)
        tensor([0, 0, 0, 1, 4])
    """
    scale = num_bins * (1 - edge_slack(confidence.dtype))
    place = (confidence.double() * scale).nan_to_num_(nan=0.0)
    return place.long().clamp_(max=num_bins - 1)


def edge_slack(dtype: torch.dtype) -> float:
    """Two roundings of `dtype`, by which a confidence may exceed an edge and still be the edge."""
    return 2.0**-51 if dtype == torch.float64 else 2.0**-23
