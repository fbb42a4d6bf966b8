"""How much feature maps vary: between passes (model) and between points (data).

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, section 2.2 and Fig. 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import device_of, read_batches, running, seeded
from sfumato.analysis.feature_maps.taps import stage_blocks, tapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FeatureDeviation:
    """Standard deviations of the feature maps, by depth.

    Attributes:
        modules: names of the modules, in the order of the network.
        between_passes: (L,) float64, model uncertainty; zero for a network without randomness.
        between_points: (L,), data uncertainty.
    """

    modules: tuple[str, ...]
    between_passes: Tensor
    between_points: Tensor


def feature_deviation(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    modules: Sequence[str] | None = None,
    samples: int = 10,
    batches: int | None = None,
    generator: torch.Generator | None = None,
) -> FeatureDeviation:
    r"""Standard deviation of the feature maps between dropout masks and between positions.

    In a network with MC dropout the uncertainty of the maps piles up from block to block; a
    smoothing layer at the end of a stage takes it down, for it averages an ensemble (Fig. 5).

        model: mean over (n, c, p) of std over passes s of z_s[n, c, p]
        data:  mean over (s, n, c) of std over positions p of z_s[n, c, p]

    Args:
        model: the network; dropout is on, batch norm uses its running statistics.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs.
        modules: names of modules that return maps; None for the blocks and smoothing layers of all
            stages.
        samples: passes per batch; at least 2.
        batches: number of batches; None for all.
        generator: where to draw the dropout masks from.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.5))
        >>> data = [(torch.randn(2, 3, 8, 8), torch.zeros(2))]
        >>> found = feature_deviation(net, data, modules=["0", "1"])
        >>> bool(found.between_passes[0] == 0), bool(found.between_passes[1] > 0)
        (True, True)

    Reference:
        Park & Kim 2022, Fig. 5; Proposition 2.1.
    """
    check_integer("samples", samples, low=2)
    names = None if modules is None else list(modules)
    passes: dict[str, float] = {}
    points: dict[str, float] = {}
    count = 0
    with running(model, "sample"), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(loader, batches, device_of(model)):
            names = stage_blocks(model, images) if names is None else names
            moments = _Moments()
            with tapped(model, names, images, moments.read):
                for _ in range(samples):
                    model(images)
            for name in names:
                weight = len(images)
                passes[name] = passes.get(name, 0.0) + weight * moments.between_passes(name)
                points[name] = points.get(name, 0.0) + weight * moments.between_points(name)
            count += len(images)
    found = tuple(names or ())
    return FeatureDeviation(
        found,
        torch.tensor([passes[name] / count for name in found], dtype=torch.float64),
        torch.tensor([points[name] / count for name in found], dtype=torch.float64),
    )


class _Moments:
    """Running mean and squared deviation of each map over the passes (Welford), one batch long."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.mean: dict[str, Tensor] = {}
        self.square: dict[str, Tensor] = {}
        self.spread: dict[str, float] = {}

    def read(self, name: str, maps: Tensor) -> None:
        maps = maps.float()
        if name not in self.seen:
            self.seen[name], self.spread[name] = 0, 0.0
            self.mean[name], self.square[name] = torch.zeros_like(maps), torch.zeros_like(maps)
        self.seen[name] += 1
        rest = maps - self.mean[name]
        self.mean[name] += rest / self.seen[name]
        self.square[name] += rest * (maps - self.mean[name])
        self.spread[name] += float(maps.std((2, 3), correction=0).double().mean())

    def between_passes(self, name: str) -> float:
        variance = self.square[name] / (self.seen[name] - 1)
        return float(variance.sqrt().double().mean())

    def between_points(self, name: str) -> float:
        return self.spread[name] / self.seen[name]


def plot_feature_deviations(deviations: Mapping[str, FeatureDeviation]) -> Figure:
    """Model and data uncertainty by depth, one line per model; smoothing layers are marked.

    Args:
        deviations: title to deviations. Models may have different modules: each line is drawn over
            its own depth from 0 to 1, and the names shown are those of the longest.

    Reference: Park & Kim 2022, Fig. 5.
    """
    from matplotlib.figure import Figure

    if not deviations:
        raise ValueError("deviations must hold at least one result, got none")
    longest = max(deviations.values(), key=lambda deviation: len(deviation.modules))
    names = list(longest.modules)
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, field in zip(axes, ("between_passes", "between_points"), strict=True):
        for number, (title, deviation) in enumerate(deviations.items()):
            depth = _positions(deviation.modules, names)
            values = getattr(deviation, field)
            axis.plot(depth, values, "o-", color=f"C{number}", markersize=4, label=title)
            marked = [i for i, name in enumerate(deviation.modules) if "smooth" in name.lower()]
            axis.plot(
                [depth[i] for i in marked], values[marked], "s", color=f"C{number}", markersize=8,
                markerfacecolor="white",
            )  # fmt: skip
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="small")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("standard deviation of feature maps")
    axes[0].set_title("between passes (model uncertainty)", fontsize="medium")
    axes[1].set_title("between points (data uncertainty)", fontsize="medium")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=min(5, len(labels)), frameon=False
    )
    return figure


def _positions(modules: Sequence[str], names: Sequence[str]) -> list[float]:
    """Where modules lie among the names of the longest model; by share of the depth if unknown."""
    if set(modules) <= set(names):
        return [float(names.index(module)) for module in modules]
    last = max(1, len(modules) - 1)
    return [(len(names) - 1) * number / last for number in range(len(modules))]
