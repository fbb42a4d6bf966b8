"""What do labels that follow the object cost, against hard labels on the same crops?

Run: python benchmarks/objectness.py [--repeats 15]
Batched path: one step of loading (random resized crop, flip), forward, cross entropy, backward and
SGD of a ResNet-8 at 64 x 64, batch 64. Per-sample path: torchvision v2 transforms of 64 images with
their boxes, collated, and the same step. Targets: at most 5 % more and at most 15 % more. On the
per-sample path hard labels need no boxes, so the first row moves none; the second moves them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import median_ms, median_ratio, print_table, spread_ms, time_interleaved, write_results
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from sfumato.augment import ObjectnessLabels, ResizedCrop, label_samples
from sfumato.data import ArrayDataset, TensorLoader, scenes
from sfumato.labels import ObjectnessLabel
from sfumato.models import resnet

BATCH, SIZE = 64, 64


def data() -> ArrayDataset:
    drawn = scenes.generate(BATCH, size=SIZE)
    return ArrayDataset(drawn.images, drawn.labels, drawn.classes, boxes=drawn.boxes)


def learner() -> Callable[[Tensor, Tensor], None]:
    torch.manual_seed(0)
    model = resnet(8, num_classes=10, width=16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), target).backward()
        optimizer.step()

    return step


def batched(labels: ObjectnessLabels | None) -> Callable[[], None]:
    samples, step = data(), learner()
    augment = label_samples(labels, samples, ResizedCrop())
    loader = TensorLoader(samples, BATCH, shuffle=True, augment=augment)

    def call() -> None:
        batch = loader.batch(0)
        step(batch["image"], batch.get("soft_label", batch["label"]))

    return call


def per_sample(boxes: bool, adaptive: bool) -> Callable[[], None]:
    samples, step = data(), learner()
    transforms: list[torch.nn.Module] = [
        v2.RandomResizedCrop(SIZE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
    ]
    transform = v2.Compose([*transforms, ObjectnessLabel(10)] if adaptive else transforms)

    def one(position: int) -> dict[str, Any]:
        sample: dict[str, Any] = {
            "image": tv_tensors.Image(samples.images[position]),
            "label": int(samples.labels[position]),
        }
        if boxes and samples.boxes is not None:
            sample["boxes"] = tv_tensors.BoundingBoxes(
                samples.boxes[position], format="XYXY", canvas_size=(SIZE, SIZE)
            )
        moved: dict[str, Any] = transform(sample)
        return moved

    def call() -> None:
        moved = [one(position) for position in range(BATCH)]
        images = torch.stack([each["image"].as_subclass(Tensor) for each in moved])
        key = "soft_label" if adaptive else "label"
        target = torch.stack([torch.as_tensor(each[key]) for each in moved])
        step(images.to(memory_format=torch.channels_last), target)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    paths = {
        "batched": {
            "hard labels": batched(None),
            "adaptive labels": batched(ObjectnessLabels()),
        },
        "per sample": {
            "hard labels, no boxes": per_sample(boxes=False, adaptive=False),
            "hard labels, boxes": per_sample(boxes=True, adaptive=False),
            "adaptive labels": per_sample(boxes=True, adaptive=True),
        },
    }
    rows = []
    for path, calls in paths.items():
        seconds = time_interleaved(calls, repeats=arguments.repeats)
        base = seconds[next(iter(calls))]
        for name, times in seconds.items():
            rows.append(
                {
                    "path": path,
                    "labels": name,
                    "ms per step": median_ms(times),
                    "IQR ms": spread_ms(times),
                    "extra %": 100 * (median_ratio(times, base) - 1),
                }
            )
    print_table(rows)
    print(f"written to {write_results('objectness', rows).name}")


if __name__ == "__main__":
    main()
