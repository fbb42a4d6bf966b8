"""Independent random streams from one seed, and Beta-distributed numbers."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number, with_float64


def fold_seed(*path: int | str | float, order: Literal["big", "little"] = "big") -> int:
    """A 63-bit seed (torch's are signed) that depends on every element of `path`.

    Args:
        path: the seed of the experiment, and what the stream is for.
        order: which end of the hash comes first; data and corruptions were made with "little".

    Example:
        >>> fold_seed(0, "epoch", 1) != fold_seed(0, "epoch", 2)
        True
    """
    digest = hashlib.sha256("/".join(map(str, path)).encode()).digest()
    return int.from_bytes(digest[:8], order) >> 1


def mix_seed(*numbers: int) -> int:
    """A 32-bit seed from whole numbers, cheap enough for every batch or point of a grid.

    Example:
        >>> mix_seed(0, 1) != mix_seed(1, 0)
        True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed from a generator on any device, or from the global state."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def sample_beta(
    count: int, alpha: float, beta: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `count` numbers from Beta(alpha, beta), reproducibly.

    A ratio of two gamma variables, G_alpha / (G_alpha + G_beta). Each comes as G_a = G_(a+1)
    U^(1/a), on a logarithmic scale, so that parameters near 0 give their limit (a coin) and never 0
    / 0. `torch.distributions` takes no generator; the operation below it does.

    Example:
        >>> drawn = sample_beta(100_000, 1.0, 2.0, generator=torch.Generator().manual_seed(0))
        >>> round(float(drawn.mean()), 2)
        0.33
    """
    check_integer("count", count, low=0)
    check_number("alpha", alpha, low=0.0, open_low=True)
    check_number("beta", beta, low=0.0, open_low=True)
    generator = with_float64(generator)
    device = torch.device("cpu") if generator is None else generator.device
    shape = torch.tensor([alpha, beta], dtype=torch.float64, device=device).expand(count, 2)
    gamma = torch._standard_gamma(shape + 1, generator=generator)
    uniform = torch.rand(count, 2, dtype=torch.float64, device=device, generator=generator)
    log_first, log_second = (gamma.log() + (1 - uniform).log() / shape).unbind(1)
    return torch.sigmoid(log_first - log_second).float()
