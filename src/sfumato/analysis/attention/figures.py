"""Activation maps of several models side by side (Fig. 6-8 of adaptive label smoothing)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.analysis.attention.activation_maps import ActivationMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT, _WRONG, _BOX = "#1a7f37", "#c2271a", "white"


def overlay_maps(images: Tensor, maps: Tensor, *, opacity: float = 0.5) -> Tensor:
    """Pictures with the maps laid over them in colour, dark blue to red.

    Args:
        images: (N, 3, H, W) or (N, 1, H, W), uint8.
        maps: (N, H, W) in [0, 1].
        opacity: of the colours; 0 shows the image alone.

    Returns:
        uint8 (N, 3, H, W).
    """
    from matplotlib import colormaps

    check_number("opacity", opacity, low=0.0, high=1.0)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 (N, 1 or 3, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    if maps.shape != (len(images), *images.shape[2:]):
        raise ValueError(f"maps must be (N, H, W) as the images, got {tuple(maps.shape)}")
    colours = torch.from_numpy(colormaps["jet"](maps.cpu().numpy())[..., :3]).movedim(-1, 1)
    shown = (1 - opacity) * images.cpu().double() + opacity * 255 * colours
    return shown.round().clamp(0, 255).to(torch.uint8)


def plot_activation_maps(
    images: Tensor,
    found: Mapping[str, ActivationMaps],
    *,
    labels: Tensor,
    classes: Sequence[str],
    boxes: Tensor | None = None,
    opacity: float = 0.5,
) -> Figure:
    """A row for each image: the image with its box, then each model's map over it.

    Under each map stand the model's three highest probabilities, the true class in green, a wrong
    prediction in red.

    Args:
        images: (N, C, H, W), uint8.
        found: title to the maps of one model on these images.
        labels: (N,) true classes.
        classes: one name per class.
        boxes: (N, B, 4) in pixels; a missing box is all zeros.
        opacity: of the maps.

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing, Fig. 6-8.
    """
    from matplotlib.figure import Figure

    if not found:
        raise ValueError("found must hold the maps of at least one model, got none")
    rows, columns = len(images), 1 + len(found)
    figure = Figure(figsize=(1.7 * columns, 2.1 * rows + 0.2))
    figure.set_layout_engine("constrained", h_pad=0.08)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row in range(rows):
        _show(axes[row, 0], images[row], None if boxes is None else boxes[row])
        name = classes[int(labels[row])]
        axes[row, 0].set_xlabel(name, fontsize="small")
    for column, (title, each) in enumerate(found.items(), 1):
        pictures = overlay_maps(images, each.maps, opacity=opacity)
        axes[0, column].set_title(title, fontsize="medium")
        for row in range(rows):
            axis = axes[row, column]
            _show(axis, pictures[row], None if boxes is None else boxes[row])
            _write_probabilities(axis, each.probs[row], int(labels[row]), classes)
    axes[0, 0].set_title("image", fontsize="medium")
    return figure


def _show(axis: Axes, picture: Tensor, boxes: Tensor | None) -> None:
    from matplotlib.patches import Rectangle

    channels = picture.expand(3, -1, -1) if picture.shape[0] == 1 else picture
    axis.imshow(channels.permute(1, 2, 0).numpy(), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for left, top, right, bottom in () if boxes is None else boxes.tolist():
        if right > left and bottom > top:  # imshow counts from pixel centres
            corner = (left - 0.5, top - 0.5)
            size = (right - left, bottom - top)
            axis.add_patch(Rectangle(corner, *size, fill=False, color=_BOX, lw=1.2))


def _write_probabilities(axis: Axes, probs: Tensor, label: int, classes: Sequence[str]) -> None:
    top = probs.topk(min(3, len(probs)))
    for place, (value, index) in enumerate(
        zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ):
        colour = _RIGHT if index == label else _WRONG if place == 0 else "0.35"
        axis.text(
            0.5, -0.04 - 0.11 * place, f"{classes[index]} {value:.2f}", color=colour,
            transform=axis.transAxes, ha="center", va="top", fontsize="x-small",
        )  # fmt: skip
    axis.set_xlabel(" \n \n ", fontsize="x-small")
