"""What focal loss and its kin weigh an entry with: a power of what its prediction misses."""

from __future__ import annotations

import torch
from torch import Tensor


def power_of_miss(miss: Tensor, exponent: float | Tensor, *, least: float) -> Tensor:
    """miss^exponent of each entry, with a derivative that is finite where nothing is missed.

    Args:
        miss: (N, ...), at least 0 but for rounding.
        exponent: a number, or one for each entry.
        least: no exponent is below it.
    """
    if least >= 1:
        return miss.pow(exponent)
    # Where nothing is missed the power has no derivative for exponents below 1, but its product
    # with log p_y does: hold it constant there.
    is_certain = miss <= 0
    power = torch.where(is_certain, 1.0, miss) ** exponent
    return torch.where(is_certain, torch.zeros_like(miss) ** exponent, power)
