"""Insert smoothing and dropout layers into any network, and list where they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from sfumato._core.checks import check_number
from sfumato._core.evaluation_mode import evaluating
from sfumato.features.smoothing import Padding, ProbKind, Smooth
from sfumato.features.stages import Stage, Trace, find_stages, map_size, record


def is_plain_sequential(module: nn.Module) -> bool:
    """True if `module` runs its children one after the other and does nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def insert_after(module: nn.Module, layer: nn.Module, name: str) -> None:
    """Run `layer` on what `module` returns."""
    name = _free_name(module, name)
    module.add_module(name, layer)
    if not is_plain_sequential(module):
        module.register_forward_hook(partial(_run_on_output, name))


def insert_before(module: nn.Module, layer: nn.Module, name: str) -> None:
    """Run `layer` on the first argument of `module`."""
    name = _free_name(module, name)
    module.add_module(name, layer)
    if is_plain_sequential(module):
        for other in [key for key in module._modules if key != name]:
            module._modules[other] = module._modules.pop(other)
    else:
        module.register_forward_pre_hook(partial(_run_on_input, name))


def input_shapes(
    model: nn.Module, parts: Iterable[nn.Module], images: Tensor
) -> dict[nn.Module, tuple[int, ...]]:
    """Run a model, and return the shape of what each of these modules was given last."""
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(part: nn.Module, args: tuple[Any, ...]) -> None:
        shapes[part] = tuple(args[0].shape)

    with ExitStack() as hooks, evaluating(model):
        for part in parts:
            hooks.enter_context(part.register_forward_pre_hook(note))
        model(images)
    return shapes


def _free_name(module: nn.Module, name: str) -> str:
    free, count = name, 1
    while hasattr(module, free):
        count += 1
        free = f"{name}{count}"
    return free


def _run_on_output(name: str, module: nn.Module, args: Any, output: Any) -> Any:
    return module.get_submodule(name)(output)


def _run_on_input(name: str, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (module.get_submodule(name)(args[0]), *args[1:])


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
    goes to the end of each stage, so that everything that reads the stage's result reads the
    smoothed map, and before global pooling; none goes into the stem. `model_summary` shows the
    outcome.

    The copy has the same state-dict keys. Build the optimiser from the copy's parameters. Smoothing
    changes what later layers see; a network with loaded weights wants some training afterwards.

    Args:
        model: any network for images.
        example_input: images (N, C, H, W) of the size that will be used; one is enough.
        where: `stages` for all; numbers such as (3,) for some of them, counted from 1 as in the
            paper's Fig. B.2; or names of modules after which to smooth.
        kernel, prob, temperature, padding: as in `Smooth`.

    Raises:
        ValueError: no stage was found (as in a plain vision transformer), the model can't be run,
            an unknown stage or module, or `Smooth` layers that are there already.
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
    pooling; here the last stage is like the others. Leave it out with `where=(1, 2, 3)`.
    """
    _check(model, example_input)
    try:
        trace = record(model, example_input)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} can't be run on an example_input of shape "
            f"{tuple(example_input.shape)}: {error}. Give images as the model expects them, or "
            "write the layers into the model: model.layer1 = nn.Sequential(model.layer1, Smooth())"
        ) from error
    stages = _choose(model, trace, where)
    smoothed = copy.deepcopy(model)
    for stage in stages:
        smooth = Smooth(kernel, prob=prob, temperature=temperature, padding=padding)
        layer = SmoothLastAxis(smooth) if stage.channels_last else smooth
        layer = layer.to(example_input.device).train(model.training)
        insert_after(smoothed.get_submodule(stage.module), layer, "smooth")
    return smoothed


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def _check(model: nn.Module, example_input: Tensor) -> None:
    _check_model(model)
    if not isinstance(example_input, Tensor):
        raise TypeError(f"example_input must be a tensor, got {type(example_input).__name__}")
    if example_input.dim() != 4 or len(example_input) == 0:
        shape = tuple(example_input.shape)
        raise ValueError(f"example_input must be images (N, C, H, W) with N >= 1, got {shape}")
    if any(isinstance(module, Smooth) for module in model.modules()):
        raise ValueError(f"{type(model).__name__} has Smooth layers already")


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
    maps: dict[str, Stage] = {}
    for module, returned in trace.returned.items():
        for number in returned:
            size = map_size(trace.steps[number].shape, trace.steps[0].shape)
            if module and size is not None:
                maps.setdefault(module, Stage(module, size.channels_last))
    if name in maps:
        return maps[name]
    raise ValueError(
        f"where names {name!r}, which is no module of this model that returns a feature map; "
        f"those are {list(maps)}"
    )


# By name, because libraries bring activations of their own.
_ACTIVATIONS = {
    *("ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "SELU", "CELU", "GELU", "GELUTanh"),
    *("QuickGELU", "SiLU", "Swish", "Mish", "Hardswish", "HardSwish", "Tanh", "Softplus"),
}

_GATES = {"Sigmoid", "Hardsigmoid", "HardSigmoid"}  # of squeeze-and-excitation
_SHORTCUTS = {"downsample", "shortcut", "proj", "skip", "identity"}
_LONGEST_BLOCK = 4


def add_dropout(model: nn.Module, rate: float) -> nn.Module:
    """A copy of `model` with one dropout layer in each block.

    `sfumato.predictions.MCDropout` averages several draws from it. Each residual block gets one
    `nn.Dropout` before its last layer; in a plain network such as VGG every convolution gets one
    after its activation. A *block* is a row of two to four layers, with a convolution larger than
    1x1 or an activation among them. Stems, shortcuts, squeeze-and-excitation, attention and rows
    that have dropout already (classifiers) are left alone. The copy has the same state-dict keys.

    Args:
        model: any network.
        rate: probability of dropping a value. The paper takes 0.3 for CIFAR and 0.05 for ImageNet.

    Example:
        >>> from torchvision.models import resnet18
        >>> model = add_dropout(resnet18(), 0.3)
        >>> sum(isinstance(part, nn.Dropout) for part in model.modules())
        8
        >>> model.layer1[0].conv2.dropout
        Dropout(p=0.3, inplace=False)

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, Appendix A.1.

    Differs: in the released code the dropout of blocks stays on in evaluation mode, and the
    pre-activation VGG has it after each convolution, here after activations.
    """
    _check_model(model)
    check_number("rate", rate, low=0.0)
    if rate >= 1:
        raise ValueError(f"rate must be in [0, 1), got {rate!r}")
    result = copy.deepcopy(model)
    rows = [row for row in _rows(result) if _is_block(row)]
    if not rows:
        raise ValueError(f"{type(model).__name__} {_why_not(model)}")
    for row in rows:
        for place, insert in _places(row):
            insert(place, nn.Dropout(rate).train(model.training), "dropout")
    return result


def _why_not(model: nn.Module) -> str:
    """Explain why a model has no blocks to put dropout into, and what to do."""
    rates = sorted({part.p for part in model.modules() if isinstance(part, nn.Dropout) and part.p})
    if rates:
        found = ", ".join(f"{rate:g}" for rate in rates)
        return (
            f"has dropout already, at the rate {found}, and no block without it: set the rate "
            "where the model is built, or build it without dropout"
        )
    return (
        "has no block of convolutions to put dropout into. Write nn.Dropout modules into the model "
        "where it should be random"
    )


def _rows(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Rows of modules that run one after the other, in `module` and everything below it."""
    units = [part for part in module.modules() if part is not module and _is_unit(part)]
    if is_plain_sequential(module):
        yield list(_flat(module))
    elif not units and not isinstance(module, nn.ModuleList | nn.ModuleDict):
        yield [part for name, part in module.named_children() if _in_line(name, part)]
        for part in module.children():
            if is_plain_sequential(part):
                yield list(_flat(part))
    if units:  # what a module has besides its units is a stem, a transition or a head
        for part in module.children():
            if any(other in units for other in part.modules()):
                yield from _rows(part)


def _flat(sequential: nn.Module) -> Iterator[nn.Module]:
    for part in sequential.children():
        if is_plain_sequential(part) and _weights(part) > 1:
            yield from _flat(part)
        else:
            yield part


def _in_line(name: str, part: nn.Module) -> bool:
    """True if a direct child is in the row of its parent: branches and shortcuts are not."""
    return name not in _SHORTCUTS and not (is_plain_sequential(part) and _weights(part) > 1)


def _is_unit(module: nn.Module) -> bool:
    """A module with a forward of its own and several layers: a block, or something larger."""
    container = is_plain_sequential(module) or isinstance(module, nn.ModuleList | nn.ModuleDict)
    attends = "attention" in type(module).__name__.lower()
    gates = any(type(part).__name__ in _GATES for part in module.modules())
    side = container or attends or (gates and not _is_spatial(module))
    return not side and _weights(module) > 1


def _weights(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d | nn.Linear) for part in module.modules())


