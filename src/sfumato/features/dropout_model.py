"""MC dropout for any network: a dropout layer in each block, where the paper has it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from torch import nn

from sfumato._core.checks import check_number
from sfumato.features.insert import insert_after, insert_before, is_plain_sequential

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

    A network with dropout is a distribution over networks; `sfumato.predictions.MCDropout` averages
    several draws from it. Following the paper, each residual block gets one `nn.Dropout` before its
    last layer (basic block: before the second convolution; bottleneck: before the last 1x1), and in
    a plain network such as VGG every convolution gets one after its activation. A *block* is a row
    of two to four layers, with a convolution larger than 1x1 or an activation among them. Stems,
    shortcuts, squeeze-and-excitation, attention and rows that have dropout already (classifiers)
    are left alone.

    The copy has the same state-dict keys; the original is left alone.

    Args:
        model: any network.
        rate: probability of dropping a value. The paper takes 0.3 for CIFAR and 0.05 for ImageNet.

    Returns:
        The copy with dropout layers. They act in training mode only, as every `nn.Dropout`.

    Raises:
        ValueError: rate outside [0, 1), or a model without blocks, or with dropout in all of them.
        TypeError: `model` is no module, or `rate` no number.

    Example:
        >>> from torchvision.models import resnet18
        >>> model = add_dropout(resnet18(), 0.3)
        >>> sum(isinstance(part, nn.Dropout) for part in model.modules())
        8
        >>> model.layer1[0].conv2.dropout
        Dropout(p=0.3, inplace=False)

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, Appendix A.1.

    Differs: in the released code the dropout of blocks stays on in evaluation mode; here prediction
    decides. The released pre-activation VGG has it after each convolution, here after activations.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
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
    """Why a model without blocks to put dropout into has none, and what to do."""
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
    """Whether a direct child is in the row of its parent: branches and shortcuts are not."""
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
    """Whether a module is convolution, norm and activation in one."""
    if _weights(part) != 1 or isinstance(part, nn.Conv2d | nn.Linear):
        return False
    return not is_plain_sequential(part) or any(map(_activates, part.modules()))
