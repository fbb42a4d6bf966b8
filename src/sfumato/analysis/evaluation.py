"""The loss of a network at weights that it does not have, over a whole loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato._core.evaluation_mode import keeping_modes
from sfumato.analysis.batches import Batch, LossFunction, check_scalar

_BatchNorm = nn.modules.batchnorm._BatchNorm


def mean_loss(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Iterable[Batch], loss: LossFunction
) -> float:
    """Mean of `loss` over all samples, with `weights` (parameters, buffers) in the model's place.

    Neither the model's parameters nor its buffers change.
    """
    total, count = 0.0, 0
    with torch.no_grad():
        state = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for images, target in batches:
            logits = functional_call(model, {**state, **weights}, (images,))
            total += float(check_scalar(loss(logits, target))) * len(images)
            count += len(images)
    return total / count


def estimate_statistics(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Iterable[Batch]
) -> dict[str, Tensor]:
    """Batch-norm statistics at other weights: means over one pass over the batches, by name."""
    statistics = {
        name: torch.ones_like(buffer) if name.endswith("running_var") else torch.zeros_like(buffer)
        for layer, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name, buffer in module.named_buffers(prefix=layer)
    }
    with torch.no_grad(), _averaging(model):
        for images, _ in batches:
            functional_call(model, {**weights, **statistics}, (images,))
    return statistics


@contextmanager
def _averaging(model: nn.Module) -> Iterator[None]:
    """Batch norm updates its statistics by plain averages."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [module.momentum for module in norms]
    with keeping_modes(model):
        for module in norms:
            module.momentum = None
            module.train()
        try:
            yield
        finally:
            for module, momentum in zip(norms, before, strict=True):
                module.momentum = momentum
