"""The whole Hessian spectrum as a density, by stochastic Lanczos quadrature.

Reference: Ghorbani et al., "An Investigation into Neural Net Optimization via Hessian Eigenvalue
Density", ICML 2019; Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, Fig. C.3.
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
    Mode,
    device_of,
    read_batches,
    running,
    trainable,
)
from sfumato.analysis.curvature.lanczos import Krylov
from sfumato.analysis.curvature.products import MeanHessianProduct


@dataclass(frozen=True)
class HessianDensity:
    """Point masses that have the moments of the Hessian's spectrum.

    Attributes:
        nodes: (probes, steps) float64, eigenvalues.
        weights: (probes, steps), their shares of the spectrum; each row sums to one.
    """

    nodes: Tensor
    weights: Tensor

    def density(self, grid: Tensor, *, width: float) -> Tensor:
        """The masses as Gaussians of standard deviation `width`, at the points of `grid`."""
        check_number("width", width, low=0.0, open_low=True)
        distance = (grid.double()[:, None, None] - self.nodes) / width
        bumps = torch.exp(-0.5 * distance.square()) / (width * math.sqrt(2 * math.pi))
        return (bumps * self.weights).sum(2).mean(1)

    @property
    def mean(self) -> float:
        """Mean eigenvalue: the trace of the Hessian over the number of weights."""
        return float((self.nodes * self.weights).sum(1).mean())


def hessian_density(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    weight_decay: float = 5e-4,
    batches: int | None = 1,
    probes: int = 4,
    steps: int = 40,
    mode: Mode = "sample",
    generator: torch.Generator | None = None,
) -> HessianDensity:
    r"""Spectral density of the Hessian of the mean regularised loss over some mini-batches.

    For a random vector v, the projection of H on the space of v, Hv, H^2 v, ... has few eigenvalues
    theta_i; with the squared first components w_i of its eigenvectors they integrate every
    polynomial of degree 2 m - 1 against the spectrum as v sees it:

        v^T f(H) v = sum_i w_i f(theta_i),    E[v^T f(H) v] = tr f(H) / P

    Args:
        model: the network.
        loader: as in `hessian_max_spectrum`: augmented, and as it trains.
        loss: `loss(logits, target)` with mean reduction.
        weight_decay: of the optimiser; the paper's 5e-4.
        batches: mini-batches of the mean loss; None for all. One keeps its graph, more build
            theirs anew for each product.
        probes: number of random vectors.
        steps: m, products per vector; that many vectors are in memory.
        mode: as in `hessian_max_spectrum`.
        generator: where to draw vectors and dropout masks from.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(2, 1, bias=False)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
        >>> density = hessian_density(model, data, F.mse_loss, weight_decay=0.0, probes=1)
        >>> density.nodes
        tensor([[1.0000, 4.0000]], dtype=torch.float64)

    Reference:
        Ghorbani et al. 2019, Algorithm 1; Park & Kim 2022, Fig. C.3 and D.2.
    """
    check_number("weight_decay", weight_decay, low=0.0)
    check_integer("probes", probes, low=1)
    check_integer("steps", steps, low=1)
    size = sum(parameter.numel() for parameter in trainable(model).values())
    held = list(read_batches(loader, batches, device_of(model)))
    nodes, weights = [], []
    with running(model, mode):
        product = MeanHessianProduct(model, held, loss, weight_decay, draw_seed(generator))
        for _ in range(probes):
            space = Krylov(product, product.start(generator), min(steps, size))
            while space.size < min(steps, size):
                space.extend()
            values, vectors = space.ritz()
            nodes.append(values)
            weights.append(vectors[0].square())
    return HessianDensity(torch.stack(nodes), torch.stack(weights))
