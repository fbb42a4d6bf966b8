"""Draws the pictures of docs/objectness.md.

Run: python docs/figures/objectness.py [--runs NAME=FOLDER ...]
Crops and context-only images come from scenes; with --runs also the curve of confidence against
objectness, from the metrics.json in each folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from sfumato._core.files import read_json
from sfumato.augment import LabelledAugment, ObjectnessLabels, ResizedCrop
from sfumato.data import ArrayDataset, context_only, scenes, single_objects
from sfumato.metrics import objectness_curve

FOLDER = Path(__file__).resolve().parent
SIZE = 96
INK, FRAME = "#343a40", "#ffd43b"


def show(axes: Axes, image: Tensor, title: str, boxes: Tensor | None = None) -> None:
    """An image with its boxes outlined."""
    axes.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=8, color=INK)
    for x1, y1, x2, y2 in [] if boxes is None else boxes.tolist():
        if x2 > x1:
            corner = (x1 - 0.5, y1 - 0.5)
            axes.add_patch(Rectangle(corner, x2 - x1, y2 - y1, fill=False, ec=FRAME, lw=1.5))


def crops() -> None:
    """Two scenes, each with five random resized crops, their objectness and their label."""
    data = scenes.generate(12, size=SIZE, seed=5, ambiguity=0.0)
    augment = LabelledAugment(10, ObjectnessLabels(), ResizedCrop(scale=(0.08, 0.5)))
    figure, grid = plt.subplots(2, 6, figsize=(9.6, 3.9), layout="constrained")
    generator = torch.Generator().manual_seed(74)
    for row, position in zip(grid, (3, 8), strict=True):
        batch = data.batch(torch.tensor([position] * 5))
        moved = augment.apply(batch, torch.rand(5, augment.draws, generator=generator))
        name = data.classes[int(batch["label"][0])]
        show(row[0], batch["image"][0], f"{name}, whole image", batch["boxes"][0])
        for axes, number in zip(row[1:], range(5), strict=True):
            share = float(moved["objectness"][number])
            weight = float(moved["soft_label"][number, moved["label"][number]])
            title = f"objectness {share:.2f}\n{name}: {weight:.2f}"
            show(axes, moved["image"][number], title, moved["boxes"][number])
    figure.savefig(FOLDER / "objectness-crops.png", dpi=110)


def painted() -> None:
    """One image with two objects, its single-object versions, and scenes without their object."""
    pair = scenes.generate(40, size=SIZE, seed=3, ambiguity=0.0)
    small = ((pair.boxes[:, 0, 2:] - pair.boxes[:, 0, :2]).amax(1) < 0.5 * SIZE).nonzero()[:2, 0]
    left, right = pair.images[small]
    both = torch.cat((left, right), 2)[None]
    boxes = pair.boxes[small].clone()
    boxes[1, :, [0, 2]] += SIZE
    two = ArrayDataset(both, torch.tensor([0]), ("thing",), boxes=boxes.view(1, 2, 4))
    alone = single_objects(two)
    figure, grid = plt.subplots(2, 4, figsize=(9.6, 4.0), layout="constrained")
    show(grid[0, 0], both[0], "two objects", two.boxes[0])
    for axes, number in zip(grid[0, 1:3], range(2), strict=True):
        show(axes, alone.images[number], "single object", alone.boxes[number])
    show(grid[0, 3], context_only(two).images[0], "context only")
    data = scenes.generate(4, size=SIZE, seed=9, ambiguity=0.0)
    hidden = context_only(data)
    for column in range(2):
        name = data.classes[int(data.labels[column])]
        show(grid[1, 2 * column], data.images[column], name, data.boxes[column])
        show(grid[1, 2 * column + 1], hidden.images[column], f"{name}, context only: uniform label")
    figure.savefig(FOLDER / "objectness-context.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", nargs="*", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    crops()
    painted()
    pairs = dict(each.split("=", 1) for each in arguments.runs)
    if pairs:
        found = {name: read_json(Path(folder) / "metrics.json") for name, folder in pairs.items()}
        curves = {name: metrics["objectness"]["curve"] for name, metrics in found.items()}
        objectness_curve(curves).savefig(FOLDER / "objectness-curve.png", dpi=110)


if __name__ == "__main__":
    main()
