"""Beta-distributed numbers from a generator."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number


def sample_beta(
    count: int, alpha: float, beta: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw `count` numbers from Beta(alpha, beta), reproducibly.

    A ratio of two gamma variables, G_alpha / (G_alpha + G_beta). Each comes as
    G_a = G_(a+1) U^(1/a), on a logarithmic scale, so that parameters near 0 give their limit (a
    coin) and never 0 / 0. `torch.distributions` takes no generator; the operation below it does.

    Args:
        count: how many.
        alpha: first parameter, above 0.
        beta: second parameter, above 0.
        generator: where to draw from; None is the global one of the CPU.

    Returns:
        (count,) float32 in [0, 1], on the device of the generator.

    Example:
        >>> drawn = sample_beta(100_000, 1.0, 2.0, generator=torch.Generator().manual_seed(0))
        >>> round(float(drawn.mean()), 2)
        0.33
    """
    check_integer("count", count, low=0)
    check_number("alpha", alpha, low=0.0, open_low=True)
    check_number("beta", beta, low=0.0, open_low=True)
    device = torch.device("cpu") if generator is None else generator.device
    shape = torch.tensor([alpha, beta], dtype=torch.float64, device=device).expand(count, 2)
    gamma = torch._standard_gamma(shape + 1, generator=generator)
    uniform = torch.rand(count, 2, dtype=torch.float64, device=device, generator=generator)
    log_first, log_second = (gamma.log() + (1 - uniform).log() / shape).unbind(1)
    return torch.sigmoid(log_first - log_second).float()
