"""How many images a second does training take, and what does channels_last buy?

Run: python benchmarks/training.py [--repeats 10]
One training step (forward, cross entropy, backward, clipping, SGD) at 32 x 32, batch 128.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import median_ms, median_ratio, print_table, spread_ms, time_interleaved, write_results

from sfumato.models import resnet

BATCH = 128
NETS = {"resnet-8, width 16": (8, 16), "resnet-18, width 16": (18, 16)}


def training_step(depth: int, width: int, layout: torch.memory_format) -> Callable[[], None]:
    model = resnet(depth, num_classes=10, width=width).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=layout)
    labels = torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    rows = []
    for name, (depth, width) in NETS.items():
        calls = {
            "contiguous": training_step(depth, width, torch.contiguous_format),
            "channels_last": training_step(depth, width, torch.channels_last),
        }
        seconds = time_interleaved(calls, repeats=arguments.repeats)
        for layout, times in seconds.items():
            rows.append(
                {
                    "net": name,
                    "layout": layout,
                    "ms per step": median_ms(times),
                    "IQR ms": spread_ms(times),
                    "images/s": BATCH / (median_ms(times) / 1e3),
                    "speed-up": 1 / median_ratio(times, seconds["contiguous"]),
                }
            )
    print_table(rows)
    print(f"written to {write_results('training', rows).name}")


if __name__ == "__main__":
    main()
