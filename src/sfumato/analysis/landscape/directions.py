"""Random directions in the space of weights that mean the same for every network.

Reference: Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, section 4.
"""

from __future__ import annotations

import zlib
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.seeds import mix_seed
from sfumato.analysis.batches import trainable

Normalisation = Literal["filter", "released"]
Direction = dict[str, Tensor]


def filter_direction(
    model: nn.Module,
    *,
    seed: int = 0,
    number: int = 0,
    normalisation: Normalisation = "filter",
) -> Direction:
    r"""A Gaussian direction whose filters are as long as those of the network.

    Multiplying the weights of a layer by a constant, and dividing those of the next, changes
    nothing that a ReLU network computes; a plain random direction would show a flatter or sharper
    landscape. With each filter of the direction scaled to its own,

        d_i <- d_i |w_i| / |d_i|    for each output filter i,

    the landscape does not change either. Biases and normalisation weights stay where they are.

    The numbers for a tensor depend on (seed, number, its name and shape) alone, so that networks
    share directions wherever they share layers, whatever else they have.

    Args:
        model: the network; its trainable tensors of two or more axes get a direction.
        seed: of the directions.
        number: which of them: 0, 1, ...
        normalisation: `filter`; `released` is the paper's code.

    Returns:
        Name of the parameter to a tensor of its shape.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> _ = nn.init.constant_(model.weight, 3.0)
        >>> round(float(filter_direction(model)["weight"].norm()), 4)  # sqrt(3^2 + 3^2)
        4.2426

    Reference:
        Li et al. 2018, section 4.

    Differs:
        The code released with "Blurs Behave Like Ensembles" takes the norms along the first axis:
        one for each input channel and kernel position, over all output filters. That is
        invariant to rescaling of whole layers, but not of single filters.
    """
    check_integer("seed", seed, low=0)
    check_integer("number", number, low=0)
    check_choice("normalisation", normalisation, get_args(Normalisation))
    return {
        name: _normalised(_draw(name, weight, seed, number), weight.detach(), normalisation)
        for name, weight in trainable(model).items()
        if weight.ndim >= 2
    }


def _draw(name: str, weight: Tensor, seed: int, number: int) -> Tensor:
    entropy = (seed, number, zlib.crc32(name.encode()), *weight.shape)
    generator = torch.Generator().manual_seed(mix_seed(*entropy))
    return torch.randn(weight.shape, generator=generator).to(weight)


def _normalised(direction: Tensor, weight: Tensor, normalisation: Normalisation) -> Tensor:
    axes = (0,) if normalisation == "released" else tuple(range(1, weight.ndim))
    lengths = torch.linalg.vector_norm(weight, dim=axes, keepdim=True)
    own = torch.linalg.vector_norm(direction, dim=axes, keepdim=True)
    return direction * (lengths / own)
