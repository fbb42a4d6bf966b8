"""The one prediction loop."""

from __future__ import annotations

from typing import cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sfumato.data import TensorLoader
from sfumato.engine.progress import Bar
from sfumato.engine.results import Predictions


@torch.no_grad()
def predict(model: nn.Module, loader: TensorLoader, fabric: Fabric, bar: Bar) -> Predictions:
    """Logits of every sample in the loader's data set, gathered from all processes.

    The model is left in the mode (training or evaluation) in which it came.
    """
    training = model.training
    model.eval()
    logits, labels, index = [], [], []
    for batch in loader:
        logits.append(model(batch["image"]).float())
        labels.append(batch["label"])
        index.append(batch["index"])
        bar.advance()
    model.train(training)
    gathered = [_gather(torch.cat(parts), fabric) for parts in (logits, labels, index)]
    order = gathered[2].argsort(stable=True)
    return Predictions(*(part[order].cpu() for part in gathered))


def _gather(part: Tensor, fabric: Fabric) -> Tensor:
    """Concatenate the parts of all processes, which may differ in length."""
    if fabric.world_size == 1:
        return part
    lengths = _all_gather(torch.tensor(len(part), device=part.device), fabric).tolist()
    padded = part.new_zeros((max(lengths), *part.shape[1:]))
    padded[: len(part)] = part
    parts = _all_gather(padded, fabric)
    return torch.cat([parts[rank, :length] for rank, length in enumerate(lengths)])


def _all_gather(part: Tensor, fabric: Fabric) -> Tensor:
    return cast(Tensor, fabric.all_gather(part))
