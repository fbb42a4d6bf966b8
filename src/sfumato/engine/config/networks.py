"""Networks by name: torchvision, timm and ONNX, and weights from files."""

from __future__ import annotations

import functools
import glob
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.evaluation_mode import evaluating
from sfumato._core.files import expanded, is_file, open_file
from sfumato.features import add_blur_pool, add_dropout, add_smoothing
from sfumato.features.insertion import insert_before
from sfumato.models import (
    SmoothOptions,
    fit_weights,
    read_weights,
    timm_model,
    torchvision_model,
    torchvision_segmentation,
)
from sfumato.models.libraries import (
    backbone_of,
    check_timm_weights,
    check_weights,
    is_segmentation_model,
    published_weights,
)
from sfumato.models.onnx_models import OnnxModel, Outputs, weights_elsewhere

ONNX = "onnx:"

_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    for name in ("weights", "weights_digest")
]


class NewHeadWarning(UserWarning):
    """A file of weights is for other classes: the final layer of the network starts anew."""


def with_weights(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """`build` with two more options: `weights`, a file, and `weights_digest`, of its content.

    A final layer for other classes is left out, and said; a file of other content is an error.
    """
    own = inspect.signature(build, eval_str=True)

    @functools.wraps(build)
    def build_and_load(
        *positional: Any,
        weights: str | None = None,
        weights_digest: str | None = None,
        **options: Any,
    ) -> nn.Module:
        network = build(*positional, **options)
        if weights is None:
            return network
        check_file_digest(weights, weights_digest)
        if left_out := fit_weights(network, read_weights(weights), weights):
            warnings.warn(
                f"weights {weights}: {', '.join(left_out)} are for another number of classes and "
                "start anew",
                NewHeadWarning,
                stacklevel=2,
            )
        return network

    signature = own.replace(parameters=[*own.parameters.values(), *_OPTIONS])
    build_and_load.__signature__ = signature  # type: ignore[attr-defined]
    return build_and_load


def with_digest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A network's spec with the digest of its file, unless it says one, as past runs do."""
    name, weights, key = spec["name"], spec.get("weights"), "weights_digest"
    is_onnx = name.startswith(ONNX)  # a file as a whole
    if is_onnx:
        weights, key = expanded(name.removeprefix(ONNX)), "file_digest"
    if weights is None and spec.get(key) is not None:
        raise ValueError("weights_digest is of the file that weights names: say weights too")
    if weights is None or spec.get(key) is not None:
        return dict(spec)
    file = Path(weights)
    if not is_file(file):
        what, hint = "" if is_onnx else "weights of ", ""
        if not is_onnx and ("pretrained" in spec or ":" in name):
            hint = "; for weights that a library publishes say pretrained: NAME, as IMAGENET1K_V1"
        raise ValueError(f"{what}model {name!r}: no such file: {weights}{hint}")
    return {**spec, key: network_digest(file) if is_onnx else file_digest(file)}


def network_digest(file: Path) -> str:
    """Digest of an ONNX file and of the weights beside it: `net.onnx.data`, and what it names."""
    parts = sorted(file.parent.glob(f"{glob.escape(file.name)}*"))
    parts += sorted(weights_elsewhere(file) - {each.resolve() for each in parts})
    digests = " ".join(file_digest(each) for each in parts if each.is_file())
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


def file_digest(file: Path) -> str:
    """The first 16 digits of the SHA-256 of a file's content."""
    facts = file.stat()
    return _digest(file.resolve(), facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=64)
def _digest(file: Path, changed: int, size: int) -> str:
    """Kept as long as the file stays: every run of a study asks."""
    found = hashlib.sha256()
    with open_file(file) as content:
        while part := content.read(1 << 20):
            found.update(part)
    return found.hexdigest()[:16]


def check_file_digest(
    name: str, digest: str | None, measure: Callable[[Path], str] = file_digest
) -> None:
    """Raise where a file is there and has another content than the run is named after."""
    file = expanded(name)
    found = measure(file) if is_file(file) else digest
    if digest is not None and found != digest:
        raise ValueError(
            f"{name} has the digest {found}, but the run is named after {digest}: the "
            "file has changed. Bring the old one back, or start the study anew with this one"
        )


_MOST_PIXELS = 2**24
_MOST_NUMBERS = 4 * _MOST_PIXELS

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
        pretrained: name of torchvision's weights to download, as IMAGENET1K_V1. True is refused
            unless there is one set of them.
        smooth: whether to insert smoothing layers; a mapping says at which stages and how.
        smooth_stages: as `stages` of the mapping, or names of modules; all stages if None.
        dropout: rate of the dropout to insert.
        blur_pool: whether to blur before each subsampling, "adaptive" with kernels made from the
            map; see `add_blur_pool`.
        weights_backbone: of a segmentation network, download the weights of the classifier that it
            is built on, named as for `pretrained`.
    """
    if in_channels != 3:
        raise ValueError(f"torchvision models take 3 channels, the data has {in_channels}")
    size = _size(data_size, image_size)
    weights = _weights_name("pretrained", name, pretrained)
    if is_segmentation_model(name):
        if image_size is not None:
            raise ValueError(
                f"image_size is for classifiers; torchvision:{name} labels the pixels of the data"
            )
        model: nn.Module = torchvision_segmentation(
            name,
            num_classes=num_classes,
            weights=weights,
            weights_backbone=_backbone_weights(name, weights_backbone),
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
    return _extended(model, image, image_size, smooth, smooth_stages, dropout, blur_pool)


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
        pretrained: download timm's weights; where it has several sets, the name has a tag.
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
    return _extended(model, image, image_size, smooth, smooth_stages, dropout, blur_pool)


def check_pretrained(
    name: str, pretrained: bool | str | None, weights_backbone: bool | str | None = None
) -> None:
    """Raise unless the library of a network knows these weights; fetches nothing."""
    library, _, inner = name.partition(":")
    if library == "timm" and pretrained:
        check_timm_weights(inner)
    elif library == "torchvision":
        if (weights := _weights_name("pretrained", inner, pretrained)) is not None:
            check_weights(inner, weights)
        if (backbone := _backbone_weights(inner, weights_backbone)) is not None:
            check_weights(backbone_of(inner), backbone)


def _backbone_weights(name: str, given: bool | str | None) -> str | None:
    if not is_segmentation_model(name):
        return None
    return _weights_name("weights_backbone", backbone_of(name), given)


def _weights_name(key: str, network: str, given: bool | str | None) -> str | None:
    """Return the name of torchvision's weights; `true` names them only where there is one set."""
    if isinstance(given, str):
        return given
    if not given:
        return None
    known = published_weights(network)
    if len(known) > 1:
        raise ValueError(
            f"{key}: true does not say which weights of {network}, and torchvision has "
            f"{', '.join(known)}: name them, as {key}: {known[0]}"
        )
    return known[0] if known else "DEFAULT"


def _size(data_size: tuple[int, int], image_size: int | None) -> tuple[int, int]:
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be at least 1, got {image_size}")
    height, width = data_size if image_size is None else (image_size, image_size)
    if not 0 < height * width <= _MOST_PIXELS:
        raise ValueError(
            f"images of {height} x {width} pixels: a network is tried with one of at most "
            f"{_MOST_PIXELS:,} pixels; set image_size, as image_size: 224"
        )
    return height, width


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


def _extended(
    model: nn.Module,
    image: Tensor,
    image_size: int | None,
    smooth: bool | SmoothOptions,
    smooth_stages: SmoothStages,
    dropout: float,
    blur_pool: bool | Literal["adaptive"] | None,
) -> nn.Module:
    """The model with what the study adds to it; the names of its weights stay."""
    if blur_pool:
        add_blur_pool(model, adaptive=blur_pool == "adaptive", example=image)
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


def onnx_network(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, int],
    outputs: Outputs = "logits",
    file_digest: str | None = None,
) -> nn.Module:
    """A classifier in an ONNX file, to be evaluated: it can't be trained.

    Args:
        name: the file.
        num_classes: number of logits.
        in_channels: channels of the data's images.
        image_size: their height and width.
        outputs: what the file gives, "logits" or "probabilities".
        file_digest: of the file's content, which is part of the run's name.
    """
    check_file_digest(name, file_digest, network_digest)
    model = OnnxModel(Path(name), outputs=outputs)
    shape = (1, in_channels, *image_size)
    model.check_shape(shape)
    if min(shape) < 1 or math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(
            f"{name}: is tried with an image of 1 to {_MOST_NUMBERS:,} numbers, the data's have "
            f"{' x '.join(map(str, shape[1:]))}"
        )
    with evaluating(model):
        found = model(torch.zeros(shape)).shape[1]
    if found != num_classes:
        raise ValueError(f"{name}: gives {found} classes, the data has {num_classes}")
    return model
