"""What does a loss cost beside `F.cross_entropy`?

Run: python benchmarks/losses.py [--repeats 30] [--threads 2] [--compile] [--newer] [--device cuda]
Claims (forward and backward, float32, 2 threads, ratio to `F.cross_entropy` with the same kind of
target in the same run): at most 1 for label smoothing, focal, FLSD, ECP, MbLS and ACLS on
(4096, 1000) and on (4, 21, 256, 256), with class indices, soft targets or class weights; at most
1.5 for MDCA, and for MMCE and CRL; at most 1.2 for the losses that came after the papers, with the
state that they learn. On (128, 10) at most 150 microseconds more than it. CPC on
(256, 1000) without a tensor of N C^2 numbers. Peak memory beyond the logits and their gradient: at
most one more tensor of their size for MbLS and ACLS.
Logits have standard deviation 5, so that the margin of 10 is exceeded in every row. Beside them the
equations of MbLS and ACLS by stock autograd (`--compile`: ACLS by torch.compile too), maps in
channels-last order, and logits of standard deviation 1, which stay within the margin. The losses
are those of the table of parts; one without a claim is measured all the same. `--newer` measures
only the losses after the papers, as modules in training and in processor time of one thread, which
other work on the machine does not change by much. `--device cuda` measures the passes of a GPU on
(4096, 1000), (4096, 32768) and (4, 21, 256, 256), and prints the table with the name of the GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sfumato import labels
from sfumato.engine.config.components import components

Row = dict[str, Any]
Call = Callable[[Tensor, Tensor], Tensor]
Losses = dict[str, tuple[Call, float | None]]
STOCK = "F.cross_entropy"
LIMITS = {
    **dict.fromkeys(("cross_entropy", "focal", "flsd", "ecp", "mbls", "acls", "maxsup"), 1.0),
    **dict.fromkeys(("mdca", "mmce", "crl"), 1.5),
    **dict.fromkeys(("dual_focal", "bsce", "adafocal", "nacl", "cals"), 1.2),
    "online_label_smoothing": 1.2,
}
NEWER = ("maxsup", "dual_focal", "bsce", "adafocal", "nacl", "cals", "online_label_smoothing")
# What is compared for soft targets, class weights and small batches.
CHOSEN = ("cross_entropy", "label smoothing", "focal", "flsd", "ecp", "mbls", "acls", "mdca")

ON_GPU = ("cross_entropy", "focal", "flsd", "ecp", "mbls", "acls")


def autograd_mbls(logits: Tensor, target: Tensor) -> Tensor:
    distance = logits.amax(1, keepdim=True) - logits
    return F.cross_entropy(logits, target) + 0.1 * F.relu(distance - 10.0).mean()


def autograd_acls(logits: Tensor, target: Tensor) -> Tensor:
    top, low = logits.amax(1, keepdim=True), logits.amin(1, keepdim=True)
    predicted = F.relu(top - low - 10.0).square().mean()
    others = F.relu(top.detach() - logits - 10.0).square().mean()
    factor = logits.shape[1] / (logits.shape[1] - 1)
    return F.cross_entropy(logits, target) + 0.1 * predicted + 0.01 * factor * others


def given_history(loss: Callable[..., Tensor], known: Tensor) -> Call:
    """The function of a loss that remembers each sample, with numbers that it could remember."""
    return lambda logits, target: loss(logits, target, known)


def learnt(classes: int) -> dict[str, dict[str, Tensor]]:
    """What some losses have learnt after some epochs."""
    return {
        "adafocal": {"gammas": torch.linspace(-1.0, 4.0, 15), "edges": torch.arange(1, 15) / 15},
        "cals": {"multipliers": torch.rand(classes) / 2},
        "online_label_smoothing": {"soft_labels": torch.randn(classes, classes).softmax(1)},
    }


def newer_losses(classes: int) -> Losses:
    """The losses after the papers as modules in training, with what they have learnt."""
    found: Losses = {STOCK: (F.cross_entropy, None)}
    for name in ("cross_entropy", *NEWER):
        part = components("loss")[name]
        supplied = {"num_classes": classes, "epochs": 100}
        loss = part.build(**{key: value for key, value in supplied.items() if part.takes(key)})
        for buffer, values in learnt(classes).get(name, {}).items():
            loss.get_buffer(buffer).copy_(values)
        found[name] = (loss, LIMITS[name])
    return found


def table_losses(entries: tuple[int, ...], classes: int) -> dict[str, Call]:
    """Every loss of the table of parts by its function `NAME_loss`."""
    known, states = torch.rand(entries), learnt(classes)
    found: dict[str, Call] = {}
    for name, part in components("loss").items():
        if part.is_composite:
            continue
        loss = partial(getattr(labels, f"{name}_loss"), **states.get(name, {}))
        found[name] = given_history(loss, known) if part.remembers_samples({}) else loss
    return found


def fast_losses(entries: tuple[int, ...], classes: int) -> Losses:
    """Each loss with the ratio it must not exceed."""
    table = table_losses(entries, classes)
    del table["cpc"]  # takes C^2 operations an entry: measured on its own
    return {
        STOCK: (F.cross_entropy, None),
        **{name: (loss, LIMITS.get(name)) for name, loss in table.items()},
        "label smoothing": (partial(labels.cross_entropy_loss, smoothing=0.05), 1.0),
        "acls, gradient": (partial(labels.acls_loss, form="gradient"), 1.0),
        "acls, released": (partial(labels.acls_loss, form="released"), 1.0),
        "mbls by autograd": (autograd_mbls, None),
        "acls by autograd": (autograd_acls, None),
    }


def chosen_losses(entries: tuple[int, ...], classes: int, *leave_out: str) -> Losses:
    """Those of single entries and MDCA, beside `F.cross_entropy`."""
    table = fast_losses(entries, classes)
    return {name: table[name] for name in (STOCK, *CHOSEN) if name not in leave_out}


def weighted_losses(entries: tuple[int, ...], classes: int) -> Losses:
    """The same with class weights, where a loss takes them."""
    weight = torch.rand(classes) + 0.5
    table = chosen_losses(entries, classes, "mdca")
    found = {
        name: (partial(loss, class_weight=weight), limit) for name, (loss, limit) in table.items()
    }
    found[STOCK] = (partial(F.cross_entropy, weight=weight), None)
    return found


def margin_losses() -> Losses:
    """The losses that have less to do where no margin is exceeded."""
    return {
        STOCK: (F.cross_entropy, None),
        "mbls": (labels.mbls_loss, 1.0),
        "acls": (labels.acls_loss, 1.0),
        "mbls by autograd": (autograd_mbls, None),
        "acls by autograd": (autograd_acls, None),
    }


def peak_bytes(call: Callable[[], object]) -> int:
    """Most that is allocated at a time during the call."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def compare(
    case: str,
    logits: Tensor,
    losses: Losses,
    repeats: int,
    *,
    is_soft: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """Forward and backward of every loss on the same logits."""
    entries = logits.shape[:1] + logits.shape[2:]
    target = torch.randint(0, logits.shape[1], entries).to(logits.device)
    if is_soft:
        target = torch.randn_like(logits).softmax(1)
    logits.requires_grad_()

    def step(loss: Call) -> None:
        logits.grad = None
        loss(logits, target).backward()
        if logits.is_cuda:
            torch.cuda.synchronize()

    seconds = time_interleaved(
        {name: partial(step, loss) for name, (loss, _) in losses.items()},
        repeats=repeats,
        clock=clock,
    )
    base = seconds[STOCK]
    rows = []
    for name, (loss, limit) in losses.items():
        logits.grad = None
        peak = peak_bytes(partial(step, loss)) / (logits.numel() * logits.element_size())
        rows.append(
            {
                "case": case,
                "loss": name,
                "median ms": median_ms(seconds[name]),
                "minimum ms": 1e3 * min(seconds[name]),
                "ratio": median_ratio(seconds[name], base),
                "ratio of minima": min(seconds[name]) / min(base),
                "at most": limit,
                "microseconds more": 1e6 * (min(seconds[name]) - min(base)),
                "extra memory": peak - 1.0,
            }
        )
    return rows


