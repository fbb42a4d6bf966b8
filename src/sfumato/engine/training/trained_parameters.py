"""Which parameters are trained, and at which rate: `train.freeze`, `train.head_learning_rate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato.engine.config.sections import ConfigError, TrainConfig
from sfumato.models.final_layer import final_parameters

RATE_FACTOR = "rate_factor"
"""Key of a parameter group: its rate is the schedule's times this."""
_SHOWN = 12


def parameter_groups(model: nn.Module, train: TrainConfig) -> Iterable[Any]:
    """What an optimiser trains, after freezing what `train.freeze` names.

    Returns:
        All parameters, or those that are left, or two groups, of which the second is the final
        layer with a rate of its own.

    Raises:
        ConfigError: a pattern that matches nothing, patterns that leave nothing to train, or a
            rate for a final layer that is frozen.
    """
    frozen = frozen_parameters(model, train.freeze)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    if train.head_learning_rate is None:
        return model.parameters() if not frozen else _trained(model)
    head = final_parameters(model)
    if head <= frozen:
        raise ConfigError(
            f"train.head_learning_rate is for {', '.join(sorted(head))}, which train.freeze "
            "freezes: leave one of the two out"
        )
    factor = train.head_learning_rate / train.learning_rate
    others = [p for name, p in model.named_parameters() if name not in head and p.requires_grad]
    own = [p for name, p in model.named_parameters() if name in head and p.requires_grad]
    groups = [{"params": others, RATE_FACTOR: 1.0}, {"params": own, RATE_FACTOR: factor}]
    return [group for group in groups if group["params"]]


def frozen_parameters(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Names of the parameters that patterns match, as shells match files.

    A pattern names parameters or modules: `stem`, `stages.0`, `layer[12]`, `*.bias`.

    Example:
        >>> from sfumato.models import resnet
        >>> sorted(frozen_parameters(resnet(8, num_classes=3, width=4), ["stem"]))
        ['stem.0.weight', 'stem.1.bias', 'stem.1.weight']
    """
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    for pattern in patterns:
        found = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")}
        if not found:
            modules = [name for name, _ in model.named_modules() if 0 < len(name.split(".")) <= 2]
            raise ConfigError(
                f"train.freeze: {pattern!r} matches no parameter of this {type(model).__name__}; "
                f"its modules are {', '.join(filter(None, modules[: _SHOWN + 1]))} ..."
            )
        frozen |= found
    if frozen and len(frozen) == len(names):
        raise ConfigError(
            f"train.freeze: {', '.join(patterns)} freezes all {len(names)} parameters, and nothing "
            "is left to train: leave the head out, which is "
            f"{', '.join(sorted(final_parameters(model)))}"
        )
    return frozen


def hold_frozen_statistics(model: nn.Module) -> None:
    """Put batch normalisation whose parameters are all frozen into evaluation mode.

    Its running statistics belong to the weights around it, which stay as they are.
    """
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) and own and not any(p.requires_grad for p in own):
            module.eval()


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
