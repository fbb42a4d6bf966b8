"""Sets made by painting objects over: one object an image, or none at all.

Reference: Krothapalli and Abbott, "One Size Doesn't Fit All: Adaptive Label Smoothing", 2020,
Sec. 4.1 and appendix A.2: objects are replaced by the pixel means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.data.dataset import ArrayDataset, channel_statistics, chosen_rows
from sfumato.data.files import FileTensor, Painting


def single_objects(
    dataset: ArrayDataset, *, fill: Sequence[float] | None = None, box_labels: Tensor | None = None
) -> ArrayDataset:
    """One sample for each object, with all other objects painted over ("mask" version).

    Where two boxes overlap, the kept one stays whole. Images without a box are left out. The
    result's `index` counts anew, since several samples come from one image.

    Args:
        dataset: images with boxes (N, B, 4).
        fill: one number in [0, 1] for each channel; None is the mean of these images.
        box_labels: (N, B) class of each box, -1 for what is painted over in all samples; None takes
            the image's label for all boxes.

    Example:
        >>> images = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
        >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0], [8.0, 8.0, 16.0, 16.0]]])
        >>> data = ArrayDataset(images, torch.tensor([0]), ("thing",), boxes=boxes)
        >>> alone = single_objects(data, fill=(1.0,))
        >>> len(alone), (alone.images == 255).sum((1, 2, 3)).tolist()
        (2, [64, 16])
    """
    boxes = _boxes_of(dataset)
    if box_labels is not None and box_labels.shape != boxes.shape[:2]:
        raise ValueError(
            f"box_labels must be {tuple(boxes.shape[:2])}, one a box, got {tuple(box_labels.shape)}"
        )
    sampled = real_boxes(boxes)
    if box_labels is not None:
        sampled &= box_labels >= 0
    image, which = sampled.nonzero(as_tuple=True)
    kept = boxes[image, which][:, None]  # (M, 1, 4)
    others = boxes[image].clone()
    others[torch.arange(len(image)), which] = 0.0
    painting = Painting(others, kept, tuple(_fill(dataset, fill)))
    masks = None
    if dataset.masks is not None:
        masks = dataset.masks[image] & painting.kept_pixels(*dataset.images.shape[-2:])
    return ArrayDataset(
        _painted(chosen_rows(dataset.images, image), painting),
        dataset.labels[image] if box_labels is None else box_labels[image, which],
        dataset.classes,
        boxes=kept,
        masks=masks,
        objectness=None if masks is None else masks.float().mean((1, 2)),
    )


def context_only(dataset: ArrayDataset, *, fill: Sequence[float] | None = None) -> ArrayDataset:
    """The images with every object painted over, marked as `context`; those without boxes go.

    Labels keep the class of the object that was there, so that it can be measured whether a
    model still claims to see it. Training on marked samples uses uniform labels.

    Args:
        dataset, fill: as in `single_objects`.

    Example:
        >>> images = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
        >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0]]])
        >>> data = ArrayDataset(images, torch.tensor([0]), ("thing",), boxes=boxes)
        >>> context_only(data, fill=(1.0,)).images.sum().item()
        4080
    """
    boxes = _boxes_of(dataset)
    boxed = real_boxes(boxes).any(1).nonzero()[:, 0]
    if not len(boxed):
        raise ValueError("no image of this set has a box: there is nothing to paint over")
    chosen, boxes = dataset.subset(boxed), boxes[boxed]
    nothing = torch.zeros(len(boxes), 1, 4)
    return dataclasses.replace(
        chosen,
        images=_painted(chosen.images, Painting(boxes, nothing, tuple(_fill(dataset, fill)))),
        boxes=torch.zeros_like(boxes),
        masks=None if chosen.masks is None else torch.zeros_like(chosen.masks),
        objectness=None if chosen.objectness is None else torch.zeros_like(chosen.objectness),
        posterior=None,
        context=torch.ones(len(chosen), dtype=torch.bool),
    )


def with_context(
    dataset: ArrayDataset,
    *,
    share: float = 0.15,
    fill: Sequence[float] | None = None,
    seed: int = 0,
) -> ArrayDataset:
    """The set followed by context-only images, so many that they make up `share` of the whole.

    They are drawn from the set's own images without repetition. `posterior` is dropped, being
    unknown for them; their `index` goes on after the set's.

    Args:
        dataset, fill: as in `single_objects`.
        share: of context-only images in the result, in [0, 1).
        seed: of the choice of images.

    Reference: Sec. 4.1, "about 15 % of the time".
    """
    check_number("share", share, low=0.0, high=1.0)
    check_integer("seed", seed, low=0)
    boxed = real_boxes(_boxes_of(dataset)).any(1).nonzero()[:, 0]
    count = round(share / (1 - share) * len(dataset)) if share < 1 else len(boxed) + 1
    if count > len(boxed):
        raise ValueError(
            f"share={share:g} needs {count} context-only images, but {len(boxed)} of "
            f"{len(dataset)} images have boxes: use a share of at most "
            f"{len(boxed) / (len(boxed) + len(dataset)):g}"
        )
    if count == 0:
        return dataset
    generator = torch.Generator().manual_seed(seed)
    chosen = boxed[torch.randperm(len(boxed), generator=generator)[:count]]
    context = context_only(dataset.subset(chosen.sort().values), fill=_fill(dataset, fill))
    index = int(dataset.index.max()) + 1 + torch.arange(count)
    return _joined(dataset, dataclasses.replace(context, index=index))


def real_boxes(boxes: Tensor) -> Tensor:
    """(N, B) true where a box has an area; what fills up the rows has none."""
    return (boxes[..., 2:] > boxes[..., :2]).all(-1)


def _joined(dataset: ArrayDataset, context: ArrayDataset) -> ArrayDataset:
    marks = dataset.context
    if marks is None:
        marks = torch.zeros(len(dataset), dtype=torch.bool)
    first = dataclasses.replace(dataset, context=marks, posterior=None)
    joined: dict[str, Any] = {}
    for name in ("images", "labels", "index", "boxes", "masks", "objectness", "context"):
        mine, theirs = getattr(first, name), getattr(context, name)
        if mine is not None:
            in_memory = isinstance(mine, Tensor)
            joined[name] = torch.cat((mine, theirs)) if in_memory else mine.followed_by(theirs)
    return dataclasses.replace(first, **joined)


def _painted(images: Tensor | FileTensor, painting: Painting) -> Tensor | FileTensor:
    """Images painted now, or, of files, whenever they are decoded."""
    return painting.apply(images) if isinstance(images, Tensor) else images.painted(painting)


def _boxes_of(dataset: ArrayDataset) -> Tensor:
    if dataset.boxes is None:
        raise ValueError(
            "the set has no boxes: use scenes, tiny_imagenet, or give the npz an array 'boxes'"
        )
    if dataset.labels.ndim != 1:
        raise ValueError(
            "objects can be painted over in classification sets only, got segmentation masks"
        )
    return dataset.boxes


def _fill(dataset: ArrayDataset, fill: Sequence[float] | None) -> Sequence[float]:
    return channel_statistics(dataset.images)[0] if fill is None else fill
