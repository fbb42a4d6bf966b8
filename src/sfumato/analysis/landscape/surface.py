"""The loss around the weights of a network, on a line or a plane.

Reference: Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018; Park & Kim,
"Blurs Behave Like Ensembles", ICML 2022, Fig. 7 and C.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato._core.seeds import mix_seed
from sfumato.analysis.batches import (
    Batch,
    LossFunction,
    Mode,
    device_of,
    read_batches,
    running,
    seeded,
    trainable,
)
from sfumato.analysis.evaluation import estimate_statistics, mean_loss
from sfumato.analysis.landscape.directions import Direction, Normalisation, filter_direction
from sfumato.analysis.landscape.partial_grid import PartialGrid, hash_weights

BatchNormStatistics = Literal["keep", "estimate"]


@dataclass(frozen=True)
class LossLandscape:
    """Losses on a grid around the weights.

    Attributes:
        coordinates: (S,) float64, distances along each direction; 1 is the length of the filters.
        losses: (samples, S) or (samples, S, S) float64; the first of the two is the first
            direction. Several samples are a sequence with new dropout masks (Fig. C.2).
    """

    coordinates: Tensor
    losses: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean over the samples, (S,) or (S, S)."""
        return self.losses.mean(0)


def loss_landscape(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    dimensions: Literal[1, 2] = 2,
    points: int = 21,
    extent: float = 1.0,
    samples: int = 1,
    weight_decay: float = 0.0,
    batches: int | None = None,
    mode: Mode = "sample",
    batch_norm: BatchNormStatistics = "keep",
    normalisation: Normalisation = "filter",
    seed: int = 0,
    path: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> LossLandscape:
    r"""The loss at L(w + a d_1 + b d_2), d_1 and d_2 random and as long as the filters of w.

    Randomness of predictions makes the landscape rough and sharp, averaging over neighbours smooth
    and flat (Proposition 2.3). The same `seed` gives all networks the same directions, wherever
    they share layers, so that their landscapes can be compared.

    Args:
        model: the network; it is left as it was.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs; the paper's is
            the training set.
        loss: `loss(logits, target)` with mean reduction.
        dimensions: 1 for a line, 2 for a plane.
        points: S, points along each direction; an odd number has the weights themselves.
        extent: the coordinates go from -extent to extent; the paper's notebook has 0.1.
        samples: landscapes with new dropout masks each, on the same directions.
        weight_decay: adds weight_decay/2 |w|^2.
        batches: a sub-sample, the first so many batches, held in memory; None for the full loader.
        mode: `sample` (dropout on, as in the paper), `train`, `eval`.
        batch_norm: `keep` the running statistics, or `estimate` them anew at every point.
        normalisation: `filter`, or the `released` axis (see `filter_direction`).
        seed: of directions and dropout masks.
        path: an npz that holds what is finished; an interrupted landscape goes on from there, to
            the same numbers.
        progress: called with the number of finished points and that of all.

    Raises:
        ValueError: `path` is of another landscape.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> data = [(torch.ones(4, 1), torch.full((4, 1), 2.0))]
        >>> loss_landscape(model, data, F.mse_loss, dimensions=1, points=3).losses
        tensor([[4.0000, 0.0000, 4.0000]], dtype=torch.float64)

    Reference:
        Li et al. 2018, section 4; Park & Kim 2022, section 2.2 and Fig. 7.

    Differs:
        The released code normalises along another axis; `normalisation="released"` does so.
    """
    _check(dimensions, points, extent, samples, weight_decay)
    check_choice("batch_norm", batch_norm, get_args(BatchNormStatistics))
    coordinates = torch.linspace(-extent, extent, points, dtype=torch.float64)
    directions = [
        filter_direction(model, seed=seed, number=number, normalisation=normalisation)
        for number in range(dimensions)
    ]
    surface = _Surface(model, loader, loss, directions, weight_decay, batches, batch_norm)
    settings = (points, extent, samples, weight_decay, batches, mode, batch_norm, normalisation)
    key = hash_weights(trainable(model), (*settings, dimensions, seed))
    grid = PartialGrid((samples,) + (points,) * dimensions, path, key)
    with running(model, mode), grid:
        for position in grid.missing():
            with seeded(mix_seed(seed, *position)):
                value = surface([float(coordinates[i]) for i in position[1:]])
            grid.set(position, value)
            if progress is not None:
                progress(grid.finished, grid.losses.size)
    return LossLandscape(coordinates, torch.from_numpy(grid.losses))


class _Surface:
    """Coordinates to loss."""

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        loss: LossFunction,
        directions: list[Direction],
        weight_decay: float,
        limit: int | None,
        batch_norm: BatchNormStatistics,
    ) -> None:
        self.model = model
        self.loader = loader
        self.loss = loss
        self.directions = directions
        self.weight_decay = weight_decay
        self.device = device_of(model)
        self.estimate = batch_norm == "estimate"
        self.held = None if limit is None else list(read_batches(loader, limit, self.device))

    def batches(self) -> Iterator[Batch]:
        if self.held is not None:
            return iter(self.held)
        return read_batches(self.loader, None, self.device)

    def __call__(self, point: list[float]) -> float:
        weights: dict[str, Tensor] = {
            name: weight.detach() for name, weight in trainable(self.model).items()
        }
        for distance, direction in zip(point, self.directions, strict=True):
            for name, step in direction.items():
                weights[name] = weights[name] + distance * step
        state = dict(weights)
        if self.estimate:
            state.update(estimate_statistics(self.model, weights, self.batches()))
        value = mean_loss(self.model, state, self.batches(), self.loss)
        if self.weight_decay:
            square = sum(float(weight.double().square().sum()) for weight in weights.values())
            value += self.weight_decay / 2 * square
        return value


def _check(dimensions: int, points: int, extent: float, samples: int, weight_decay: float) -> None:
    check_choice("dimensions", dimensions, (1, 2))
    check_integer("points", points, low=2)
    check_number("extent", extent, low=0.0, open_low=True)
    check_integer("samples", samples, low=1)
    check_number("weight_decay", weight_decay, low=0.0)
