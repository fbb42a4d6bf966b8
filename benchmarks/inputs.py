"""What do mollification and the augmentation recipes cost?

Run: python benchmarks/inputs.py [--repeats 20] [--threads 2]
Claims: heat blur of 128 images takes at most 0.7 of the time of the matrix route of torch-dct
(`LinearDCT`, as the paper's code has it) at 32 x 32, 0.6 at 64 x 64 and 224 x 224, on one thread or
on idle cores. Beside a busy core two threads wait for each other: at 32 x 32 both routes take
milliseconds, and the ratio passes 1.
`Mollify` adds at most 3 % to the training step of a ResNet-18 of width 16 at 32 x 32, batch 128.
Beside them: pixel policies against torchvision's transforms called for each image, and the mixing
functions against torchvision's. Needs `pip install sfumato[dev]` for torch-dct.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor
from torch_dct import LinearDCT, apply_linear_2d
from torchvision.transforms import v2

from sfumato.augment import (
    AugMix,
    AutoAugment,
    RandAugment,
    TrivialAugment,
    cutmix,
    mixup,
)
from sfumato.inputs import Mollify, dissipate
from sfumato.models import resnet

BATCH, CLASSES = 128, 10
Row = dict[str, Any]


class MatrixRoute:
    """Transform, damp, transform back: four products with two shared matrices."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.forward, self.back = LinearDCT(size, "dct"), LinearDCT(size, "idct")
        frequency = torch.arange(size) * math.pi / size
        self.squares = frequency[:, None].square() + frequency.square()

    def __call__(self, images: Tensor, t: Tensor) -> Tensor:
        sigma = torch.exp((1 - t) * math.log(0.3) + t * math.log(self.size))
        damping = torch.exp(-self.squares * sigma.square()[:, None, None, None] / 2)
        return apply_linear_2d(apply_linear_2d(images, self.forward) * damping, self.back)


def compare(what: str, calls: dict[str, Callable[[], object]], repeats: int) -> list[Row]:
    """One row for each call; the second one is what the first is measured against."""
    seconds = time_interleaved(calls, repeats=repeats)
    base = seconds[list(calls)[1]]
    return [
        {
            "what": what,
            "route": route,
            "median ms": median_ms(times),
            "minimum ms": 1e3 * min(times),
            "images/s": BATCH / (median_ms(times) / 1e3),
            "speed-up": 1 / median_ratio(times, base),
            "of minima": min(base) / min(times),
        }
        for route, times in seconds.items()
    ]


def blur_rows(repeats: int) -> list[Row]:
    rows = []
    for size in (32, 64, 224):
        images, t = torch.randn(BATCH, 3, size, size), torch.rand(BATCH)
        route = MatrixRoute(size)
        with torch.no_grad():
            gap = (dissipate(images, t) - route(images, t)).abs().max()
            if gap > 1e-4:
                raise RuntimeError(f"the routes disagree by {gap:g} at {size} x {size}")
            calls = {
                "sfumato dissipate": lambda x=images, t=t: dissipate(x, t),
                "torch-dct LinearDCT": lambda x=images, t=t, route=route: route(x, t),
            }
            count = repeats if size < 224 else max(3, repeats // 5)
            rows += compare(f"blur {size} x {size}", calls, count)
    return rows


def policy_rows(repeats: int) -> list[Row]:
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    pairs = {
        "RandAugment": (RandAugment(), v2.RandAugment()),
        "AutoAugment": (AutoAugment(), v2.AutoAugment()),
        "TrivialAugment": (TrivialAugment(), v2.TrivialAugmentWide()),
        "AugMix": (AugMix(), v2.AugMix()),
    }
    rows = []
    for name, (ours, theirs) in pairs.items():
        calls = {
            "sfumato batch": lambda p=ours: p.apply(images, torch.rand(BATCH, p.draws)),
            "torchvision per image": lambda t=theirs: torch.stack([t(image) for image in images]),
        }
        rows += compare(name, calls, max(3, repeats // 4))
    return rows


def mixing_rows(repeats: int) -> list[Row]:
    images, target = torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))
    pairs = {
        "MixUp": (mixup, v2.MixUp(num_classes=CLASSES)),
        "CutMix": (cutmix, v2.CutMix(num_classes=CLASSES)),
    }
    rows = []
    for name, (ours, theirs) in pairs.items():
        calls = {
            "sfumato": lambda f=ours: f(images, target, num_classes=CLASSES),
            "torchvision": lambda f=theirs: f(images, target),
        }
        rows += compare(name, calls, repeats)
    return rows


def step_rows(repeats: int) -> list[Row]:
    model = resnet(18, num_classes=CLASSES, width=16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    target = torch.randint(CLASSES, (BATCH,))
    soft_target = F.one_hot(target, CLASSES).float()
    mollify = Mollify(CLASSES)

    def step() -> None:
        loss = F.cross_entropy(model(images), soft_target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    calls: dict[str, Callable[[], object]] = {
        "Mollify": lambda: mollify(images, target),
        "training step": step,
    }
    rows = compare("ResNet-18-w16, 32 x 32", calls, repeats)
    for row in rows:
        row["share of step"] = f"{100 / row['speed-up']:.2f} %"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    parts = (blur_rows, step_rows, policy_rows, mixing_rows)
    rows = []
    for part in parts:
        found = part(options.repeats)
        print_table(found)
        print()
        rows += found
    print(f"written to {write_results('inputs', rows).name}")


if __name__ == "__main__":
    main()
