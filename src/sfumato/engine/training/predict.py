"""The one prediction loop, and rows and sums gathered from several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from sfumato._core.evaluation_mode import evaluating
from sfumato._core.text import Bar
from sfumato.augment import Sample
from sfumato.data import TensorLoader
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Predictions


def gather_rows(part: Tensor, fabric: Fabric, lengths: Sequence[int] | None = None) -> Tensor:
    """Concatenate the rows of all processes, which may differ in number; without gradients."""
    if fabric.world_size == 1:
        return part
    # Known lengths save asking all processes.
    if lengths is None:
        own = torch.tensor(len(part), device=part.device)
        lengths = cast(Tensor, fabric.all_gather(own)).tolist()
    # Processes can only exchange tensors of one shape.
    padded = part.new_zeros((max(lengths), *part.shape[1:]))
    padded[: len(part)] = part
    parts = cast(Tensor, fabric.all_gather(padded))
    return torch.cat([parts[rank, :length] for rank, length in enumerate(lengths)])


def sum_over_processes(part: Tensor, fabric: Fabric) -> Tensor:
    """Add up the tensors of all processes; a single one's stays where it is, maybe in float64."""
    if fabric.world_size == 1:
        return part
    return cast(Tensor, fabric.all_reduce(part, reduce_op="sum"))


def gather_around(part: Tensor, fabric: Fabric, lengths: Sequence[int]) -> Tensor:
    """`gather_rows` in which the rows of this process keep their gradient.

    A loss of the result, times the number of processes, has after DDP's mean the gradient of one
    process with all rows.
    """
    rows = list(gather_rows(part.detach(), fabric, lengths).split(list(lengths)))
    rows[fabric.global_rank] = part
    return torch.cat(rows)


Known = TypeVar("Known")


def predict_batches(
    model: nn.Module,
    batches: Iterable[tuple[Any, Known]],
    take: Callable[[Any, Known], None],
    bar: Bar | None = None,
) -> None:
    """Run batch after batch through a model in evaluation mode, without gradients.

    `take` gets the results: a generator that nobody finishes would leave these modes on.
    """
    with evaluating(model):
        for inputs, known in batches:
            take(model(inputs), known)
            if bar is not None:
                bar.advance()


def predict_here(model: nn.Module, batches: Iterable[Sample], bar: Bar) -> Predictions:
    """Logits of every sample of this process, on its device, in the order of the batches."""
    rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def take(logits: Tensor, batch: Sample) -> None:
        rows.append((logits.float(), batch["label"], batch["index"]))

    predict_batches(model, ((batch["image"], batch) for batch in batches), take, bar)
    return Predictions(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def predict(model: nn.Module, loader: TensorLoader, fabric: Fabric, bar: Bar) -> Predictions:
    """Logits of every sample in the loader's data set, gathered from all processes, on the CPU."""
    here = predict_here(model, loader, bar)
    gathered = [gather_rows(part, fabric) for part in (here.logits, here.labels, here.index)]
    order = gathered[2].argsort(stable=True)
    return Predictions(*(part[order].cpu() for part in gathered))
