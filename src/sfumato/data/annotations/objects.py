"""What every annotation file is read into, and what happens to a box that can't be right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sfumato._core.checks import check_choice

OnBadBox = Literal["error", "skip", "clip"]
Box = tuple[float, float, float, float]


@dataclass
class AnnotatedImage:
    """One image file and its objects.

    Args:
        path: of the image.
        width: in pixels.
        height: in pixels.
        boxes: x1, y1, x2, y2 in pixels, the far edges exclusive.
        labels: the class of each box.
    """

    path: Path
    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


@dataclass
class Annotations:
    """The images of a set, and what was left out of it, counted by reason.

    Args:
        images: in the order of the source.
        skipped: reason -> how many boxes or images.
        clipped: how many boxes were cut to their image.
        unreadable: images that were left out because they can't be decoded: file -> reason.
    """

    images: list[AnnotatedImage]
    skipped: Counter[str] = field(default_factory=Counter)
    clipped: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def report(self) -> str:
        """One line: how much was read, and how much was not, and why."""
        boxes = sum(len(image.boxes) for image in self.images)
        text = f"{boxes} boxes in {len(self.images)} images"
        if self.clipped:
            text += f"; {self.clipped} boxes cut to their image"
        left = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"{text}; skipped: {left}" if left else text


@dataclass
class BoxReader:
    """Checks boxes one by one: the first bad one is an error, or all of them are counted.

    Args:
        on_bad_box: "error" raises; "skip" leaves the box out and counts it; "clip" cuts a box
            that reaches over the border to its image, and skips all others that are bad.
    """

    on_bad_box: OnBadBox
    skipped: Counter[str] = field(default_factory=Counter)
    clipped: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("on_bad_box", self.on_bad_box, ("error", "skip", "clip"))

    def add(self, image: AnnotatedImage, box: Sequence[float], label: str, where: str) -> None:
        """Put a box into its image, unless it is bad; `where` says where it was read."""
        fault = _fault(box, image.width, image.height)
        if fault == "reaching outside the image" and self.on_bad_box == "clip":
            self.clipped += 1
            box, fault = _cut(box, image.width, image.height), None
        if fault is not None:
            self.refuse(
                f"boxes {fault}", f"{where}: box {_text(box)} of {label!r} is {fault}", image
            )
            return
        image.boxes.append((box[0], box[1], box[2], box[3]))
        image.labels.append(label)

    def refuse(self, reason: str, message: str, image: AnnotatedImage | None = None) -> None:
        """Raise, or count under `reason`."""
        if self.on_bad_box == "error":
            size = "" if image is None else f" ({image.width}x{image.height})"
            raise ValueError(f"{message}{size}. on_bad_box='skip' leaves such out and counts them.")
        self.skipped[reason] += 1

    def finish(self, images: list[AnnotatedImage]) -> Annotations:
        return Annotations(images, self.skipped, self.clipped, self.unreadable)


def _fault(box: Sequence[float], width: int, height: int) -> str | None:
    x1, y1, x2, y2 = box
    if not all(math.isfinite(value) for value in box):
        return "not finite"
    if x2 < x1 or y2 < y1:
        return "reversed"
    if x1 == x2 or y1 == y2:
        return "empty"
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        return "outside the image"
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        return "reaching outside the image"
    return None


def _cut(box: Sequence[float], width: int, height: int) -> Box:
    x1, y1, x2, y2 = box
    return max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))


def _text(box: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in box) + ")"
