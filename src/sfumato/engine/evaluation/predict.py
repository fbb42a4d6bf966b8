"""The one prediction loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfumato._core.evaluation_mode import evaluating
from sfumato.data import Sample, TensorLoader
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Predictions
from sfumato.engine.runs.progress import Bar
from sfumato.engine.training.together import gather_rows

Known = TypeVar("Known")


def predict_batches(
    model: nn.Module,
    batches: Iterable[tuple[Any, Known]],
    take: Callable[[Any, Known], None],
    bar: Bar | None = None,
) -> None:
    """Run batch after batch through a model in evaluation mode, without gradients.

    The results are handed to `take` instead of given back one by one: a generator that nobody
    finishes would leave the model in evaluation mode, and the caller without gradients.

    Args:
        model: left in the modes in which it came, also where something raises.
        batches: what the model takes, and what `take` needs to know beside the output.
        take: is called with the output of each batch and what is known of it.
        bar: is advanced after each batch.
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
