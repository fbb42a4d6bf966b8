"""What MC dropout costs: 30 samples through `MCDropout` against 30 plain forward passes.

Run: python benchmarks/predictions.py [--repeats 7] [--threads 2] [--max-batch 256 1024]
Claims: half the time of the plain passes where dropout comes right after the stem, by cheaper
masks, and less the more of the network comes before it. Both sides average probabilities; times are
medians, ratios medians of ratios within a round. On a busy machine trust the ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor, nn

from sfumato.models import resnet
from sfumato.predictions import MCDropout

SAMPLES = 30
Call = Callable[[], object]


def late_dropout() -> nn.Module:
    """Dropout before the classifier alone: all convolutions are a deterministic prefix."""
    model = resnet(8, num_classes=10, width=16)
    model.head.linear = nn.Sequential(nn.Dropout(0.3), model.head.linear)
    return model


def middle_dropout() -> nn.Module:
    """Dropout from the last of three stages on."""
    model = resnet(8, num_classes=10, width=16)
    model.stages[2] = nn.Sequential(nn.Dropout(0.3), model.stages[2])
    return model


def early_dropout() -> nn.Module:
    """Dropout right after the stem and in each block: nearly all has to run for each sample."""
    model = resnet(8, num_classes=10, width=16, dropout=0.3)
    model.stages[0] = nn.Sequential(nn.Dropout(0.3), model.stages[0])
    return model


def plain_passes(model: nn.Module, images: Tensor) -> Call:
    """What one writes by hand: dropout layers in training mode, a loop, a running mean."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()

    def call() -> Tensor:
        with torch.inference_mode():
            return sum(model(images).softmax(1) for _ in range(SAMPLES)) / SAMPLES  # type: ignore[return-value]

    return call


def sampled(model: nn.Module, images: Tensor, max_batch: int) -> Call:
    predictor = MCDropout(model, SAMPLES, max_batch=max_batch)

    def call() -> Tensor:
        with torch.inference_mode():
            return predictor(images)

    return call


def compare(name: str, model: nn.Module, batch: int, sizes: list[int], repeats: int) -> list[Any]:
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    calls = {"plain passes": plain_passes(model, images)}
    calls |= {f"MCDropout, max_batch {size}": sampled(model, images, size) for size in sizes}
    seconds = time_interleaved(calls, repeats=repeats, warmup=1)
    return [
        {
            "network": name,
            "batch": batch,
            "what": what,
            "median ms": median_ms(times),
            "min ms": 1e3 * min(times),
            "ratio": median_ratio(times, seconds["plain passes"]),
            "ratio of minima": min(times) / min(seconds["plain passes"]),
        }
        for what, times in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument(
        "--max-batch", type=int, nargs="+", default=[MCDropout(nn.Identity()).max_batch]
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    networks = {"late": late_dropout(), "middle": middle_dropout(), "early": early_dropout()}
    rows = []
    for name, model in networks.items():
        for batch in options.batches:
            rows += compare(name, model, batch, options.max_batch, options.repeats)
    print_table(rows)
    print(f"written to {write_results('predictions', rows)}")


if __name__ == "__main__":
    main()
