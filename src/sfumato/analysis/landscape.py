"""The loss over a line or a plane of weights around a trained network."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_integer, check_number, to_float64
from sfumato._core.files import open_arrays, write_arrays
from sfumato._core.plots import new_figure, open_axes
from sfumato._core.seeds import mix_seed
from sfumato.analysis.batches import (
    HeldBatches,
    LossFunction,
    Mode,
    estimate_statistics,
    mean_loss,
    running,
    seeded,
    trainable,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    Networks share directions wherever they have a layer of the same name and shape.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> _ = nn.init.constant_(model.weight, 3.0)
        >>> round(float(filter_direction(model)["weight"].norm()), 4)  # sqrt(3^2 + 3^2)
        4.2426

    Reference:
        Li et al. 2018, section 4.

    Differs:
        The code released with "Blurs Behave Like Ensembles" takes the norms over all output
        filters. That is invariant to rescaling of whole layers, but not of single filters.
    """
    check_integer("seed", seed, low=0)
    check_integer("number", number, low=0)
    check_choice("normalisation", normalisation, get_args(Normalisation))
    return {
        name: _draw(name, weight.detach(), seed, number, normalisation)
        for name, weight in trainable(model).items()
        if weight.ndim >= 2
    }


def _draw(name: str, weight: Tensor, seed: int, number: int, norm: Normalisation) -> Tensor:
    entropy = (seed, number, zlib.crc32(name.encode()), *weight.shape)
    generator = torch.Generator().manual_seed(mix_seed(*entropy))
    direction = torch.randn(weight.shape, generator=generator).to(weight)
    axes = (0,) if norm == "released" else tuple(range(1, weight.ndim))
    length = partial(torch.linalg.vector_norm, dim=axes, keepdim=True)
    return direction * (length(weight) / length(direction))


_SECONDS_BETWEEN_WRITES = 10.0


def hash_weights(weights: Mapping[str, Tensor], settings: tuple[object, ...]) -> str:
    """A hash of weights and settings: what must agree for two parts to be of one grid."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, weight in weights.items():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class PartialGrid(AbstractContextManager["PartialGrid"]):
    """An array that is NaN where nothing has been computed.

    As a context it writes itself to `path` now and then, at the end, and when it is interrupted.
    """

    def __init__(self, shape: tuple[int, ...], path: str | Path | None, key: str) -> None:
        self.path = None if path is None else Path(path)
        self.key = key
        self.losses = np.full(shape, np.nan)
        self.done = np.zeros(shape, dtype=bool)
        self.written = time.monotonic()
        if self.path is None or not self.path.exists():
            return
        with open_arrays(self.path) as arrays:
            if str(arrays["key"]) != key:
                raise ValueError(
                    f"path {path} holds a landscape of other weights or settings; give another "
                    "path, or delete the file to start anew"
                )
            self.losses, self.done = arrays["losses"], arrays["done"]

    def set(self, position: tuple[int, ...], value: float) -> None:
        """Fill one position; a loss may well be infinite or NaN far from the weights."""
        self.losses[position] = value
        self.done[position] = True
        if time.monotonic() - self.written > _SECONDS_BETWEEN_WRITES:
            self._write()

    def __exit__(self, *_: object) -> None:
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        # Whole or not at all: a crash must not cost the hours that are in the file.
        arrays = {"losses": self.losses, "done": self.done, "key": np.array(self.key)}
        write_arrays(self.path, arrays)
        self.written = time.monotonic()


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
        model, loader, loss, mode: as in `hessian_max_spectrum`; the paper's data is the training
            set, and its dropout is on.
        dimensions: 1 for a line, 2 for a plane.
        points: S, points along each direction; an odd number has the weights themselves.
        extent: the coordinates go from -extent to extent; the paper's notebook has 0.1.
        samples: landscapes with new dropout masks each, on the same directions.
        weight_decay: adds weight_decay/2 |w|^2.
        batches: a sub-sample, the first so many batches, held in memory; None for the full loader.
        batch_norm: `keep` the running statistics, or `estimate` them anew at every point.
        normalisation: `filter`, or the `released` axis (see `filter_direction`).
        seed: of directions and dropout masks.
        path: an npz that holds what is finished; an interrupted landscape goes on from there, to
            the same numbers.
        progress: called with the number of finished points and that of all.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> data = [(torch.ones(4, 1), torch.full((4, 1), 2.0))]
        >>> loss_landscape(model, data, F.mse_loss, dimensions=1, points=3).losses
        tensor([[4.0000, 0.0000, 4.0000]], dtype=torch.float64)

    Reference:
        Li et al. 2018, section 4; Park & Kim 2022, section 2.2 and Fig. 7.
    """
    check_choice("dimensions", dimensions, (1, 2))
    check_integer("points", points, low=2)
    check_number("extent", extent, low=0.0, open_low=True)
    check_integer("samples", samples, low=1)
    check_number("weight_decay", weight_decay, low=0.0)
    check_choice("batch_norm", batch_norm, get_args(BatchNormStatistics))
    coordinates = torch.linspace(-extent, extent, points, dtype=torch.float64)
    directions = [
        filter_direction(model, seed=seed, number=number, normalisation=normalisation)
        for number in range(dimensions)
    ]
    data = HeldBatches(model, loader, batches)
    settings = (points, extent, samples, weight_decay, batches, mode, batch_norm, normalisation)
    key = hash_weights(trainable(model), (*settings, dimensions, seed))
    grid = PartialGrid((samples,) + (points,) * dimensions, path, key)
    with running(model, mode), grid:
        for position in map(tuple, np.argwhere(~grid.done).tolist()):
            with seeded(mix_seed(seed, *position)):
                weights = _moved(model, directions, [float(coordinates[i]) for i in position[1:]])
                state = dict(weights)
                if batch_norm == "estimate":
                    state |= estimate_statistics(model, weights, data)
                value = mean_loss(model, state, data, loss)
            if weight_decay:
                square = sum(float(to_float64(each).square().sum()) for each in weights.values())
                value += weight_decay / 2 * square
            grid.set(position, value)
            if progress is not None:
                progress(int(grid.done.sum()), grid.losses.size)
    return LossLandscape(coordinates, torch.from_numpy(grid.losses))


