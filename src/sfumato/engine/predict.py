"""The one prediction loop."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import nn

from sfumato.data import TensorLoader
from sfumato.engine.progress import Bar
from sfumato.engine.results import Predictions
from sfumato.engine.together import gather_rows


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
    gathered = [gather_rows(torch.cat(parts), fabric) for parts in (logits, labels, index)]
    order = gathered[2].argsort(stable=True)
    return Predictions(*(part[order].cpu() for part in gathered))
