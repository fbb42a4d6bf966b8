"""Spatial smoothing for any network: `Smooth` at the end of each stage."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from sfumato.features.blurring import Padding
from sfumato.features.insert import insert_after
from sfumato.features.probability import ProbKind
from sfumato.features.smoothing import Smooth
from sfumato.features.stages import Stage, find_stages, map_size
from sfumato.features.trace import Trace, record

Where = Literal["stages"] | Sequence[int] | Sequence[str]

_BY_HAND = (
    "Place layers by name, add_smoothing(model, x, where=('layer1', 'layer2')), or write them into "
    "the model: model.layer1 = nn.Sequential(model.layer1, Smooth())"
)


class SmoothLastAxis(nn.Module):
    """Smooth for maps with the channels last, (N, H, W, C), as Swin Transformers have them."""

    def __init__(self, smooth: Smooth) -> None:
        super().__init__()
        self.smooth = smooth

    def forward(self, z: Tensor) -> Tensor:
        return self.smooth(z.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def add_smoothing(
    model: nn.Module,
    example_input: Tensor,
    *,
    where: Where = "stages",
    kernel: Sequence[float] = (1, 1),
    prob: ProbKind = "tanh",
    temperature: float = 10.0,
    padding: Padding = "zeros",
) -> nn.Module:
    """A copy of `model` with spatial smoothing before each down-sampling.

    The model is run once on `example_input` to see where the resolution drops. A `Smooth` layer
    goes to the end of each stage (everything that reads the stage's result, a strided convolution
    as well as its shortcut, reads the smoothed map) and before global pooling; none goes into the
    stem. `sfumato.features.stages` states the rule, `model_summary` shows the outcome.

    The copy has the same state-dict keys, so that weights load into either. The original is left
    alone: build the optimiser from the copy's parameters. Smoothing changes what later layers see;
    a network with loaded weights wants some training afterwards.

    Args:
        model: any network for images; it must run on `example_input`.
        example_input: a batch of images (N, C, H, W) of the size that will be used; the first image
            is enough.
        where: `stages` for all; numbers such as (3,) for some of them, counted from 1 as in the
            paper's Fig. B.2; or names of modules after which to smooth.
        kernel: vector of the blur, Eq. (8).
        prob: bound of Prob.
        temperature: tau of Prob.
        padding: what lies outside a map; see `blur_features`.

    Returns:
        The smoothed copy.

    Raises:
        ValueError: no stage was found (a plain vision transformer has one resolution from its
            first layer on), the model can't be run, an unknown stage or module, or `Smooth` layers
            that are there already.
        TypeError: `model` or `example_input` is something else.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> smoothed = add_smoothing(resnet18(), torch.zeros(1, 3, 64, 64))
        >>> [name for name, part in smoothed.named_modules() if isinstance(part, Smooth)]
        ['layer1.smooth', 'layer2.smooth', 'layer3.smooth', 'layer4.smooth']

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, Section 2.1, Fig. 4, Appendix B.3.

    Differs: the released pre-activation ResNet has no layer before its last norm and global
    pooling; here the last stage is treated like the others. Leave it out with `where=(1, 2, 3)`.
    """
    _check(model, example_input)
    stages = _choose(model, _record(model, example_input), where)
    smoothed = copy.deepcopy(model)
    for stage in stages:
        smooth = Smooth(kernel, prob=prob, temperature=temperature, padding=padding)
        layer = SmoothLastAxis(smooth) if stage.channels_last else smooth
        layer = layer.to(example_input.device).train(model.training)
        insert_after(smoothed.get_submodule(stage.module), layer, "smooth")
    return smoothed


def _check(model: nn.Module, example_input: Tensor) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(example_input, Tensor):
        raise TypeError(f"example_input must be a tensor, got {type(example_input).__name__}")
    if example_input.dim() != 4 or len(example_input) == 0:
        shape = tuple(example_input.shape)
        raise ValueError(f"example_input must be images (N, C, H, W) with N >= 1, got {shape}")
    if any(isinstance(module, Smooth) for module in model.modules()):
        raise ValueError(f"{type(model).__name__} has Smooth layers already")


def _record(model: nn.Module, example_input: Tensor) -> Trace:
    try:
        return record(model, example_input)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} can't be run on an example_input of shape "
            f"{tuple(example_input.shape)}: {error}. Give images as the model expects them, or "
            "write the layers into the model: model.layer1 = nn.Sequential(model.layer1, Smooth())"
        ) from error


def _choose(model: nn.Module, trace: Trace, where: Where) -> list[Stage]:
    if where != "stages" and (isinstance(where, str) or not all(_is_key(key) for key in where)):
        raise TypeError(
            f"where must be 'stages', numbers of stages or names of modules, got {where!r}"
        )
    named = [key for key in where if isinstance(key, str)] if where != "stages" else []
    if named:
        return [_named(trace, name) for name in named]
    stages = find_stages(trace)
    if not stages:
        raise ValueError(
            f"{type(model).__name__} has nothing to smooth: no feature map is down-sampled or "
            "globally pooled after a layer has worked on it. A plain vision transformer, for one, "
            f"keeps one resolution from its first layer on. {_BY_HAND}"
        )
    if where == "stages":
        return stages
    unknown = [key for key in where if not 1 <= int(key) <= len(stages)]
    if unknown or not where:
        found = ", ".join(f"{n} {stage.module}" for n, stage in enumerate(stages, 1))
        raise ValueError(f"where must hold numbers of stages ({found}), got {where!r}")
    return [stages[int(key) - 1] for key in where]


def _is_key(key: object) -> bool:
    return isinstance(key, int | str) and not isinstance(key, bool)


def _named(trace: Trace, name: str) -> Stage:
    for number in trace.returned.get(name, []):
        size = map_size(trace.steps[number].shape, trace.steps[0].shape)
        if size is not None:
            return Stage(name, size.channels_last)
    maps = [
        other
        for other, returned in trace.returned.items()
        if other and map_size(trace.steps[returned[0]].shape, trace.steps[0].shape)
    ]
    raise ValueError(
        f"where names {name!r}, which is no module of this model that returns a feature map; "
        f"those are {maps}"
    )
