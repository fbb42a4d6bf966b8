"""How fast does the built-in world render?

Run: python benchmarks/scenes.py [--repeats 7] [--threads 1]
Claim: at least 3,000 images per second at 32 x 32 on one core, everything included (parameters,
pixels, noise, masks, boxes). Beside it the same number of pixels from `torch.randn` in the same
run, which is what the machine can do at that moment: "randn" counts in those.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from harness import median_ratio, print_table, time_interleaved, write_results

from sfumato.data import scenes

CASES: dict[str, tuple[int, int, Callable[[int, int], object]]] = {
    "images 16": (2048, 16, lambda count, size: scenes.generate(count, size=size)),
    "images 32": (2048, 32, lambda count, size: scenes.generate(count, size=size)),
    "images 32, no noise": (2048, 32, lambda n, size: scenes.generate(n, size=size, noise=0.0)),
    "images 32, all morphs": (
        2048,
        32,
        lambda count, size: scenes.generate(count, size=size, ambiguity=1.0),
    ),
    "images 64": (512, 64, lambda count, size: scenes.generate(count, size=size)),
    "images 224": (48, 224, lambda count, size: scenes.generate(count, size=size)),
    "video 64, 3 figures": (512, 64, lambda count, size: scenes.stream(count, size=size)),
}


def calls() -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {}
    for name, (count, size, make) in CASES.items():
        calls[name] = lambda count=count, size=size, make=make: make(count, size)  # type: ignore[misc]
        shape = (count, 3, size, size)
        calls[f"randn of {name}"] = lambda shape=shape: torch.randn(shape)  # type: ignore[misc]
    return calls


def rows(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "what": name,
            "images/s": CASES[name][0] / statistics.median(seconds[name]),
            "best images/s": CASES[name][0] / min(seconds[name]),
            "randn": median_ratio(seconds[name], seconds[f"randn of {name}"]),
        }
        for name in CASES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = rows(time_interleaved(calls(), repeats=options.repeats, warmup=1))
    print_table(table)
    print(f"written to {write_results('scenes', table)}")


if __name__ == "__main__":
    main()
