"""What focal loss and its kin weigh an entry with: a power of what its prediction misses."""

from __future__ import annotations

import torch
from torch import Tensor


def power_of_miss(miss: Tensor, exponent: float | Tensor, *, least: float) -> Tensor:
    """miss^exponent of each entry, with two derivatives that are finite where little is missed.

    Args:
        miss: (N, ...), at least 0 but for rounding.
        exponent: a number, or one for each entry.
        least: no exponent is below it.
    """
    is_one = not isinstance(exponent, Tensor) and exponent == 1
    if least >= 2 or is_one:
        return miss.pow(exponent)
    # The power alone has no derivatives at 0, and near it they are large numbers that cancel or
    # overflow; times log p_y all of it is below rounding there: hold the power constant.
    is_certain = miss <= torch.finfo(miss.dtype).eps ** 2  # a Brier score is a square
    power = torch.where(is_certain, 1.0, miss) ** exponent
    return torch.where(is_certain, miss.detach().clamp(min=0) ** exponent, power)
