"""Find where the stages of a network end, from one recorded run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from sfumato._core.evaluation_mode import evaluating

_MULTIPLIES = ("conv", "mm", "linear")
_PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout2d)  # return what they are given


class Step(NamedTuple):
    """One operation on tensors that depend on the input."""

    op: str  # such as `convolution` or `mean`
    parents: tuple[int, ...]  # numbers of the steps whose results it reads
    shape: tuple[int, ...]  # of its (first) result
    learned: bool = False  # whether it multiplies by a weight of the model
    stride: int = 1  # of a convolution


@dataclass(frozen=True)
class Trace:
    """A recorded run: its operations, and the steps that modules and the model returned."""

    steps: list[Step] = field(default_factory=list)  # in their order; step 0 is the input
    returned: dict[str, list[int]] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: Trace, image: Tensor, weights: list[nn.Parameter]) -> None:
        super().__init__()
        self.trace = trace
        self.step_of: Any = WeakTensorKeyDictionary({image: 0})
        self.weights: Any = WeakTensorKeyDictionary(dict.fromkeys(weights, True))
        trace.steps.append(Step("input", (), tuple(image.shape)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read = _tensors((args, kwargs))
        made = _tensors(result)
        parents = {self.step_of[t] for t in read if t in self.step_of}
        weighted = any(t in self.weights for t in read)
        if parents and made:
            name = func.overloadpacket.__name__
            learned = weighted and any(part in name for part in _MULTIPLIES)
            stride = max(args[3]) if name == "convolution" else 1
            step = Step(name, tuple(sorted(parents)), tuple(made[0].shape), learned, stride)
            self.trace.steps.append(step)
            for tensor in made:
                self.step_of[tensor] = len(self.trace.steps) - 1
        elif weighted:  # a transposed or recomputed weight is still a weight
            for tensor in made:
                self.weights[tensor] = True
        return result

    def note_return(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output in self.step_of:
            self.trace.returned.setdefault(name, []).append(self.step_of[output])


def record(model: nn.Module, example_input: Tensor) -> Trace:
    """Run `model` once on the first image of `example_input` and record what it does.

    The run is in evaluation mode and without gradients; the model is left as it was.
    """
    trace = Trace()
    # A tensor of its own: what the model writes in place stays out of the caller's batch.
    image = example_input.detach()[:1].clone()
    weights = [w for w in model.parameters() if w.dim() > 1]
    recorder = _Recorder(trace, image, weights)
    with ExitStack() as hooks, evaluating(model), recorder:
        for name, module in model.named_modules():
            if not isinstance(module, _PASSES_ON):
                hook = module.register_forward_hook(partial(recorder.note_return, name))
                hooks.enter_context(hook)
        output = model(image)
    returned = [recorder.step_of[t] for t in _tensors(output) if t in recorder.step_of]
    trace.outputs.extend(returned or [len(trace.steps) - 1])  # an object of the model's own type
    return trace


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


_REDUCTIONS = {"mean", "sum", "amax", "max", "median", "topk", "kthvalue", "logsumexp"}
_DROP = 0.7  # a 3x3 convolution without padding shrinks a map too, but by less


class Size(NamedTuple):
    """Height and width of a map, and whether its channels are the last axis."""

    height: int
    width: int
    channels_last: bool


class Stage(NamedTuple):
    """The module that returns the last map of a stage, and whether that is (N, H, W, C)."""

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
    sizes = {number: _size(trace, number) for number in range(len(trace.steps))}
    areas = {n: size.height * size.width for n, size in sizes.items() if size is not None}
    areas = {number: area for number, area in areas.items() if area > 1}
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
    """True if a step averages (or the like) the last map to a fixed size, mostly one point."""
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
    """True if a first level is a stem: several convolutions and a pooling, or one lone layer."""
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
