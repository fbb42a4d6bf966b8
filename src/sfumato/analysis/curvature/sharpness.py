"""Expected sharpness: how much higher the loss is in the neighbourhood of the weights.

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, Appendix D.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_integer, check_number
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import (
    LossFunction,
    device_of,
    read_batches,
    running,
    seeded,
    trainable,
)
from sfumato.analysis.curvature.products import random_vector
from sfumato.analysis.evaluation import mean_loss


@dataclass(frozen=True)
class ExpectedSharpness:
    """Losses in the neighbourhood, and at the weights.

    Attributes:
        losses: (samples,) float64, L(w + eps).
        centre: L(w), without perturbation and without dropout.
    """

    losses: Tensor
    centre: float

    @property
    def value(self) -> float:
        """E[max(L(w + eps), L(w)) - L(w)], Eq. (17)."""
        return float((self.losses - self.centre).clamp_min(0).mean())

    @property
    def about_mean(self) -> float:
        """The same with the expected loss in the place of L(w), Eq. (18)."""
        return float((self.losses - self.losses.mean()).clamp_min(0).mean())

    @property
    def gaussian(self) -> float:
        """c V[L]^(1/2) of Eq. (22); if the losses are Gaussian about L(w), c = 1 / sqrt(2 pi)."""
        return float(self.losses.std()) / math.sqrt(2 * math.pi)


def expected_sharpness(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    radius: float,
    samples: int = 50,
    batches: int | None = None,
    generator: torch.Generator | None = None,
) -> ExpectedSharpness:
    r"""Expected sharpness of the loss under random perturbations of the weights and dropout.

    The sharpness of Foret et al., max over |eps| <= radius of L(w + eps) - L(w), is of no use if
    the loss is random, because the maximum may be infinite. Its expected version is

        E[ max(L(w + eps), L(w)) - L(w)  |  |eps| <= radius ]                           (Eq. 17)

    and is proportional to the standard deviation of the loss (Eq. 22). Here eps is uniform in the
    ball; a dropout mask is drawn for each eps as well. With radius 0 dropout is all there is.

    Args:
        model: the network; it is left as it was.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs.
        loss: `loss(logits, target)` with mean reduction.
        radius: rho, over all trainable weights together.
        samples: number of perturbations.
        batches: a sub-sample, held in memory; None for the full loader.
        generator: where to draw perturbations and dropout masks from.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> data = [(torch.ones(4, 1), torch.full((4, 1), 2.0))]
        >>> found = expected_sharpness(model, data, F.mse_loss, radius=0.3, samples=2000)
        >>> round(found.value, 2)  # E[eps^2] = 0.3^2 / 3
        0.03

    Reference:
        Park & Kim 2022, **Eq. (15)-(22)**.
    """
    check_number("radius", radius, low=0.0)
    check_integer("samples", samples, low=2)
    weights = {name: weight.detach() for name, weight in trainable(model).items()}
    device = device_of(model)
    held = None if batches is None else list(read_batches(loader, batches, device))

    def evaluate(at: dict[str, Tensor]) -> float:
        data = read_batches(loader, None, device) if held is None else held
        return mean_loss(model, at, data, loss)

    with running(model, "eval"):
        centre = evaluate(weights)
    losses = []
    with running(model, "sample"):
        for _ in range(samples):
            step = _in_ball(model, radius, generator)
            pieces = step.split([weight.numel() for weight in weights.values()])
            moved = {
                name: weight + piece.view_as(weight)
                for (name, weight), piece in zip(weights.items(), pieces, strict=True)
            }
            with seeded(draw_seed(generator)):
                losses.append(evaluate(moved))
    return ExpectedSharpness(torch.tensor(losses, dtype=torch.float64), centre)


def _in_ball(model: nn.Module, radius: float, generator: torch.Generator | None) -> Tensor:
    """A point that is uniform in the ball: the distance is radius u^(1 / dimension)."""
    direction = random_vector(list(trainable(model).values()), generator)
    share = float(torch.rand((), generator=generator)) ** (1 / direction.numel())
    return direction * (radius * share / float(direction.norm()))
