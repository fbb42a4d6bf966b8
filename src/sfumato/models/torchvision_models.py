"""Any torchvision classifier, by its name there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sfumato.models.weights import fit_weights


def torchvision_model(
    name: str,
    *,
    num_classes: int,
    weights: str | None = None,
    image_size: tuple[int, int] | None = None,
) -> nn.Module:
    """Build `torchvision.models.<name>` with `num_classes` outputs.

    Args:
        name: as listed by `torchvision.models.list_models()`.
        num_classes: number of logits; with `weights`, the last layer starts anew where it has
            another size.
        weights: a weights name such as `DEFAULT` or `IMAGENET1K_V2`; asks torchvision to download
            them. None (default) starts from scratch and downloads nothing.
        image_size: height and width of the images, for networks that are built for one size (vision
            transformers, which take squares, and MaxViT). None is torchvision's 224. Positions of
            pretrained transformers are interpolated.

    Raises:
        ValueError: torchvision has no such model or weights, or can't build it for such images.
        ConnectionError: the weights can't be downloaded.

    Example:
        >>> model = torchvision_model("shufflenet_v2_x0_5", num_classes=10)
        >>> model.fc.out_features
        10
    """
    from torchvision import models

    if name not in models.list_models():
        close = difflib.get_close_matches(name, models.list_models(), n=3)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ValueError(
            f"torchvision has no model {name!r}{hint}; torchvision.models.list_models() names "
            "them all"
        )
    sized = _sized(name, image_size)
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **sized)
    except (AssertionError, ValueError) as error:
        raise ValueError(
            f"torchvision can't build {name} for images of {image_size} pixels: {error}. "
            "image_size: 224 in a study enlarges the images"
        ) from error
    if weights is not None:
        state = fetch_weights(name, weights)
        if "image_size" in sized:
            state = _with_positions_for(model, state)
        fit_weights(model, state, f"{weights} of torchvision:{name}")
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


def fetch_weights(name: str, weights: str) -> dict[str, Tensor]:
    """The state dict of torchvision's own network with pretrained weights, downloaded if needed.

    Raises:
        ValueError: no such weights of this model.
        ConnectionError: they can't be downloaded.
    """
    from torchvision import models

    check_weights(name, weights)
    try:
        found: dict[str, Tensor] = models.get_model(name, weights=weights).state_dict()
    except OSError as error:
        raise ConnectionError(
            f"can't fetch the pretrained weights {weights} of torchvision:{name}: {error}. Fetch "
            "them where there is a network and name the file, as weights: FILE.pth, or leave "
            "pretrained out"
        ) from error
    return found


def _sized(name: str, image_size: tuple[int, int] | None) -> dict[str, Any]:
    """The option with which the builders of networks for one size of images take it."""
    from torchvision import models

    family = models.get_model_builder(name).__module__.rpartition(".")[2]
    if image_size is None or family not in ("vision_transformer", "maxvit"):
        return {}
    if family == "maxvit":
        return {"input_size": image_size}
    height, width = image_size
    if height != width:
        raise ValueError(
            f"torchvision:{name} takes square images, got {height} x {width} pixels; "
            "image_size: 224 in a study resizes them"
        )
    return {"image_size": height}


def _with_positions_for(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from torchvision.models.vision_transformer import interpolate_embeddings

    return dict(interpolate_embeddings(model.image_size, model.patch_size, dict(state)))
