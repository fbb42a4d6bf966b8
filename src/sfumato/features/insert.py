"""Putting a layer before or after a module without renaming any parameter.

A layer that runs after a plain `nn.Sequential` becomes its last child. Anywhere else it becomes a
child of the module in question and runs from a forward hook. Either way it is seen by `modules()`,
`to()`, `print`, `deepcopy`, `pickle`, `torch.compile` and `torch.export`, and the names of all
other parameters and buffers stay what they were.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether `module` runs its children one after the other and does nothing else."""
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
