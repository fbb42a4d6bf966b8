"""What does damaging a batch cost, against one forward pass of a small ResNet?

Run: python benchmarks/corruptions.py [--repeats 7] [--threads 1] [--batch 128]
Claims, at 32 x 32: the mean cost over the 15 types is at most one forward pass of a ResNet-18 of
width 16 (evaluation mode, channels last) on the same batch, and no type costs more than five.
Beside them the released generators, which work on one image at a time: the fastest milliseconds
measured for each on a shared 2.8 GHz core, mean over the severities, times the batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor
from torch.nn import functional as F

from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from sfumato.models import resnet

SIZE = 32
RELEASED_MS_PER_IMAGE = {
    "gaussian_noise": 0.112,
    "shot_noise": 0.277,
    "impulse_noise": 0.165,
    "defocus_blur": 0.259,
    "glass_blur": 13.876,
    "motion_blur": 1.403,
    "zoom_blur": 3.213,
    "snow": 1.848,
    "frost": 5.254,
    "fog": 0.481,
    "brightness": 0.438,
    "contrast": 0.067,
    "elastic_transform": 0.568,
    "pixelate": 0.033,
    "jpeg_compression": 0.146,
    "speckle_noise": 0.102,
    "gaussian_blur": 0.118,
    "spatter": 0.303,
    "saturate": 0.442,
}


def images(count: int) -> Tensor:
    """Smooth colours with some grain: noise alone would be easy for none and hard for JPEG."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=generator)
    smooth = F.interpolate(coarse, (SIZE, SIZE), mode="bicubic")
    grain = 0.05 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return (smooth + grain).clamp(0, 1).mul(255).to(torch.uint8)


def calls(batch: int) -> dict[str, Callable[[], object]]:
    clean = images(batch)
    model = resnet(18, num_classes=10, width=16).eval().to(memory_format=torch.channels_last)
    inputs = (clean.float() / 255).to(memory_format=torch.channels_last)

    def forward() -> Tensor:
        with torch.no_grad():
            output: Tensor = model(inputs)
        return output

    def damage(name: str, severity: int) -> Callable[[], object]:
        return lambda: corrupt(clean, name, severity)

    return {"forward": forward} | {
        f"{name} {severity}": damage(name, severity)
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        for severity in SEVERITIES
    }


def rows(seconds: dict[str, list[float]], batch: int) -> list[dict[str, Any]]:
    base = seconds["forward"]
    table: list[dict[str, Any]] = [
        {"what": "forward pass", "ms": median_ms(base), "fastest ms": 1e3 * min(base)}
    ]
    for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
        cells = [seconds[f"{name} {severity}"] for severity in SEVERITIES]
        mean = [sum(values) / len(values) for values in zip(*cells, strict=True)]
        table.append(
            {
                "what": name,
                "ms": median_ms(mean),
                "fastest ms": 1e3 * min(mean),
                "forward passes": median_ratio(mean, base),
                "at worst severity": max(median_ratio(cell, base) for cell in cells),
                "released ms": batch * RELEASED_MS_PER_IMAGE[name],
            }
        )
    main = [row for row in table if row["what"] in CORRUPTIONS]
    average = {key: sum(row[key] for row in main) / len(main) for key in main[0] if key != "what"}
    return [*table, {"what": "mean of the 15", **average}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds = time_interleaved(calls(options.batch), repeats=options.repeats, warmup=1)
    table = rows(seconds, options.batch)
    print_table([{key: row.get(key, "") for key in table[1]} for row in table])
    print(f"written to {write_results('corruptions', table)}")


if __name__ == "__main__":
    main()
