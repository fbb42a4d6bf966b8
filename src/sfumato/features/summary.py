"""Where the smoothing and dropout layers of a model are."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sfumato._core.evaluation_mode import evaluating
from sfumato.features.smoothing import Smooth


def model_summary(model: nn.Module, example_input: Tensor | None = None) -> str:
    """A table of the `Smooth` and dropout layers of a model, in the order of its modules.

    Args:
        model: any model.
        example_input: images (N, C, H, W); with them the table also shows the maps that arrive.

    Returns:
        The table as text, to be printed.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from sfumato.features import add_smoothing
        >>> images = torch.zeros(1, 3, 64, 64)
        >>> print(model_summary(add_smoothing(resnet18(), images, where=(1, 3)), images))
        ResNet: 2 Smooth layers, 0 dropout layers
        layer1.smooth  Smooth (1, 1) tanh 10 zeros  (64, 16, 16)
        layer3.smooth  Smooth (1, 1) tanh 10 zeros  (256, 4, 4)
    """
    layers = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, Smooth) or (isinstance(part, nn.Dropout) and part.p > 0)
    ]
    smooths = sum(isinstance(part, Smooth) for _, part in layers)
    maps = {} if example_input is None else _maps(model, dict(layers), example_input)
    rows = [(name, _describe(part), maps.get(name, "")) for name, part in layers]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
    dropouts = len(layers) - smooths
    title = f"{type(model).__name__}: {smooths} Smooth layers, {dropouts} dropout layers"
    return "\n".join([title, *lines])


def _describe(layer: nn.Module) -> str:
    if isinstance(layer, nn.Dropout):
        return f"Dropout {layer.p:g}"
    assert isinstance(layer, Smooth)
    prob, blur = layer.prob, layer.blur
    tau = f" {prob.temperature:g}" if prob.kind in ("tanh", "scale") else ""
    return f"Smooth {blur.kernel} {prob.kind}{tau} {blur.padding}"


def _maps(model: nn.Module, layers: dict[str, nn.Module], images: Tensor) -> dict[str, str]:
    """Shapes of what the layers are given, without the batch."""
    shapes: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            shapes[name] = str(tuple(args[0].shape[1:]))

        return hook

    handles = [part.register_forward_pre_hook(note(name)) for name, part in layers.items()]
    try:
        with evaluating(model):
            model(images[:1])
    finally:
        for handle in handles:
            handle.remove()
    return shapes
