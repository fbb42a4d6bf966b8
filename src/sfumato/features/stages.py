"""Where the stages of a network end, found in a recorded run.

The paper smooths "before each down-sampling". In a recorded run this becomes:

1. The *trunk* is the chain of feature maps that everything deeper depends on. A residual block
   shows only its sum there; branches, squeeze-and-excitation and a U-Net's skips are off it.
2. A stage ends with the last trunk map before the resolution drops, so that a strided convolution
   and its shortcut both read the smoothed map; or before global pooling or another classifier.
3. A resolution is only a stage if a layer works on it. The image, and what just passes through
   (the first convolution and pooling of an ImageNet stem), are not smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sfumato.features.trace import Step, Trace

_REDUCTIONS = {"mean", "sum", "amax", "max", "median", "topk", "kthvalue", "logsumexp"}
_DROP = 0.7  # a 3x3 convolution without padding shrinks a map too, but by less


class Size(NamedTuple):
    """Height and width of a map, and whether its channels are the last axis."""

    height: int
    width: int
    channels_last: bool


@dataclass(frozen=True)
class Stage:
    """The end of a stage.

    Args:
        module: name of the module that returns the stage's last map.
        channels_last: whether the map is (N, H, W, C).
    """

    module: str
    channels_last: bool


class _Level(NamedTuple):
    """Trunk maps of one resolution: the last of them, and the step that leaves the resolution."""

    last: int
    left_at: int
    pooled: bool


def map_size(shape: Sequence[int], image: Sequence[int]) -> Size | None:
    """The spatial size of a tensor (N, C, H, W) or (N, H, W, C), None if it is no map.

    A map has the image's aspect ratio, up to what rounding and missing padding take away.
    """
    if len(shape) != 4:
        return None
    sizes = (Size(shape[2], shape[3], False), Size(shape[1], shape[2], True))

    def distortion(size: Size) -> float:
        return abs(size.height / image[-2] - size.width / image[-1])

    best = min(sizes, key=distortion)
    return best if distortion(best) <= 4 / min(image[-2:]) else None


def find_stages(trace: Trace) -> list[Stage]:
    """The ends of all stages, in the order of the network."""
    trunk = _trunk(trace, _target(trace))
    stages: list[Stage] = []
    start, seen_layers = 0, False
    for number, level in enumerate(_levels(trace, trunk)):
        layers = _layers(trace, start, level)
        stem = not seen_layers and _is_stem(trace, level, number, len(layers))
        if layers and not stem:
            stages.append(_end_of(trace, trunk, level, stages))
        seen_layers = seen_layers or bool(layers)
        start = level.last
    return stages


def _size(trace: Trace, number: int) -> Size | None:
    return map_size(trace.steps[number].shape, trace.steps[0].shape)


def _target(trace: Trace) -> int:
    """The step that the trunk leads to: the logits, or the deepest map of a dense model."""
    areas = {}
    for number in range(len(trace.steps)):
        size = _size(trace, number)
        if size is not None and size.height * size.width > 1:
            areas[number] = size.height * size.width
    if not any(number in areas for number in trace.outputs):
        return trace.outputs[0]
    smallest = min(areas.values())
    return max(number for number, area in areas.items() if area == smallest)


def _trunk(trace: Trace, target: int) -> list[int]:
    """Steps that every path from the input to `target` passes through."""
    needed = {target}
    for number in range(target, 0, -1):
        if number in needed:
            needed.update(trace.steps[number].parents)
    last_reader = dict.fromkeys(needed, 0)
    for number in needed:
        for parent in trace.steps[number].parents:
            last_reader[parent] = max(last_reader[parent], number)
    trunk, reach = [], 0
    for number in sorted(needed):
        if reach <= number:  # no tensor from before is read after this step
            trunk.append(number)
        reach = max(reach, last_reader[number])
    return trunk


def _levels(trace: Trace, trunk: list[int]) -> list[_Level]:
    levels: list[_Level] = []
    last, height = 0, trace.steps[0].shape[-2]
    for number in trunk[1:]:
        step, size = trace.steps[number], _size(trace, number)
        if _pools(step, trace.steps[last]):
            tokens = any(trace.steps[n].learned for n in range(last + 1, number))
            return [*levels, _Level(last, number, pooled=not tokens)]
        if size is None:
            continue
        if size.height <= _DROP * height:
            levels.append(_Level(last, number, pooled=False))
            if size.height == 1 and step.learned and step.stride == 1:
                return levels  # a classifier written as a convolution over the whole map
        last, height = number, size.height
    if _size(trace, trunk[-1]) is None:  # it ends with logits
        levels.append(_Level(last, trunk[-1], pooled=False))
    return levels


def _pools(step: Step, last_map: Step) -> bool:
    """Whether a step averages (or the like) the last map to a fixed size, mostly one point."""
    channels = (last_map.shape[1], last_map.shape[-1])
    to_a_point = step.op in _REDUCTIONS and math.prod(step.shape) in channels
    return to_a_point or "adaptive" in step.op


def _layers(trace: Trace, start: int, level: _Level) -> list[int]:
    """Learned steps of a level; before global pooling those that lead into it count, too."""
    numbers = [n for n in range(start + 1, level.last + 1) if trace.steps[n].learned]
    return numbers if level.pooled else [n for n in numbers if not _shrinks(trace, n)]


def _shrinks(trace: Trace, number: int) -> bool:
    size = _size(trace, number)
    befores = [_size(trace, parent) for parent in trace.steps[number].parents]
    return size is not None and any(
        before is not None and size.height <= _DROP * before.height for before in befores
    )


def _is_stem(trace: Trace, level: _Level, number: int, layers: int) -> bool:
    """Whether a first level is a stem: several convolutions and a pooling, or one lone layer."""
    if level.pooled:
        return False
    if "pool" in trace.steps[level.left_at].op:
        return number == 1
    return layers == 1


def _end_of(trace: Trace, trunk: list[int], level: _Level, earlier: list[Stage]) -> Stage:
    """The outermost module that returns this stage's result and does not hold earlier stages."""
    last_layer = max(n for n in range(level.last + 1) if trace.steps[n].learned)
    candidates = {n for n in trunk if last_layer <= n <= level.last and _size(trace, n)}
    hosts = [
        (name.count("."), -returned[0], name)
        for name, returned in trace.returned.items()
        if name and len(returned) == 1 and returned[0] in candidates
        if not any(stage.module.startswith(f"{name}.") for stage in earlier)
    ]
    if not hosts:
        raise ValueError(
            f"a stage ends with a map of shape {trace.steps[level.last].shape}, but no module "
            "returns it: it is made by a function inside a larger forward. Name the modules to "
            "smooth after with where=('name', ...)"
        )
    name = min(hosts, key=lambda host: host[:2])[2]
    size = _size(trace, trace.returned[name][0])
    return Stage(name, size is not None and size.channels_last)
