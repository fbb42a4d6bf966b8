"""Dropout of single elements whose masks cost little.

On a processor torch draws each element of a mask by itself, which takes longer than the
convolutions of a small network. Here 64 random bits make the masks of four elements.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16  # the rate is a multiple of its inverse: 0.1 is 0.100006


def element_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`F.dropout` with other random numbers; on a processor several times as fast.

    What is kept is scaled by the rate that is drawn, so that the expectation is the input.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> element_dropout(torch.ones(2, 4), 0.5)
        tensor([[0., 0., 2., 0.],
                [0., 0., 0., 0.]])
    """
    dropped = round(float(p) * _LEVELS)
    if not training or input.device.type != "cpu" or not 0 < dropped < _LEVELS:
        return F.dropout(input, p, training, inplace)
    count = input.numel()
    drawn = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    kept = torch.empty_like(input, dtype=torch.bool)  # dense, in the input's order of axes
    lanes = drawn.view(torch.int16)[:count]
    torch.ge(lanes, dropped - _LEVELS // 2, out=kept.as_strided((count,), (1,)))
    factor = kept.view(torch.uint8).to(input.dtype).mul_(_LEVELS / (_LEVELS - dropped))
    return input.mul_(factor) if inplace else input * factor
