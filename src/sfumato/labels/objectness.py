"""Share of a crop that its object covers, by boxes or by mask, and the soft label that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_integer, check_number, to_float64
from sfumato.labels.targets import objectness_labels


class Cells(NamedTuple):
    """The cells between the sorted edges of each image's boxes; E = 2K edges."""

    x: Tensor  # (N, E)
    y: Tensor  # (N, E)
    covered: Tensor  # (N, E - 1 along y, E - 1 along x), bool


def cells_of(boxes: Tensor) -> Cells:
    """Cut the plane at the edges of the boxes (N, K, 4); empty and reversed boxes cover nothing."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    x = torch.cat((x1, x2), 1).sort(1).values
    y = torch.cat((y1, y2), 1).sort(1).values
    across = (x[:, None, :-1] >= x1[..., None]) & (x[:, None, 1:] <= x2[..., None])  # (N, K, E - 1)
    down = (y[:, None, :-1] >= y1[..., None]) & (y[:, None, 1:] <= y2[..., None])
    # A reversed box holds no cell of positive width; a box reversed both ways holds none either.
    covered = down.to(boxes.dtype).mT @ across.to(boxes.dtype) > 0
    return Cells(x, y, covered)


def union_area(boxes: Tensor) -> Tensor:
    """Area of the union of each image's boxes; (N, K, 4) as x1, y1, x2, y2 gives (N,)."""
    # The usual case: no union, so no cells.
    if boxes.shape[1] == 1:
        return (boxes[:, 0, 2:] - boxes[:, 0, :2]).clamp_min(0).prod(-1)
    x, y, covered = cells_of(boxes)
    areas = y.diff(dim=1)[:, :, None] * x.diff(dim=1)[:, None, :]
    return torch.where(covered, areas, 0.0).sum((1, 2))


def union_area_inside(boxes: Tensor, corners: Tensor) -> Tensor:
    """Area of the part of the union that lies in a convex quadrilateral.

    Green's theorem: the area that a polygon P shares with the cell [x0, x1] x [y0, y1] is

        | sum over edges of P  int_(x in edge and in [x0, x1]) (clamp(y, y0, y1) - y0) dx |

    whose integrand is piecewise linear, so that the result is exact.
    """
    x, y, covered = cells_of(to_float64(boxes))
    start = to_float64(corners)
    end = start.roll(-1, 1)  # (N, 4 edges, 2)
    left, right = x[:, None, :-1], x[:, None, 1:]  # (N, 1, X)
    begin = start[..., 0:1].clamp(left, right)  # (N, 4, X), the edge's part above each column
    finish = end[..., 0:1].clamp(left, right)
    run = end[..., 0:1] - start[..., 0:1]
    slope = (end - start)[..., 1:] / torch.where(run == 0, 1.0, run)
    y_begin = start[..., 1:] + slope * (begin - start[..., 0:1])
    y_finish = start[..., 1:] + slope * (finish - start[..., 0:1])
    height = _mean_clamped(
        y_begin[:, :, None], y_finish[:, :, None], y[:, None, :-1, None], y[:, None, 1:, None]
    )
    shared = (height * (finish - begin)[:, :, None]).sum(1).abs()  # (N, Y, X)
    return torch.where(covered, shared, 0.0).sum((1, 2))


