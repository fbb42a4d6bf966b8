"""What spatial smoothing costs: one layer, and a whole ResNet in training and prediction.

Run: python benchmarks/features.py [--repeats 20] [--threads 2]
Claims: with smoothing, a ResNet-18 of width 16 (32 x 32, batch 128, channels_last) keeps at least
95 % of its throughput in training and in prediction; the 2x2 blur is no slower than
`F.avg_pool2d`. Times are medians; ratios are medians of ratios within a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor, nn

from sfumato.features import Blur, Smooth, add_smoothing
from sfumato.models import resnet

SHAPES = ((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8), (128, 128, 4, 4), (8, 256, 56, 56))
Call = Callable[[], object]


def released(z: Tensor) -> Tensor:
    """The layer as it was released; the map grows by one point each way."""
    return F.avg_pool2d(F.relu(10 * torch.tanh(z / 10)), 2, stride=1, padding=1)


def same_size_pool(z: Tensor) -> Tensor:
    """The 2x2 box with pooling, at the size of the input."""
    return F.avg_pool2d(F.pad(z, (0, 1, 0, 1)), 2, stride=1)


def with_gradient(layer: Callable[[Tensor], Tensor], z: Tensor) -> Call:
    z = z.clone(memory_format=torch.preserve_format).requires_grad_()
    upstream = torch.ones_like(layer(z).detach())
    return lambda: torch.autograd.grad(layer(z), z, upstream)


def without_gradient(layer: Callable[[Tensor], Tensor], z: Tensor) -> Call:
    def call() -> None:
        with torch.inference_mode():
            layer(z)

    return call


def compare(case: str, calls: dict[str, Call], base: str, repeats: int) -> list[dict[str, Any]]:
    """One row per call; `speed` is that of `base` = 1."""
    seconds = time_interleaved(calls, repeats=repeats)
    return [
        {
            "case": case,
            "what": name,
            "median ms": median_ms(times),
            "min ms": 1e3 * min(times),
            "speed": median_ratio(seconds[base], times),
            "speed of minima": min(seconds[base]) / min(times),
        }
        for name, times in seconds.items()
    ]


def layers(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        z = torch.randn(shape).to(memory_format=torch.channels_last)
        forms: dict[str, Callable[[Tensor], Tensor]] = {
            "F.avg_pool2d 2x2, same size": same_size_pool,
            "F.avg_pool2d 2x2, shrinks": lambda z: F.avg_pool2d(z, 2, stride=1),
            "F.avg_pool2d 2x2, grows": lambda z: F.avg_pool2d(z, 2, stride=1, padding=1),
            "Blur zeros": Blur(),
            "Blur replicate": Blur(padding="replicate"),
            "Blur grow": Blur(padding="grow"),
            "released Prob and blur": released,
            "Smooth zeros": Smooth(),
        }
        name = "x".join(map(str, shape))
        base = "F.avg_pool2d 2x2, same size"
        for mode, wrap in (("forward", without_gradient), ("training", with_gradient)):
            calls = {key: wrap(form, z) for key, form in forms.items()}
            rows += compare(f"{name} {mode}", calls, base, repeats)
    return rows


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    plain = resnet(18, num_classes=10, width=16)
    images = torch.zeros(1, 3, 32, 32)
    models = {
        "without": plain,
        "resnet(smooth=True)": resnet(18, num_classes=10, width=16, smooth=True),
        "add_smoothing": add_smoothing(plain, images),
        "add_smoothing replicate": add_smoothing(plain, images, padding="replicate"),
    }
    released_model = add_smoothing(plain, images, padding="grow")
    for stage in released_model.stages:  # type: ignore[union-attr]
        stage.smooth.forward = released
    models["released layer"] = released_model
    for model in models.values():
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return models


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Call:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def call() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return call


def prediction(model: nn.Module, images: Tensor) -> Call:
    def call() -> None:
        model.eval()
        with torch.inference_mode():
            model(images)

    return call


def whole_networks(repeats: int) -> list[dict[str, Any]]:
    images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (128,))
    steps = {name: training_step(m, images, labels) for name, m in networks().items()}
    passes = {name: prediction(m, images) for name, m in networks().items()}
    rows = compare("ResNet-18-w16 training", steps, "without", repeats)
    return rows + compare("ResNet-18-w16 prediction", passes, "without", 3 * repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = whole_networks(options.repeats) + layers(options.repeats)
    print_table(rows)
    print(f"written to {write_results('features', rows)}")


if __name__ == "__main__":
    main()
