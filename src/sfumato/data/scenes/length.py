"""The one root that pixels need, rounded exactly on every processor."""

from __future__ import annotations

from torch import Tensor


def length(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x^2 + y^2), the root of a float32 number correctly rounded.

    PyTorch's float32 root is off by one unit in the last place for about every sixth number on some
    processors. The root of a float32 number keeps at least four float64 units from every number
    halfway between two float32 ones, so a float64 root rounds to the right one even if its own last
    bit is wrong.

    Example:
        >>> import torch
        >>> length(torch.tensor([3.0]), torch.tensor([4.0]))
        tensor([5.])
    """
    return (x * x + y * y).double().sqrt_().to(x.dtype)