def _moved(model: nn.Module, directions: list[Direction], point: list[float]) -> dict[str, Tensor]:
    """The weights at a point of the grid."""
    weights = {name: weight.detach() for name, weight in trainable(model).items()}
    for distance, direction in zip(point, directions, strict=True):
        for name, step in direction.items():
            weights[name] = weights[name] + distance * step
    return weights


def plot_loss_landscapes(
    landscapes: Mapping[str, LossLandscape], *, ceiling: float | None = None
) -> Figure:
    """Surfaces above, contours below, one column per model, all on one scale; lines in one axis.

    Several samples of a plane are averaged in the surface; on a line each is drawn.

    Args:
        landscapes: title to landscape, all of the same dimensions.
        ceiling: losses above are cut off, for far points tend to dwarf the basin; None for twice
            the largest loss that any of the models has within half of the extent.

    Reference: Park & Kim 2022, Fig. 7.
    """
    ranks = {landscape.losses.ndim for landscape in landscapes.values()}
    if len(ranks) > 1:
        raise ValueError("landscapes must all have one or all two dimensions, got both")
    columns = len(landscapes)
    size = (6.0, 3.6) if ranks == {2} else (3.6 * columns, 6.4)
    figure = new_figure(*size, landscapes=landscapes)
    top = _ceiling(landscapes) if ceiling is None else ceiling
    check_number("ceiling", top)
    (_draw_lines if ranks == {2} else _draw_planes)(figure, landscapes, top)
    return figure


def _ceiling(landscapes: Mapping[str, LossLandscape]) -> float:
    inner, outer = [0.0], [0.0]
    for landscape in landscapes.values():
        near = landscape.coordinates.abs() <= landscape.coordinates.max() / 2
        mean = landscape.mean
        close = mean[near] if mean.ndim == 1 else mean[near][:, near]
        inner += close[close.isfinite()].tolist()
        outer += mean[mean.isfinite()].tolist()
    return min(2 * max(inner), 1.02 * max(outer)) or 1.0


def _draw_lines(figure: Figure, landscapes: Mapping[str, LossLandscape], ceiling: float) -> None:
    axis = figure.subplots()
    for number, (title, landscape) in enumerate(landscapes.items()):
        for sample in landscape.losses:
            axis.plot(landscape.coordinates, sample, color=f"C{number}", alpha=0.35, linewidth=0.8)
        axis.plot(landscape.coordinates, landscape.mean, color=f"C{number}", label=title)
    axis.legend(frameon=False)
    open_axes(axis, xlabel="distance along the direction", ylabel="loss", ylim=(None, ceiling))


def _draw_planes(figure: Figure, landscapes: Mapping[str, LossLandscape], ceiling: float) -> None:
    columns = len(landscapes)
    # Nothing above the ceiling; what is not a number lies there too.
    cut = partial(np.nan_to_num, nan=ceiling, posinf=ceiling)
    surfaces = {t: np.minimum(cut(each.mean.numpy()), ceiling) for t, each in landscapes.items()}
    floor = min(float(surface.min()) for surface in surfaces.values())
    levels = np.linspace(floor, max(ceiling, floor + 1e-12), 21)
    for column, (title, landscape) in enumerate(landscapes.items(), 1):
        # coordinates of the second direction are the columns of the losses
        across, along = np.meshgrid(landscape.coordinates, landscape.coordinates)
        surface = surfaces[title]
        axis = figure.add_subplot(2, columns, column, projection="3d")
        axis.plot_surface(
            along, across, surface, cmap="viridis", vmin=floor, vmax=ceiling,
            rcount=60, ccount=60, linewidth=0.1, edgecolor="0.3",
        )  # fmt: skip
        ticks = [-float(landscape.coordinates[-1]), 0, float(landscape.coordinates[-1])]
        axis.set(title=title, xticks=ticks, yticks=ticks, zlim=(floor, ceiling))
        axis.tick_params(labelsize="x-small")
        flat = figure.add_subplot(2, columns, columns + column)
        shown = flat.contourf(along, across, surface, levels=levels, cmap="viridis")
        flat.contour(along, across, surface, levels=levels, colors="black", linewidths=0.3)
        flat.set(aspect="equal", xlabel="first direction")
        if column == 1:
            flat.set_ylabel("second direction")
    figure.colorbar(shown, ax=flat, label="loss", shrink=0.8)
