"""The pictures of the mollification paper, each from one call, as matplotlib figures.

matplotlib comes with `sfumato[study]` and is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato._core.checks import check_images, check_integer, soft_labels
from sfumato._core.plots import new_figure
from sfumato.inputs.mollify import (
    blur_label_decay,
    check_range,
    diffuse,
    dissipate,
    information_ratio,
    label_density,
    noise_label_decay,
)
from sfumato.labels.targets import smooth_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_TIMES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(3) / 2))  # of the triangle of predictions
_NOISE_COLOR, _BLUR_COLOR = "#c4552d", "#2d6fa3"


def plot_mollification(
    image: Tensor,
    label: int,
    *,
    classes: Sequence[str],
    times: Sequence[float] = _TIMES,
    noise_k: float = 1.0,
    blur_k: float = 1.0,
    generator: torch.Generator | None = None,
) -> Figure:
    """One image at rising temperatures, noisy above and blurred below, with its smoothed labels.

    Args:
        image: (C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point.
        label: its class.
        classes: one name per class.
        times: temperatures in [0, 1], one column each.
        noise_k, blur_k: slopes of the label decay of the two rows.
        generator: where to draw the noise from; the same noise serves all columns.

    Reference: mollification paper, Fig. 1 and 2.
    """
    check_images(image[None])
    t = torch.tensor(times)
    check_range("times", t, 1.0)
    images = image.detach().float().cpu().expand(len(t), -1, -1, -1)
    mean = images[0].mean((1, 2), keepdim=True)
    std = images[0].std((1, 2), keepdim=True).clamp(min=1e-3)
    noise = torch.randn(image.shape, generator=generator).expand(images.shape)
    noisy = diffuse((images - mean) / std, t, noise=noise) * std + mean
    target = soft_labels(torch.full((len(t),), label), images, len(classes))
    rows = (
        ("noise", noisy, noise_label_decay(t, noise_k), _NOISE_COLOR),
        ("blur", dissipate(images, t), blur_label_decay(t, blur_k), _BLUR_COLOR),
    )
    figure = new_figure(1.25 * len(t) + 0.6, 4.4)
    axes = figure.subplots(4, len(t), squeeze=False, gridspec_kw={"height_ratios": [3, 1, 3, 1]})
    for pair, (name, degraded, decay, color) in zip((axes[:2], axes[2:]), rows, strict=True):
        labels = smooth_labels(target, decay, num_classes=len(classes))
        for column in range(len(t)):
            _show_image(pair[0, column], degraded[column])
            _show_label(pair[1, column], labels[column], label, color)
        pair[0, 0].set_ylabel(name)
        pair[1, 0].set_ylabel("label", fontsize=8)
    for column, value in enumerate(times):
        axes[0, column].set_title(f"t = {value:g}", fontsize=9)
    figure.suptitle(f"{classes[label]}: mollified images and their labels")
    return figure


def plot_information(images: Tensor, *, times: Sequence[float] = _TIMES) -> Figure:
    """Share of the PNG bytes that blur leaves over, against the temperature.

    Blur removes bits about linearly, which is why its label decay is t^k.

    Args:
        images: (N, C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point.
        times: temperatures in [0, 1].

    Reference: mollification paper, Eq. (13) and Fig. 3.
    """
    check_images(images)
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got an empty batch")
    ratios = torch.stack([information_ratio(images, time) for time in times])  # (T, N)
    low, middle, high = ratios.quantile(torch.tensor([0.1, 0.5, 0.9]), dim=1).numpy()
    figure = new_figure(4.5, 3.4)
    axes = figure.subplots()
    axes.fill_between(times, low, high, color=_BLUR_COLOR, alpha=0.2, label="10-90 % of images")
    axes.plot(times, middle, color=_BLUR_COLOR, marker="o", markersize=3, label="median")
    axes.plot([0, 1], [1, 0], color="black", linestyle="--", linewidth=1, label="1 - t")
    axes.set(xlabel="temperature t", ylabel="size(x_t.png) / size(x_0.png)", ylim=(0, None))
    axes.set_title(f"Information in {len(images)} blurred images", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_dct_change(changes: Mapping[str, Tensor], *, columns: int = 5) -> Figure:
    """Draw which frequencies each corruption changes, on one logarithmic scale.

    Args:
        changes: (H, W) for each name, as `dct_change` gives them.
        columns: panels in a row.

    Reference: mollification paper, Eq. (16) and Fig. 11.
    """
    check_integer("columns", columns, low=1)
    columns = min(columns, len(changes))
    rows = -(-len(changes) // max(1, columns))
    figure = new_figure(1.7 * columns + 0.8, 1.8 * rows + 0.5, changes=changes)
    from matplotlib.colors import LogNorm

    highest = max(float(change.max()) for change in changes.values())
    scale = LogNorm(max(highest, 1e-6) * 1e-3, max(highest, 1e-6))
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(changes) :]:
        axes.set_axis_off()
    for axes, (name, change) in zip(panels.flat, changes.items(), strict=False):
        shown = change.clamp(min=scale.vmin).cpu().numpy()
        picture = axes.imshow(shown, norm=scale, cmap="magma")
        axes.set_title(name.replace("_", " "), fontsize=9)
        axes.set(xticks=[], yticks=[])
    figure.colorbar(picture, ax=panels, shrink=0.8, label="mean |DCT change|")
    figure.supxlabel("horizontal frequency", fontsize=9)
    figure.supylabel("vertical frequency", fontsize=9)
    return figure


def plot_label_densities(labels: Mapping[str, Tensor], *, points: int = 60) -> Figure:
    """Densities over the triangle of predictions of three classes, one panel for each label.

    Args:
        labels: title to label, (3,).
        points: along each side of the triangle.

    Reference: Fig. 4, whose labels are one-hot, tempered (gamma, 0, 0) and smoothed.
    """
    check_integer("points", points, low=2)
    steps = torch.arange(points + 1, dtype=torch.float64)
    pairs = torch.cartesian_prod(steps, steps)
    inside = pairs[pairs.sum(1) <= points] / points
    probs = torch.cat([1 - inside.sum(1, keepdim=True), inside], 1)  # (P, 3)
    places = probs @ torch.tensor(_CORNERS, dtype=torch.float64)
    figure = new_figure(2.7 * len(labels) + 0.3, 2.9, labels=labels)
    axes = figure.subplots(1, len(labels), squeeze=False)[0]
    for axis, (title, label) in zip(axes, labels.items(), strict=True):
        density = label_density(probs, label)
        axis.tripcolor(*places.T.numpy(), density.numpy(), shading="gouraud", cmap="Blues", vmin=0)
        mode = places[int(density.argmax())]
        axis.plot(float(mode[0]), float(mode[1]), "o", color="#c8553d")
        for number, (x, y) in enumerate(_CORNERS):
            low = number < 2
            axis.text(x, y, f"class {number + 1}", ha="center", va="top" if low else "bottom")
        axis.set_title(title, fontsize="medium")
        axis.set(xlim=(-0.1, 1.1), ylim=(-0.12, 1.0), aspect=1)
        axis.set_axis_off()
    return figure


def _show_image(axes: Axes, image: Tensor) -> None:
    axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def _show_label(axes: Axes, shares: Tensor, label: int, color: str) -> None:
    colors = [color if position == label else "#999999" for position in range(len(shares))]
    axes.bar(range(len(shares)), shares.tolist(), color=colors, width=0.8)
    axes.set(xticks=[], yticks=[], ylim=(0, 1.05))
    axes.set_xlabel(f"{float(shares[label]):.2f}", fontsize=8, labelpad=1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