def compare_newer(shapes: tuple[tuple[int, ...], ...], repeats: int) -> None:
    rows: list[Row] = []
    for shape in shapes:
        logits, losses = 5 * torch.randn(shape), newer_losses(shape[1])
        rows += compare(str(shape), logits, losses, repeats, clock=time.thread_time)
    print_table(rows)
    print(f"written to {write_results('newer_losses', rows)}")


def compare_on_gpu(device: str, repeats: int) -> None:
    """Rows, a vocabulary and maps on a GPU, and what is beside them."""
    rows: list[Row] = []
    for shape in ((4096, 1000), (4096, 32768), (4, 21, 256, 256)):
        logits = 5 * torch.randn(shape, device=device)
        losses: Losses = {
            STOCK: (F.cross_entropy, None),
            **{name: (getattr(labels, f"{name}_loss"), 1.0) for name in ON_GPU},
            "label smoothing": (partial(labels.cross_entropy_loss, smoothing=0.05), 1.0),
            "acls by autograd": (autograd_acls, None),
            "acls by torch.compile": (torch.compile(autograd_acls), None),
        }
        rows += compare(f"{shape} {device}", logits, losses, repeats)
    print(f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}")
    print_table(rows)
    print(f"written to {write_results('losses_gpu', rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--newer", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.newer else options.threads)
    torch.manual_seed(0)
    images, maps = (4096, 1000), (4, 21, 256, 256)
    entries = maps[:1] + maps[2:]
    repeats = options.repeats
    if options.device != "cpu":
        if not torch.cuda.is_available():
            parser.error(f"--device {options.device} needs a GPU that PyTorch can use")
        compare_on_gpu(options.device, repeats)
        return
    if options.newer:
        compare_newer((images, maps), repeats)
        return
    fast = fast_losses(images[:1], images[1])
    if options.compile:
        fast["acls by torch.compile"] = (torch.compile(autograd_acls), None)
    rows = compare("(4096, 1000)", 5 * torch.randn(images), fast, repeats)
    rows += compare(
        "(4, 21, 256, 256)", 5 * torch.randn(maps), fast_losses(entries, maps[1]), repeats
    )
    last = (5 * torch.randn(maps)).to(memory_format=torch.channels_last)
    rows += compare("(4, 21, 256, 256) channels last", last, fast_losses(entries, maps[1]), repeats)
    rows += compare("(4096, 1000) within margin", torch.randn(images), margin_losses(), repeats)
    rows += compare("(4, 21, 256, 256) within margin", torch.randn(maps), margin_losses(), repeats)
    for shape in (images, maps):
        each = shape[:1] + shape[2:]
        soft = chosen_losses(each, shape[1], "focal", "flsd")
        rows += compare(f"{shape} soft", 5 * torch.randn(shape), soft, repeats, is_soft=True)
        weighted = weighted_losses(each, shape[1])
        rows += compare(f"{shape} weighted", 5 * torch.randn(shape), weighted, repeats)
    for shape in ((128, 10), (256, 1000)):
        few = chosen_losses(shape[:1], shape[1])
        rows += compare(str(shape), 5 * torch.randn(shape), few, 20 * repeats)
    pairs: Losses = {
        STOCK: (F.cross_entropy, None),
        "cpc": (labels.cpc_loss, None),
    }
    rows += compare("(256, 1000) pairs", 5 * torch.randn(256, 1000), pairs, min(repeats, 5))
    print_table(rows)
    print("extra memory: peak beyond logits and gradient, in tensors of the size of the logits")
    print(f"written to {write_results('losses', rows)}")


if __name__ == "__main__":
    main()
