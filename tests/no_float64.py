"""A device without float64, as Apple's, played by the processor.

`no_float64(monkeypatch)` gives tensors on the device "meta" that hold numbers. They refuse float64
and operands on another device, and `sfumato._core.checks` is told that "meta" has no float64. The
code under test runs as on such a machine, so forgetting a conversion fails as it would there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sfumato._core import checks

DEVICE = torch.device("meta")  # its guard and its queue of gradients are in every build of PyTorch
_MIXES = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}


class NarrowTensor(Tensor):
    """Numbers on the device without float64."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> NarrowTensor:
        if inner.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"this device has no float64, got {inner.dtype} {tuple(inner.shape)}")
        return Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner.detach()

    def __repr__(self) -> str:
        return f"NarrowTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        leaves = [x for x in _leaves((args, kwargs)) if isinstance(x, Tensor)]
        if name not in _MIXES:
            for leaf in leaves:
                if leaf.device != DEVICE and leaf.ndim:
                    raise RuntimeError(f"{name}: operands are on {leaf.device} and on {DEVICE}")
        device = kwargs.get("device")
        if kwargs.get("dtype") in (torch.float64, torch.complex128):
            raise TypeError(f"{name}: this device can't convert to float64, move the tensor first")
        stays = device is None or device == DEVICE
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        result = func(*_unwrapped(args), **_unwrapped(kwargs))
        known = {id(x.inner): x for x in leaves if isinstance(x, NarrowTensor)}
        known |= {id(x): x for x in leaves if not isinstance(x, NarrowTensor)}
        if not stays:
            return result
        return tree_map(lambda x: known.get(id(x)) if id(x) in known else _wrapped(x), result)


class _Factories(TorchFunctionMode):
    """Make and move tensors to the device: PyTorch itself would drop their numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("tolist", "new_tensor") and isinstance(args[0], NarrowTensor):
            return _wrapped(func(*_unwrapped(args), **_unwrapped(kwargs)))
        if name == "where":  # PyTorch would put a number on the device as a tensor without one
            args = tuple(torch.tensor(x) if isinstance(x, int | float) else x for x in args)
        if name == "numpy" and isinstance(args[0], NarrowTensor):
            raise TypeError(
                "can't convert a tensor of this device to numpy, use Tensor.cpu() first"
            )
        if name == "to" and isinstance(args[0], Tensor):
            return _move(func, args, kwargs)
        if name == "type_as" and isinstance(args[1], NarrowTensor):
            return _move(Tensor.to, args, {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]) == DEVICE:
            kwargs = {**_unwrapped(kwargs), "device": torch.device("cpu")}
            return _wrapped(func(*_unwrapped(args), **kwargs))
        return func(*args, **kwargs)


def _move(func: Any, args: Any, kwargs: Any) -> Any:
    """`Tensor.to` with a device, a dtype, another tensor or any mixture of them."""
    source, *rest = args
    if rest and isinstance(rest[0], NarrowTensor):
        rest = [DEVICE, rest[0].dtype, *rest[1:]]
    where = [x for x in (*rest, kwargs.get("device")) if isinstance(x, (str, torch.device))]
    if isinstance(source, NarrowTensor) or not where or torch.device(where[0]) != DEVICE:
        return func(source, *rest, **kwargs)
    host = torch.device("cpu")
    rest = [host if isinstance(x, (str, torch.device)) else x for x in rest]
    kwargs = {**kwargs, "device": host} if "device" in kwargs else kwargs
    return _wrapped(func(source.detach(), *rest, **kwargs))


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


def _unwrapped(tree: Any) -> Any:
    def unwrap(x: Any) -> Any:
        if isinstance(x, NarrowTensor):
            return x.inner
        # Gradients of PyTorch make their zeros on the device, past this file.
        is_lost = isinstance(x, Tensor) and x.device == DEVICE
        return torch.zeros(x.shape, dtype=x.dtype) if is_lost else x

    return tree_map(unwrap, tree)


def _wrapped(tree: Any) -> Any:
    def wrap(x: Any) -> Any:
        return NarrowTensor(x) if isinstance(x, Tensor) else x

    return tree_map(wrap, tree)


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """Autocasting of the processor: "meta" has none."""
    return torch.amp.autocast("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)


_is_autocast_enabled = torch.is_autocast_enabled


def _is_autocasting(device_type: str = "cpu") -> bool:
    return _is_autocast_enabled("cpu" if device_type == DEVICE.type else device_type)


@contextmanager
def no_float64(monkeypatch: Any) -> Iterator[torch.device]:
    """Run the body with `DEVICE` as a device that has no float64."""
    with monkeypatch.context() as patch, _Factories():
        patch.setattr(checks, "DEVICES_WITHOUT", frozenset({DEVICE.type}))
        patch.setattr(torch, "autocast", _autocast)
        patch.setattr(torch, "is_autocast_enabled", _is_autocasting)
        yield DEVICE
