"""What scores of strange inputs cost: the nearest of 50,000 features, and scores beside a pass.

Run: python benchmarks/ood.py [--repeats 5] [--threads 1] [--images 50000]
Claims: the 50 nearest among 50,000 x 512 in at most 1.2 times what one writes by hand in PyTorch
(`cdist` and top-k, or a product and top-k); scores take no pass of their own. faiss's exact search
stands beside it where it is installed. Ratios are medians of ratios within a round.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor
from torch.nn import functional as F

from sfumato.models import HeadFeatures, resnet
from sfumato.predictions import NeighbourDistance, energy_score, maximum_probability_score

NEIGHBOURS, WIDTH, ASKED = 50, 512, 256
Call = Callable[[], object]


def searches(images: int) -> dict[str, Call]:
    """Ours first; the others search the same normalised features."""
    bank, asked = torch.randn(images, WIDTH), torch.randn(ASKED, WIDTH)
    ours = NeighbourDistance(NEIGHBOURS).fit(bank)
    unit = F.normalize(bank)

    def by_distance() -> Tensor:
        return torch.cdist(F.normalize(asked), unit).topk(NEIGHBOURS, largest=False).values[:, -1]

    def by_product() -> Tensor:
        return (F.normalize(asked) @ unit.T).topk(NEIGHBOURS).values[:, -1]

    found: dict[str, Call] = {
        "NeighbourDistance": partial(ours.score, asked),
        "cdist, top-k": by_distance,
        "product, top-k": by_product,
    }
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatL2(WIDTH)
        index.add(unit.numpy())
        found["faiss, exact"] = lambda: index.search(F.normalize(asked).numpy(), NEIGHBOURS)
    return found


def passes() -> dict[str, Call]:
    """A prediction with its scores and features, and the prediction alone."""
    network = resnet(8, num_classes=10, width=16).eval()
    images = torch.rand(128, 3, 32, 32).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def scored() -> tuple[Tensor, Tensor, Tensor]:
        with HeadFeatures(network) as head:
            logits = network(images)
        return energy_score(logits), maximum_probability_score(logits), head.taken[0]

    @torch.inference_mode()
    def alone() -> Tensor:
        return network(images)

    return {"pass with scores and features": scored, "pass": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for calls in (searches(options.images), passes()):
        seconds = time_interleaved(calls, repeats=options.repeats, warmup=1)
        ours, *others = calls
        rows += [
            {
                "ours": ours,
                "against": other,
                "ms": median_ms(seconds[ours]),
                "ratio": median_ratio(seconds[ours], seconds[other]),
            }
            for other in others
        ]
    print_table(rows)
    write_results("ood", rows)


if __name__ == "__main__":
    main()
