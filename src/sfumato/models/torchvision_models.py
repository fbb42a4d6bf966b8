"""Any torchvision classifier, by its name there."""

from __future__ import annotations

from torch import nn


def torchvision_model(name: str, *, num_classes: int, weights: str | None = None) -> nn.Module:
    """Build `torchvision.models.<name>` with `num_classes` outputs.

    Args:
        name: as listed by `torchvision.models.list_models()`.
        num_classes: number of logits; with `weights`, the last linear layer is replaced where it
            has another size.
        weights: a weights name such as `DEFAULT` or `IMAGENET1K_V2`; asks torchvision to download
            them. None (default) starts from scratch and downloads nothing.

    Raises:
        ValueError: torchvision has no such model or weights, or the model has no linear layer to
            replace.

    Example:
        >>> model = torchvision_model("shufflenet_v2_x0_5", num_classes=10)
        >>> model.fc.out_features
        10
    """
    from torchvision import models

    if name not in models.list_models():
        raise ValueError(
            f"torchvision has no model {name!r}; torchvision.models.list_models() names them all"
        )
    if weights is None:
        return models.get_model(name, weights=None, num_classes=num_classes)
    check_weights(name, weights)
    model = models.get_model(name, weights=weights)
    _replace_last_linear(model, num_classes)
    return model


def check_weights(name: str, weights: str) -> None:
    """Raise unless torchvision knows pretrained weights of this name; fetches nothing.

    Example:
        >>> check_weights("resnet18", "IMAGENET1K_V1")

    Raises:
        ValueError: no such weights of this model, or no such model.
    """
    from torchvision import models

    known = models.get_model_weights(name)
    if weights.removeprefix(f"{known.__name__}.") not in known.__members__:
        choices = ", ".join(known.__members__)
        raise ValueError(f"torchvision has no weights {weights!r} of {name}; it has {choices}")


def _replace_last_linear(model: nn.Module, num_classes: int) -> None:
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to fit to {num_classes} classes"
        )
    name, last = linear[-1]
    if last.out_features != num_classes:
        parent, _, child = name.rpartition(".")
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
        setattr(model.get_submodule(parent), child, fresh)
