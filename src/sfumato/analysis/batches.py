"""What every analysis needs of a model and its data: batches, modes, seeds, weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.evaluation_mode import keeping_modes

LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Mode = Literal["sample", "train", "eval"]

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def read_batches(
    loader: Iterable[Any], limit: int | None, device: torch.device | None = None
) -> Iterator[Batch]:
    """(images, target) of the first `limit` batches of a loader, on the model's device.

    A batch is a dict with `image` and `label` (as `sfumato.data.TensorLoader` gives) or a pair.
    """
    if limit is not None:
        check_integer("batches", limit, low=1)
    empty = True
    for batch in islice(iter(loader), limit):
        images, target = _image_and_label(batch)
        yield images.to(device), target.to(device)
        empty = False
    if empty:
        raise ValueError("loader must give at least one batch, got none")


def _image_and_label(batch: Any) -> Batch:
    if isinstance(batch, dict) and {"image", "label"} <= batch.keys():
        return batch["image"], batch["label"]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
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


def device_of(model: nn.Module) -> torch.device | None:
    """Where the model's first parameter is."""
    return next((parameter.device for parameter in model.parameters()), None)


def check_scalar(value: Tensor) -> Tensor:
    """`value`, if it is a scalar tensor."""
    if not isinstance(value, Tensor) or value.ndim != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"loss must return a scalar tensor, got {shape}. Use its mean reduction, and "
            "functools.partial for other parameters."
        )
    return value
