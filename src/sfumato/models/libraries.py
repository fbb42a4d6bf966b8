"""Networks of torchvision and timm, by their names there."""

from __future__ import annotations

import difflib
from typing import Any

from torch import Tensor, nn

from sfumato._core.exports import optional
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
        name: a classifier, as listed by `torchvision.models.list_models(torchvision.models)`.
        num_classes: number of logits; with `weights`, the last layer starts anew where it has
            another size.
        weights: a weights name such as `IMAGENET1K_V1`; asks torchvision to download
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

    known = models.list_models(models)  # its detectors fetch their backbones unasked
    if name not in known:
        raise ValueError(
            f"torchvision has no classifier {name!r}{_near(name, known)}; "
            "torchvision.models.list_models(torchvision.models) names them all"
        )
    options = _builder_options(name, image_size)
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    except (AssertionError, ValueError) as error:
        raise ValueError(
            f"torchvision can't build {name} for images of {image_size} pixels: {error}. "
            "image_size: 224 in a study enlarges the images"
        ) from error
    if weights is not None:
        state = fetch_weights(name, weights)
        if "image_size" in options:
            from torchvision.models.vision_transformer import interpolate_embeddings

            sides: Any = model
            state = dict(interpolate_embeddings(sides.image_size, sides.patch_size, state))
        fit_weights(model, state, f"{weights} of torchvision:{name}")
    return model


def _unreachable(weights: str, file: str) -> ConnectionError:
    return ConnectionError(
        f"can't fetch the pretrained weights {weights}. Fetch them where there is a network and "
        f"name the file, as weights: {file}, or leave pretrained out"
    )


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def check_weights(name: str, weights: str) -> None:
    """Raise unless torchvision knows pretrained weights of this name; fetches nothing."""
    from torchvision import models

    known = models.get_model_weights(name)
    if weights.removeprefix(f"{known.__name__}.") not in known.__members__:
        choices = ", ".join(known.__members__)
        raise ValueError(f"torchvision has no weights {weights!r} of {name}; it has {choices}")


def published_weights(name: str) -> tuple[str, ...]:
    """Return the names of the weights that torchvision publishes of a model, the oldest first."""
    from torchvision import models

    return tuple(each.name for each in models.get_model_weights(name))  # DEFAULT is one of them


def fetch_weights(name: str, weights: str) -> dict[str, Tensor]:
    """The state dict of torchvision's own network with pretrained weights, downloaded if needed."""
    from torchvision import models

    check_weights(name, weights)
    try:
        return models.get_model(name, weights=weights).state_dict()
    except OSError as error:
        raise _unreachable(f"{weights} of torchvision:{name}: {error}", "FILE.pth") from error


def _builder_options(name: str, image_size: tuple[int, int] | None) -> dict[str, Any]:
    """Options of a builder: the size of its images, and what it would warn of without."""
    from torchvision import models

    family = models.get_model_builder(name).__module__.rpartition(".")[2]
    if family in ("googlenet", "inception"):
        return {"init_weights": True}
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


