"""Does loading keep up? Time of a batch against the training step of a small ResNet.

Run: python benchmarks/loader.py [--repeats 30] [--threads 2]
The claim: loading and augmentation (flip, crop) take at most 15 % of the step of a ResNet-18 of
width 16 at 32 x 32 with batches of 128 on two threads. The same batches through torch's
DataLoader with torchvision's per-sample transforms stand beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from sfumato.augment import Augment
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.models import resnet

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH, SAMPLES, SIZE, CLASSES = 128, 12_800, 32, 10
LIMIT = 0.15


class PerSample(Dataset[tuple[torch.Tensor, int]]):
    """The usual way: one sample at a time through torchvision's transforms."""

    def __init__(self, data: ArrayDataset, rotation: float) -> None:
        self.data = data
        steps: list[Any] = [v2.RandomHorizontalFlip(), v2.RandomCrop(SIZE, padding=4)]
        if rotation:
            steps.append(v2.RandomRotation(rotation, v2.InterpolationMode.BILINEAR))
        to_float = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([*steps, to_float, v2.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.data.images[position]), int(self.data.labels[position])


def forever(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def training_step(data: ArrayDataset) -> Callable[[], None]:
    model = resnet(18, num_classes=CLASSES, width=16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = TensorLoader(data, BATCH, mean=MEAN, std=STD).batch(0)

    def step() -> None:
        loss = F.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def contenders(data: ArrayDataset) -> dict[str, Callable[[], Any]]:
    def ours(augment: Augment | None) -> Iterator[Any]:
        return forever(TensorLoader(data, BATCH, shuffle=True, augment=augment, mean=MEAN, std=STD))

    def usual(rotation: float) -> Iterator[Any]:
        return forever(DataLoader(PerSample(data, rotation), BATCH, shuffle=True))

    streams = {
        "no augmentation": ours(None),
        "flip, crop": ours(Augment()),
        "flip, crop (reflect)": ours(Augment(padding="reflect")),
        "flip, crop, rotation 15": ours(Augment(rotation=15.0)),
        "torchvision per sample: flip, crop": usual(0.0),
        "torchvision per sample: flip, crop, rotation 15": usual(15.0),
    }
    return {name: stream.__next__ for name, stream in streams.items()}


def measure(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each run, interleaved so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 3):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (SAMPLES, 3, SIZE, SIZE), dtype=torch.uint8)
    names = tuple(str(number) for number in range(CLASSES))
    data = ArrayDataset(images, torch.randint(0, CLASSES, (SAMPLES,)), names)

    step_name = "training step, ResNet-18-w16"
    times = measure({step_name: training_step(data), **contenders(data)}, options.repeats)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = {
        name: {
            "median_ms": round(medians[name], 3),
            "min_ms": round(min(values), 3),
            "share_of_step": round(medians[name] / medians[step_name], 4),
        }
        for name, values in times.items()
    }
    print(f"{'':48}{'median ms':>10}{'min ms':>10}{'share':>9}")
    for name, row in rows.items():
        share = f"{100 * row['share_of_step']:.2f} %"
        print(f"{name:48}{row['median_ms']:10.2f}{row['min_ms']:10.2f}{share:>9}")
    held = rows["flip, crop"]["share_of_step"] <= LIMIT
    print(
        f"claim, flip and crop <= {100 * LIMIT:.0f} % of the step: {'holds' if held else 'FAILS'}"
    )

    machine = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": options.threads,
    }
    results = {"machine": machine, "batch": BATCH, "repeats": options.repeats, "rows": rows}
    path = Path(__file__).parent / "results" / "loader.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
