"""How alike neighbouring points of a feature map are.

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, Appendix D.1 and Fig. D.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import Mode, device_of, read_batches, running, seeded
from sfumato.analysis.feature_maps.taps import tapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FeatureCovariance:
    """Covariance of the points around the centre of a map with the centre.

    Attributes:
        covariance: (2 radius + 1, 2 radius + 1) float64, mean over the channels.
        correlation: the same, divided by the standard deviations of both points; channels that
            don't vary are left out.
    """

    covariance: Tensor
    correlation: Tensor


def feature_covariance(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    module: str,
    radius: int = 4,
    batches: int | None = None,
    mode: Mode = "sample",
    generator: torch.Generator | None = None,
) -> FeatureCovariance:
    r"""Covariance over images between the centre of a feature map and its neighbours.

    A convolution makes neighbours alike even if its input is white noise: for a kernel w,

        Cov(y_1, y_2) = w_1 w_2 sigma^2 + w_2 w_3 sigma^2                               (Eq. 14)

    which is why their mean is an ensemble of nearly the same prediction.

    Args:
        model: the network.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs.
        module: name of the module that returns the map.
        radius: how far to look.
        batches: number of batches; None for all.
        mode: `sample` (dropout on), `train` or `eval`.
        generator: where to draw the dropout masks from.

    Raises:
        ValueError: the map is smaller than 2 radius + 1 points, or fewer than two images came.

    Example:
        >>> net = nn.Sequential(nn.AvgPool2d((1, 2), stride=1))
        >>> _ = torch.manual_seed(0)
        >>> data = [(torch.randn(20000, 1, 4, 5), torch.zeros(20000))]
        >>> found = feature_covariance(net, data, module="0", radius=1)
        >>> [round(float(value), 1) for value in found.correlation[1]]  # they share one of two
        [0.5, 1.0, 0.5]

    Reference:
        Park & Kim 2022, **Eq. (10)-(14)**, Fig. D.1.
    """
    check_integer("radius", radius, low=0)
    moments = _Moments(radius)
    with running(model, mode), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(loader, batches, device_of(model)):
            with tapped(model, [module], images, moments.read):
                model(images)
    return moments.result()


class _Moments:
    """Sums over images, less the first image's values: sums of squares then lose no digits."""

    def __init__(self, radius: int) -> None:
        self.radius = radius
        self.origin: Tensor | None = None
        self.count = 0
        self.sums = self.squares = self.products = torch.zeros(())

    def read(self, name: str, maps: Tensor) -> None:
        height, width = maps.shape[2:]
        top, left = height // 2 - self.radius, width // 2 - self.radius
        side = 2 * self.radius + 1
        if top < 0 or left < 0 or top + side > height or left + side > width:
            raise ValueError(
                f"radius {self.radius} needs maps of {side} x {side} points around the centre, "
                f"{name!r} returns {height} x {width}"
            )
        window = maps[:, :, top : top + side, left : left + side].double().cpu()
        self.origin = window[0] if self.origin is None else self.origin
        window = window - self.origin
        centre = window[:, :, self.radius, self.radius, None, None]
        self.count += len(window)
        self.sums = self.sums + window.sum(0)
        self.squares = self.squares + window.square().sum(0)
        self.products = self.products + (window * centre).sum(0)

    def result(self) -> FeatureCovariance:
        if self.count < 2:
            raise ValueError(f"loader must give at least two images, got {self.count}")
        mean = self.sums / self.count
        centre = mean[:, self.radius, self.radius, None, None]
        covariance = (self.products / self.count - mean * centre) * self.count / (self.count - 1)
        variance = (self.squares / self.count - mean.square()) * self.count / (self.count - 1)
        scale = (variance * variance[:, self.radius, self.radius, None, None]).sqrt()
        correlation = (covariance / scale).where(scale > 0, torch.nan)
        return FeatureCovariance(covariance.mean(0), correlation.nanmean(0))


def plot_feature_covariances(covariances: Mapping[str, FeatureCovariance]) -> Figure:
    """Correlation with the centre point, one panel each, on one scale from -1 to 1.

    Args:
        covariances: title to covariance.

    Reference: Park & Kim 2022, Fig. D.1.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if not covariances:
        raise ValueError("covariances must hold at least one result, got none")
    figure = Figure(figsize=(3.0 * len(covariances) + 0.8, 3.2), layout="constrained")
    axes = figure.subplots(1, len(covariances), squeeze=False)[0]
    for axis, (title, found) in zip(axes, covariances.items(), strict=True):
        radius = len(found.correlation) // 2
        edge = radius + 0.5
        shown = axis.imshow(
            found.correlation.numpy(),
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            extent=(-edge, edge, edge, -edge),
        )
        axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor="red", linewidth=2))
        axis.set_title(title, fontsize="medium")
    figure.colorbar(shown, ax=list(axes), label="correlation with the centre", shrink=0.85)
    return figure