def _is_spatial(module: nn.Module) -> bool:
    kernels = [part.kernel_size for part in module.modules() if isinstance(part, nn.Conv2d)]
    return any(max(size) > 1 for size in kernels)


def _activates(module: nn.Module) -> bool:
    return type(module).__name__ in _ACTIVATIONS


def _is_block(row: list[nn.Module]) -> bool:
    layers = [part for part in row if _weights(part) == 1]
    parts = [part for item in row for part in item.modules()]
    dropped = any(isinstance(part, nn.Dropout) and part.p > 0 for part in parts)
    if len(layers) < 2 or dropped or any(_is_unit(part) for part in parts if part not in layers):
        return False
    return any(_is_spatial(layer) for layer in layers) or any(map(_activates, row))


def _places(row: list[nn.Module]) -> list[tuple[nn.Module, Callable[..., None]]]:
    """Before the last layer of a block; after each activation of a longer row."""
    layers = [part for part in row if _weights(part) == 1]
    if len(layers) <= _LONGEST_BLOCK:
        return [(layers[-1], insert_before)]
    later = row[row.index(layers[0]) :]
    return [(part, insert_after) for part in later if _activates(part) or _wraps_activation(part)]


def _wraps_activation(part: nn.Module) -> bool:
    """True if a module is convolution, norm and activation in one."""
    if _weights(part) != 1 or isinstance(part, nn.Conv2d | nn.Linear):
        return False
    return not is_plain_sequential(part) or any(map(_activates, part.modules()))


def model_summary(model: nn.Module, example_input: Tensor | None = None) -> str:
    """A table of the `Smooth` and dropout layers of a model, in the order of its modules.

    Args:
        model: any model.
        example_input: images (N, C, H, W); with them the table also shows the maps that arrive.

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
    maps: dict[nn.Module, tuple[int, ...]] = {}
    if example_input is not None:
        maps = input_shapes(model, [part for _, part in layers], example_input[:1])
    shown = {part: str(shape[1:]) for part, shape in maps.items()}
    rows = [(name, _describe(part), shown.get(part, "")) for name, part in layers]
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