class PixelLogits(nn.Module):
    """The main output of a torchvision segmentation network alone: logits (N, K, H, W)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)["out"]


def is_segmentation_model(name: str) -> bool:
    """True if torchvision has a segmentation network of this name."""
    from torchvision import models

    return name in models.list_models(module=models.segmentation)


def torchvision_segmentation(
    name: str, *, num_classes: int, weights: str | None = None, weights_backbone: str | None = None
) -> PixelLogits:
    """Build `torchvision.models.segmentation.<name>`, giving logits for `num_classes`.

    Args:
        name: `deeplabv3_mobilenet_v3_large`, `fcn_resnet50`, `lraspp_mobilenet_v3_large` ...
        num_classes: number of logits of each pixel; with `weights`, the last layers start anew
            where they have another size.
        weights: a weights name such as `DEFAULT`; asks torchvision to download them. None
            (default) starts from scratch, backbone included, and downloads nothing.
        weights_backbone: the same for the classifier that it is built on alone, as
            `IMAGENET1K_V1`; the papers begin with these.

    Example:
        >>> import torch
        >>> network = torchvision_segmentation("lraspp_mobilenet_v3_large", num_classes=11).eval()
        >>> network(torch.zeros(1, 3, 45, 60)).shape
        torch.Size([1, 11, 45, 60])
    """
    from torchvision import models

    if not is_segmentation_model(name):
        known = ", ".join(models.list_models(module=models.segmentation))
        raise ValueError(f"torchvision has no segmentation model {name!r}; it has {known}")
    if weights is not None and weights_backbone is not None:
        raise ValueError(
            f"weights {weights!r} hold those of the backbone: leave weights_backbone "
            f"({weights_backbone!r}) out"
        )
    network = models.get_model(name, weights=None, weights_backbone=None, num_classes=num_classes)
    if weights is not None:
        found = fetch_weights(name, weights)
        # Of training with two losses, which this network is not given.
        state = {key: v for key, v in found.items() if not key.startswith("aux_classifier.")}
        fit_weights(network, state, f"{weights} of torchvision:{name}")
    if weights_backbone is not None:
        found = fetch_weights(backbone_of(name), weights_backbone)
        own = network.backbone.state_dict()
        # A trunk is the classifier's layers, or its `features`, without what comes after them.
        state = {key.removeprefix("features."): value for key, value in found.items()}
        source = f"{weights_backbone} of torchvision:{backbone_of(name)}"
        fit_weights(network.backbone, {key: state[key] for key in state if key in own}, source)
    return PixelLogits(network)


def backbone_of(name: str) -> str:
    """The classifier that a segmentation network is built on."""
    return name.partition("_")[2]


def timm_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: tuple[int, int] | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Build `timm.create_model(name)` with `num_classes` outputs.

    Args:
        name: as listed by `timm.list_models()`; a tag after a dot chooses among pretrained weights.
        num_classes: number of logits.
        in_channels: channels of the images.
        image_size: height and width of the images, for networks that are built for one size, such
            as vision transformers; the others take any. None is timm's own.
        pretrained: whether to ask timm to download weights, which it fits to classes, channels and
            size. False (default) starts from scratch and downloads nothing.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm has no such model or tag, or can't build it for such images.
        ConnectionError: pretrained weights can't be downloaded.

    Example:
        >>> model = timm_model("vit_tiny_patch16_224", num_classes=10, image_size=(32, 32))
        >>> sum(p.numel() for p in model.parameters())
        5489482
    """
    timm = _timm_with(name)
    settings = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_channels}
    if image_size is not None and settings.fixed_input_size:
        options["img_size"] = image_size
    try:
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        side = settings.input_size[-1]
        raise ValueError(
            f"timm can't build {name} for {in_channels} channels and images of {image_size} "
            f"pixels: {error or type(error).__name__}. It is made for {side} x {side} pixels; "
            f"image_size: {side} in a study enlarges the images"
        ) from error
    if not pretrained:
        return model
    check_timm_weights(name)
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # of whatever library timm fetches through
        said = " ".join(str(error).split())
        raise _unreachable(f"of timm:{name}: {said}", "FILE.safetensors") from error


def check_timm_weights(name: str) -> None:
    """Raise unless a name says which of timm's pretrained weights are meant; fetches nothing."""
    timm = _timm_with(name)
    if not timm.get_pretrained_cfg(name).has_weights:
        tagged = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        known = f"; it has {', '.join(tagged)}" if tagged else ""
        raise ValueError(f"timm has no pretrained weights of {name}{known}")
    tagged = timm.list_pretrained(f"{name}.*") if "." not in name else []
    if len(tagged) > 1:
        raise ValueError(
            f"timm has {len(tagged)} sets of pretrained weights of {name}, and its default changes "
            f"between versions: name one, as timm:{tagged[0]}; it has {', '.join(tagged)}"
        )


def _timm_with(name: str) -> Any:
    timm = optional("timm", "timm:NAME needs", "timm")
    base, _, tag = name.partition(".")
    if base not in timm.list_models():
        near = _near(base, timm.list_models())
        raise ValueError(f"timm has no model {name!r}{near}; timm.list_models() names them all")
    known = [each.partition(".")[2] for each in timm.list_models(f"{base}.*", pretrained=True)]
    if tag and tag not in known:
        choices = ", ".join(known) or "none"
        raise ValueError(f"timm has no weights {tag!r} of {base}; it has {choices}")
    return timm
