"""Reading the feature maps of any model while batches run through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sfumato.features.stages import find_stages, map_size
from sfumato.features.trace import record

Reader = Callable[[str, Tensor], None]


def stage_ends(model: nn.Module, images: Tensor) -> list[str]:
    """Names of the modules that return the last map of each stage, found by one run.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> stage_ends(resnet18(), torch.zeros(1, 3, 64, 64))
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    names = [stage.module for stage in find_stages(record(model, images[:1]))]
    if not names:
        raise ValueError(
            f"modules: {type(model).__name__} has no stages that end in feature maps; name the "
            "modules whose outputs are to be examined"
        )
    return names


def stage_blocks(model: nn.Module, images: Tensor) -> list[str]:
    """Names of the blocks and smoothing layers inside the stages, in the order of the network.

    A stage that is a sequence gives its parts, any other stage itself.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> stage_blocks(resnet18(), torch.zeros(1, 3, 64, 64))[:3]
        ['layer1.0', 'layer1.1', 'layer2.0']
    """
    names: list[str] = []
    for stage in stage_ends(model, images):
        module = model.get_submodule(stage)
        parts = [name for name, _ in module.named_children()]
        whole = not isinstance(module, nn.Sequential) or not parts
        names += [stage] if whole else [f"{stage}.{part}" for part in parts]
    return names


@contextmanager
def tapped(
    model: nn.Module, names: Sequence[str], images: Tensor, reader: Reader
) -> Iterator[None]:
    """Calls `reader(name, map)` with each named module's output (N, C, H, W) as it is made.

    The map is read inside the forward pass, before a later layer may overwrite it in place.
    """
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown or not names:
        near = [name for name in modules if name][:20]
        raise ValueError(f"modules must name modules of the model, such as {near}; got {unknown}")
    handles = [modules[name].register_forward_hook(_hook(name, images, reader)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, images: Tensor, reader: Reader) -> Callable[[nn.Module, Any, Any], None]:
    def read(module: nn.Module, inputs: Any, output: Any) -> None:
        size = map_size(output.shape, images.shape) if isinstance(output, Tensor) else None
        if size is None:
            shape = tuple(getattr(output, "shape", ()))
            raise ValueError(
                f"modules names {name!r}, which does not return a feature map (N, C, H, W) but "
                f"{type(output).__name__} {shape}"
            )
        reader(name, output.movedim(-1, 1) if size.channels_last else output)

    return read
