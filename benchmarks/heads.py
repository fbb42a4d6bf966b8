"""What does a language model's head cost without its logits?

Run: python benchmarks/heads.py [--repeats 5] [--threads 2] [--vocabularies 32768] [--losses acls]
Claims (forward and backward of hidden (4096, 768) with a weight (V, 768), V 32,768 and 131,072, in
float32 and bfloat16, in one run): `LinearHeadLoss` takes at most 1.05 of the time of
`F.cross_entropy(F.linear(...))` for cross entropy, label smoothing, focal loss, MbLS and ACLS; its
peak memory beyond inputs and gradients is at most 8 % of the logits.
Orders alternate from round to round. One thread is measured in processor time, which other work on
the machine does not change by much. `error` is the relative error of the weight's gradient in half
precision.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import print_table, write_results
from losses import peak_bytes
from torch import Tensor
from torch.nn import functional as F

from sfumato.labels import (
    ACLSLoss,
    CrossEntropyLoss,
    FocalLoss,
    LinearHeadLoss,
    MbLSLoss,
)

ENTRIES, WIDTH = 4096, 768
TIME, MEMORY = 1.05, 0.08
LOSSES = {
    "cross entropy": CrossEntropyLoss(),
    "label smoothing": CrossEntropyLoss(smoothing=0.05),
    "focal": FocalLoss(),
    "mbls": MbLSLoss(),
    "acls": ACLSLoss(),
}
STOCK = "F.cross_entropy"
Head = Callable[[Tensor, Tensor, Tensor], Tensor]


def stock(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), target)


def step(head: Head, hidden: Tensor, weight: Tensor, target: Tensor) -> None:
    hidden.grad = weight.grad = None
    head(hidden, weight, target).backward()


def time_in_both_orders(
    calls: dict[str, Callable[[], None]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each call, in turn and in the opposite turn."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for turn in range(repeats):
        for name in calls if turn % 2 == 0 else reversed(calls):
            began = clock()
            calls[name]()
            seconds[name].append(clock() - began)
    return seconds


def error(head: Head, hidden: Tensor, weight: Tensor, target: Tensor, exact: Tensor) -> float:
    """Distance of the weight's gradient from the exact one, relative to its norm."""
    step(head, hidden, weight, target)
    return float((weight.grad.float() - exact).norm() / exact.norm())


def compare(
    vocabulary: int, dtype: torch.dtype, repeats: int, losses: list[str]
) -> list[dict[str, Any]]:
    hidden = torch.randn(ENTRIES, WIDTH).to(dtype).requires_grad_()
    # Logits of standard deviation 5, so that a margin of 10 is exceeded in every row.
    weight = (torch.randn(vocabulary, WIDTH) * 5 / WIDTH**0.5).to(dtype).requires_grad_()
    target = torch.randint(0, vocabulary, (ENTRIES,))
    heads: dict[str, Head] = {STOCK: stock}
    if hasattr(F, "linear_cross_entropy"):  # of PyTorch itself, since 2.13
        chunks = torch.nn.LinearCrossEntropyOptions()
        heads["F.linear_cross_entropy"] = partial(F.linear_cross_entropy, options=chunks)
    heads |= {name: LinearHeadLoss(LOSSES[name]) for name in losses}
    calls = {name: partial(step, head, hidden, weight, target) for name, head in heads.items()}
    seconds = time_in_both_orders(calls, repeats)
    gradients = (hidden.numel() + weight.numel()) * hidden.element_size()
    logits = ENTRIES * vocabulary * hidden.element_size()
    rows = []
    for name, call in calls.items():
        hidden.grad = weight.grad = None
        ratios = [a / b for a, b in zip(seconds[name], seconds[STOCK], strict=True)]
        rows.append(
            {
                "case": f"V = {vocabulary}, {str(dtype).removeprefix('torch.')}",
                "loss": name,
                "minimum s": min(seconds[name]),
                "ratio": statistics.median(ratios),
                "ratio of minima": min(seconds[name]) / min(seconds[STOCK]),
                "at most": TIME if name in LOSSES else None,
                "memory / logits": (peak_bytes(call) - gradients) / logits,
                "memory at most": MEMORY if name in LOSSES else None,
            }
        )
    if dtype != torch.float32:
        wide = [hidden.detach().float(), weight.detach().float().requires_grad_()]
        step(LinearHeadLoss(CrossEntropyLoss()), *wide, target)
        exact = wide[1].grad
        for row in rows:
            if row["loss"] not in LOSSES or row["loss"] == "cross entropy":
                row["error"] = error(heads[row["loss"]], hidden, weight, target, exact)
    return [{**row, "error": row.get("error")} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    for vocabulary in options.vocabularies:
        for dtype in (torch.float32, torch.bfloat16):
            rows += compare(vocabulary, dtype, options.repeats, options.losses)
            print_table([row for row in rows if row["case"] == rows[-1]["case"]])
    print("memory: peak beyond inputs and gradients, as a share of the logits")
    print(f"written to {write_results('heads', rows)}")


if __name__ == "__main__":
    main()
