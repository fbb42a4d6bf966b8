"""Any timm classifier, by its name there."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn


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
    timm = _import_timm()
    _check_name(timm, name)
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
    return _pretrained(timm, name, options) if pretrained else model


def check_timm_weights(name: str) -> None:
    """Raise unless timm knows pretrained weights of this model; fetches nothing.

    Raises:
        ValueError: no such model, or none of its weights are published.
    """
    timm = _import_timm()
    _check_name(timm, name)
    if not timm.get_pretrained_cfg(name).has_weights:
        tagged = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        known = f"; it has {', '.join(tagged)}" if tagged else ""
        raise ValueError(f"timm has no pretrained weights of {name}{known}")


def _pretrained(timm: Any, name: str, options: dict[str, Any]) -> nn.Module:
    check_timm_weights(name)
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # of whatever library timm fetches through
        raise ConnectionError(
            f"can't fetch the pretrained weights of timm:{name}: {' '.join(str(error).split())}. "
            "Fetch them where there is a network and name the file, as weights: FILE.safetensors, "
            "or leave pretrained out"
        ) from error
    return model


def _import_timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ImportError("timm:NAME needs timm: python3 -m pip install 'sfumato[timm]'") from error
    return timm


def _check_name(timm: Any, name: str) -> None:
    base, _, tag = name.partition(".")
    if base not in timm.list_models():
        close = difflib.get_close_matches(base, timm.list_models(), n=3)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ValueError(f"timm has no model {name!r}{hint}; timm.list_models() names them all")
    known = [each.partition(".")[2] for each in timm.list_models(f"{base}.*", pretrained=True)]
    if tag and tag not in known:
        choices = ", ".join(known) or "none"
        raise ValueError(f"timm has no weights {tag!r} of {base}; it has {choices}")
