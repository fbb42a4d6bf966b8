"""Batches, modes, seeds and weights: what every analysis needs of a model and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.evaluation_mode import keeping_modes, with_attribute

LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Mode = Literal["sample", "train", "eval"]
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def read_batches(model: nn.Module, loader: Iterable[Any], limit: int | None) -> Iterator[Batch]:
    """(images, target) of the first `limit` batches of a loader, on the model's device.

    A batch is a dict with `image` and `label` (as `sfumato.data.TensorLoader` gives) or a pair.
    """
    if limit is not None:
        check_integer("batches", limit, low=1)
    device = next((parameter.device for parameter in model.parameters()), None)
    empty = True
    for batch in islice(iter(loader), limit):
        images, target = _image_and_label(batch)
        yield images.to(device), target.to(device)
        empty = False
    if empty:
        raise ValueError("loader must give at least one batch, got none")


class HeldBatches:
    """Batches to go over again and again: those of `read_batches`, in memory where limited."""

    def __init__(self, model: nn.Module, loader: Iterable[Any], limit: int | None) -> None:
        self.model, self.loader = model, loader
        self.held = None if limit is None else list(read_batches(model, loader, limit))

    def __iter__(self) -> Iterator[Batch]:
        if self.held is not None:
            return iter(self.held)
        return read_batches(self.model, self.loader, None)


def _image_and_label(batch: Any) -> Batch:
    if isinstance(batch, dict) and {"image", "label"} <= batch.keys():
        return batch["image"], batch["label"]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return (*batch,)
    kind = f"a dict of {sorted(batch)}" if isinstance(batch, dict) else type(batch).__name__
    raise TypeError(
        f"loader must give dicts with 'image' and 'label' or pairs (images, target), got {kind}"
    )


@contextmanager
def running(model: nn.Module, mode: Mode) -> Iterator[None]:
    """`model` in a mode; afterwards every module has its own mode and buffers again.

    `sample` is what the paper's Bayesian networks do at test time: everything random is on,
    normalisation uses its running statistics. `train` is what the optimiser sees.
    """
    check_choice("mode", mode, get_args(Mode))
    # `train` moves running statistics, which the analysis must not leave behind.
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with keeping_modes(model):
        model.train(mode != "eval")
        for module in model.modules():
            if mode == "sample" and isinstance(module, _NORMS):
                module.eval()
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.data.copy_(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers (dropout masks) from `seed`; the global state is as before afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are optimised, by name."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError(
            "model must have parameters that require gradients, got none; call "
            "model.requires_grad_(True) first"
        )
    return found


def check_scalar(value: Tensor) -> Tensor:
    """`value`, if it is a scalar tensor."""
    if not isinstance(value, Tensor) or value.ndim != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"loss must return a scalar tensor, got {shape}. Use its mean reduction, and "
            "functools.partial for other parameters."
        )
    return value


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
    norms = {name: each for name, each in model.named_modules() if isinstance(each, _NORMS[0])}
    statistics = {
        name: torch.ones_like(buffer) if name.endswith("running_var") else torch.zeros_like(buffer)
        for layer, module in norms.items()
        for name, buffer in module.named_buffers(prefix=layer)
    }
    # Without a momentum, batch norm updates its statistics by plain averages.
    changed = with_attribute([*norms.values()], "momentum", None)
    with torch.no_grad(), keeping_modes(model), changed:
        for module in norms.values():
            module.train()
        for images, _ in batches:
            functional_call(model, {**weights, **statistics}, (images,))
    return statistics