def _mean_clamped(first: Tensor, last: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mean of clamp(y, low, high) - low while y goes evenly from `first` to `last`."""

    def integral(y: Tensor) -> Tensor:
        inside = y.clamp(low, high) - low
        return inside.square() / 2 + (high - low) * (y - high).clamp_min(0)

    way = last - first
    level = way.abs() < 1e-6  # the quotient would lose its digits; the middle is as good there
    middle = ((first + last) / 2).clamp(low, high) - low
    return torch.where(level, middle, (integral(last) - integral(first)) / way.where(~level, 1.0))


def box_objectness(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Share of the image that boxes cover, overlaps counted once: w h / (W H) for one box.

    Args:
        boxes: (N, K, 4) as x1, y1, x2, y2 in pixels, the far edges exclusive; parts outside the
            image don't count, and empty (all zero) boxes fill up the rows of images with fewer.
        size: height and width of the image.

    Returns:
        (N,) in [0, 1], float32 (float64 for float64 boxes).

    Example:
        >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0], [2.0, 0.0, 6.0, 4.0]]])
        >>> box_objectness(boxes, (8, 8))  # 24 of 64 pixels
        tensor([0.3750])
    """
    height, width = size
    check_integer("height of size", height, low=1)
    check_integer("width of size", width, low=1)
    boxes = _checked_boxes(boxes)
    limit = boxes.new_tensor([width, height, width, height])
    inside = torch.minimum(boxes.clamp_min(0), limit)
    return (union_area(inside) / (height * width)).clamp(0, 1)


def window_objectness(boxes: Tensor, corners: Tensor) -> Tensor:
    """Share of a window, possibly turned, that boxes of its source image cover.

    A crop that is scaled, mirrored, stretched and turned shows a parallelogram of its source, where
    boxes stay rectangles: the area is exact. The bounding box of a turned box would cover more.

    Args:
        boxes: (N, K, 4) in pixels of the source image, as in `box_objectness`.
        corners: (N, 4, 2) the window's corners (x, y) in the source image, in order around it.
            What lies outside the source image counts as window without object.

    Example:
        >>> box = torch.tensor([[[0.0, 0.0, 2.0, 2.0]]])
        >>> diamond = torch.tensor([[[1.0, -1.0], [3.0, 1.0], [1.0, 3.0], [-1.0, 1.0]]])
        >>> window_objectness(box, diamond)
        tensor([0.5000])
    """
    boxes = _checked_boxes(boxes)
    if tuple(corners.shape) != (len(boxes), 4, 2):
        raise ValueError(f"corners must be ({len(boxes)}, 4, 2), got {tuple(corners.shape)}")
    x, y = to_float64(corners).unbind(-1)
    area = (x * y.roll(-1, 1) - y * x.roll(-1, 1)).sum(1).abs() / 2
    if bool((area <= 0).any()):
        raise ValueError("corners must enclose an area, got a window of none")
    return (union_area_inside(boxes, corners) / area).clamp(0, 1).to(boxes)


def mask_objectness(masks: Tensor) -> Tensor:
    """Share of the image that a mask covers: (..., H, W) of bool or 0 and 1 gives (...).

    Example:
        >>> mask_objectness(torch.tensor([[[True, False], [False, False]]]))
        tensor([0.2500])
    """
    if masks.ndim < 2 or 0 in masks.shape[-2:]:
        raise ValueError(f"masks must be (..., H, W), got {tuple(masks.shape)}")
    return (masks != 0).flatten(-2).float().mean(-1)


class ObjectnessLabel(nn.Module):
    """Soft label of one sample from the boxes or masks that came through its transforms.

    Put it after the torchvision v2 transforms that crop: what is left of the object decides the
    label (Eq. 5 and 6). A sample is a dict with `image`, `label` (an integer) and `boxes` or
    `masks`; it comes back with `objectness` and `soft_label`. With `box_labels` (one integer a
    box), boxes of other classes are left out.

    `RandomRotation` replaces a turned box by its bounding box, which covers more than the object
    does. Use masks with rotation; `sfumato.augment.ResizedCrop` is exact with boxes, too.

    Args:
        num_classes: C.
        beta: 1 full adaptive smoothing, 0 hard labels.
        by: "box" or "mask", several masks (B, H, W) counted once where they overlap.
        absent: label where nothing is left, as in `objectness_labels`.

    Example:
        >>> from torchvision import tv_tensors
        >>> from torchvision.transforms import v2
        >>> sample = {
        ...     "image": tv_tensors.Image(torch.zeros(3, 8, 8)),
        ...     "boxes": tv_tensors.BoundingBoxes(
        ...         [[0, 0, 4, 8]], format="XYXY", canvas_size=(8, 8)
        ...     ),
        ...     "label": 1,
        ... }
        >>> transform = v2.Compose([v2.CenterCrop(4), ObjectnessLabel(3)])
        >>> transform(sample)["soft_label"]  # half of the crop is object
        tensor([0.2500, 0.5000, 0.2500])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        beta: float = 1.0,
        by: Literal["box", "mask"] = "box",
        absent: Literal["others", "uniform"] = "uniform",
    ) -> None:
        super().__init__()
        check_integer("num_classes", num_classes, low=2)
        check_number("beta", beta, low=0.0, high=1.0)
        check_choice("by", by, ("box", "mask"))
        check_choice("absent", absent, ("others", "uniform"))
        self.num_classes, self.beta, self.by, self.absent = num_classes, beta, by, absent

    def forward(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample with `objectness` () and `soft_label` (C,)."""
        key = "boxes" if self.by == "box" else "masks"
        for needed in ("label", key):
            if needed not in sample:
                raise ValueError(
                    f"sample needs {needed!r} for by={self.by!r}, has {sorted(sample)}"
                )
        measure = _sample_box_share if self.by == "box" else _sample_mask_share
        objectness = measure(sample)
        soft_label = objectness_labels(
            torch.as_tensor(sample["label"]).reshape(1),
            objectness[None],
            num_classes=self.num_classes,
            beta=self.beta,
            absent=self.absent,
        )[0]
        return {**sample, "objectness": objectness, "soft_label": soft_label}


def _sample_box_share(sample: Mapping[str, Any]) -> Tensor:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    boxes = sample["boxes"]
    if not isinstance(boxes, tv_tensors.BoundingBoxes):
        raise TypeError(
            f"boxes must be torchvision's tv_tensors.BoundingBoxes, which know their format and "
            f"canvas, got {type(boxes).__name__}"
        )
    corners = v2.functional.convert_bounding_box_format(
        boxes, new_format=tv_tensors.BoundingBoxFormat.XYXY
    )
    plain = corners.as_subclass(Tensor)
    if "box_labels" in sample:
        plain = plain[torch.as_tensor(sample["box_labels"]) == int(sample["label"])]
    height, width = boxes.canvas_size
    return box_objectness(plain[None].float(), (height, width))[0]


def _sample_mask_share(sample: Mapping[str, Any]) -> Tensor:
    masks = torch.as_tensor(sample["masks"]).as_subclass(Tensor) != 0
    if "box_labels" in sample and masks.ndim == 3:
        masks = masks[torch.as_tensor(sample["box_labels"]) == int(sample["label"])]
    return mask_objectness(masks.any(0) if masks.ndim == 3 else masks)


def _checked_boxes(boxes: Tensor) -> Tensor:
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise ValueError(f"boxes must be (N, K, 4), got {tuple(boxes.shape)}")
    # One empty box covers nothing, and spares every later step the case of none.
    if boxes.shape[1] == 0:
        boxes = boxes.new_zeros(len(boxes), 1, 4)
    return boxes if boxes.is_floating_point() else boxes.float()
