"""What all geometric augmentations do to pixels, labels and boxes once they know the motion."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.augment.protocol import Sample


def has_label_maps(sample: Sample) -> bool:
    """Whether labels are maps (N, H, W), which move with the pixels."""
    return "label" in sample and sample["label"].ndim == 3


def sample_at(
    values: Tensor,  # (N, C, H, W)
    grid: Tensor,  # (N, h, w, 2), as `grid_sample` wants it
    *,
    mode: Literal["nearest", "bilinear"] = "nearest",
    padding: Literal["zeros", "border", "reflection"] = "zeros",
    fill: int = 0,
    align_corners: bool = False,
) -> Tensor:
    """`grid_sample` that keeps the type of `values`; what comes from outside is `fill`."""
    # Outside is 0 for grid_sample, hence the shift by `fill` and back.
    shifted = values.float() - fill if fill else values.float()
    moved = F.grid_sample(shifted, grid, mode, padding, align_corners)
    moved = moved + fill if fill else moved
    return (moved if values.is_floating_point() else moved.round_()).to(values.dtype)


def bounding_boxes(boxes: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    """Boxes (N, B, 4) around moved corners (N, B, 4 corners), clipped to the image.

    A box that was empty before, or is now, becomes all zeros.
    """
    x, y = x.clamp(0, width), y.clamp(0, height)
    moved = torch.stack((x.amin(-1), y.amin(-1), x.amax(-1), y.amax(-1)), -1)
    real = (boxes[..., 2:] > boxes[..., :2]).all(-1) & (moved[..., 2:] > moved[..., :2]).all(-1)
    return torch.where(real[..., None], moved, 0.0)
