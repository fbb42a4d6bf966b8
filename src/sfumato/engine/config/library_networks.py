"""Networks of other libraries as a study names them: `torchvision:resnet50`, `timm:vit_tiny`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.evaluation_mode import evaluating
from sfumato.features import add_blur_pool, add_dropout, add_smoothing
from sfumato.features.insert import insert_before
from sfumato.models import (
    SmoothOptions,
    is_segmentation_model,
    timm_model,
    torchvision_model,
    torchvision_segmentation,
)
from sfumato.models.timm_models import check_timm_weights
from sfumato.models.torchvision_models import check_weights
from sfumato.models.torchvision_segmentation import backbone_of

SmoothStages = list[int] | list[str] | None


class Resize(nn.Module):
    """Images to the size that a network is made for, bilinear, smoothed where they shrink."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        size = (self.size, self.size)
        return F.interpolate(images, size, mode="bilinear", antialias=True)


def torchvision_network(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    data_size: tuple[int, int],
    image_size: int | None = None,
    pretrained: bool | str | None = None,
    smooth: bool | SmoothOptions = False,
    smooth_stages: SmoothStages = None,
    dropout: float = 0.0,
    blur_pool: bool | Literal["adaptive"] | None = None,
    weights_backbone: bool | str | None = None,
) -> nn.Module:
    """Any classifier or segmentation network of torchvision, smoothed and with dropout on demand.

    Args:
        name: as in `torchvision.models`.
        num_classes: number of logits.
        in_channels: must be 3.
        data_size: height and width of the data's images.
        image_size: resize the images to such squares first.
        pretrained: download torchvision's weights: True for the best ones, or their name.
        smooth: whether to insert smoothing layers; a mapping says at which stages and how.
        smooth_stages: as `stages` of the mapping, or names of modules; all stages if None.
        dropout: rate of the dropout to insert.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `add_blur_pool`.
        weights_backbone: of a segmentation network, download the weights of the classifier that it
            is built on: True for the best ones, or their name.
    """
    if in_channels != 3:
        raise ValueError(f"torchvision models take 3 channels, the data has {in_channels}")
    size = _size(data_size, image_size)
    weights = _weights_name(pretrained)
    if is_segmentation_model(name):
        if image_size is not None:
            raise ValueError(
                f"image_size is for classifiers; torchvision:{name} labels the pixels of the data"
            )
        model: nn.Module = torchvision_segmentation(
            name,
            num_classes=num_classes,
            weights=weights,
            weights_backbone=_weights_name(weights_backbone),
        )
    elif weights_backbone:
        raise ValueError(
            f"weights_backbone is for segmentation networks; torchvision:{name} is a classifier: "
            "say pretrained"
        )
    else:
        model = torchvision_model(name, num_classes=num_classes, weights=weights, image_size=size)
    image = torch.zeros(2, 3, *size)
    _try(f"torchvision:{name}", model, image)
    if blur_pool:
        add_blur_pool(model, adaptive=blur_pool == "adaptive", example=image)
    return _prepared(model, image, image_size, smooth, smooth_stages, dropout)


def timm_network(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    data_size: tuple[int, int],
    image_size: int | None = None,
    pretrained: bool | None = None,
    smooth: bool | SmoothOptions = False,
    smooth_stages: SmoothStages = None,
    dropout: float = 0.0,
    blur_pool: bool | Literal["adaptive"] | None = None,
) -> nn.Module:
    """Any classifier of timm, smoothed and with dropout on demand.

    Args:
        name: as in `timm.list_models()`; a tag after a dot chooses among pretrained weights.
        num_classes: number of logits.
        in_channels: channels of the images.
        data_size: height and width of the data's images.
        image_size: resize the images to such squares first.
        pretrained: download timm's weights.
        smooth: whether to insert smoothing layers; a mapping says at which stages and how.
        smooth_stages: as `stages` of the mapping, or names of modules; all stages if None.
        dropout: rate of the dropout to insert.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `add_blur_pool`.
    """
    size = _size(data_size, image_size)
    model = timm_model(
        name,
        num_classes=num_classes,
        in_channels=in_channels,
        image_size=size,
        pretrained=bool(pretrained),
    )
    image = torch.zeros(2, in_channels, *size)
    _try(f"timm:{name}", model, image)
    if blur_pool:
        add_blur_pool(model, adaptive=blur_pool == "adaptive", example=image)
    return _prepared(model, image, image_size, smooth, smooth_stages, dropout)


def check_pretrained(
    name: str, pretrained: bool | str | None, weights_backbone: bool | str | None = None
) -> None:
    """Raise unless the library of a network knows these weights; fetches nothing.

    Args:
        name: as a study names it, `timm:NAME` or `torchvision:NAME`.
        pretrained: what the study says.
        weights_backbone: what it says of the backbone of a segmentation network.
    """
    library, _, inner = name.partition(":")
    checks: dict[str, Callable[[str, str], None]] = {
        "torchvision": check_weights,
        "timm": lambda network, _: check_timm_weights(network),
    }
    weights = _weights_name(pretrained)
    if weights is not None and library in checks:
        checks[library](inner, weights)
    backbone = _weights_name(weights_backbone)
    if backbone is not None and is_segmentation_model(inner):
        check_weights(backbone_of(inner), backbone)


def _weights_name(pretrained: bool | str | None) -> str | None:
    if isinstance(pretrained, str):
        return pretrained
    return "DEFAULT" if pretrained else None


def _size(data_size: tuple[int, int], image_size: int | None) -> tuple[int, int]:
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be at least 1, got {image_size}")
    return data_size if image_size is None else (image_size, image_size)


def _try(name: str, model: nn.Module, image: Tensor) -> None:
    """Raise where a network doesn't take images of this size, which only a pass tells of some."""
    try:
        with evaluating(model):
            model(image)
    except Exception as error:  # each network fails in its own way
        height, width = image.shape[2:]
        raise ValueError(
            f"{name} does not take images of {height} x {width} pixels "
            f"({' '.join(str(error).split()) or type(error).__name__}): set image_size, as "
            "image_size: 224, which resizes a classifier's images, or take another network"
        ) from error


def _prepared(
    model: nn.Module,
    image: Tensor,
    image_size: int | None,
    smooth: bool | SmoothOptions,
    smooth_stages: SmoothStages,
    dropout: float,
) -> nn.Module:
    """The model with what the study adds to it; the names of its weights stay."""
    if smooth is False and smooth_stages is not None:
        raise ValueError(
            f"smooth_stages {smooth_stages} says where smooth acts: say smooth: true too, or leave "
            "it out"
        )
    if dropout:
        model = add_dropout(model, dropout)
    if smooth is not False:
        options: dict[str, Any] = {} if smooth is True else {**smooth}
        if smooth_stages is not None and "stages" in options:
            raise ValueError(
                f"smooth.stages {options['stages']} and smooth_stages {smooth_stages} say the same "
                "thing: leave one of them out"
            )
        where = options.pop("stages", smooth_stages)
        model = add_smoothing(model, image, where="stages" if where is None else where, **options)
    if image_size is not None:
        insert_before(model, Resize(image_size), "resize")
    return model
