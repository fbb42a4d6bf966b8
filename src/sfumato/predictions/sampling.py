"""Many stochastic passes in one: dropout on, everything before the first dropout computed once.

A torch function mode watches the calls of an ordinary forward pass. At the first dropout the batch
is repeated once for each sample, so that what comes before runs once and what comes after runs on
the folded batch. A tensor from before that meets one from after (a residual connection) is
repeated then. Modules stay in evaluation mode: batch norm keeps its statistics, and dropout that a
model calls as a function (`F.dropout`) is switched on like any other.

To tell activations from weights, whose first axis may by chance be as long as the batch, the mode
follows what is computed from weights alone ("static") and what comes after the fold ("folded").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from sfumato.predictions.element_dropout import element_dropout

DROPOUTS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    F.dropout: element_dropout,
    F.dropout1d: F.dropout1d,
    F.dropout2d: F.dropout2d,
    F.dropout3d: F.dropout3d,
    F.alpha_dropout: F.alpha_dropout,
    F.feature_alpha_dropout: F.feature_alpha_dropout,
    torch.dropout: element_dropout,
    torch.alpha_dropout: F.alpha_dropout,
}
# A weight made as long as the batch by one of these stands for one row per image.
_SPREADING = frozenset({"expand", "expand_as", "repeat", "tile", "broadcast_to"})


class FoldingError(Exception):
    """The model does something that repeating the batch does not follow."""


class FoldedSampling(TorchFunctionMode):
    """Within this mode dropout is active and the batch is folded `samples` times.

    Args:
        batch: number of images B.
        samples: number of samples S; the output of the model has S * B rows, samples outermost.
        weights: parameters and buffers of the model.

    Attributes:
        found: number of dropout calls seen; 0 after a pass means that nothing was random.

    Raises:
        FoldingError: dropout on weights, or on a tensor whose first axis is not the batch.
    """

    def __init__(self, batch: int, samples: int, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.batch = batch
        self.samples = samples
        self.found = 0
        self._kinds = _Kinds(dict.fromkeys(weights, "static") if samples > 1 else {})
        self._replaced = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if len(self._replaced):
            args, kwargs = tree_map(self._current, (args, kwargs))
        if func in DROPOUTS:
            return self._dropout(func, *args, **kwargs)
        if self.samples == 1:
            return func(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        if self.found and self._kinds.any_folded(tensors):
            return self._after_fold(func, args, kwargs, tensors)
        result = func(*args, **kwargs)
        if tensors and self._kinds.all_static(tensors) and func.__name__ not in _SPREADING:
            self._kinds.mark(result, "static")
        return result

    def _dropout(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool = True,
    ) -> Tensor:
        """Active dropout, whatever `training` (`train` of `torch.dropout`) says."""
        if p == 0:
            return input
        self.found += 1
        source = self._fold_for_dropout(input)
        result = DROPOUTS[func](source, p=p, training=True, inplace=inplace)
        if self.samples > 1:
            self._kinds.mark(result, "folded")
        if inplace and source is not input:
            self._replaced[input] = result
        return result

    def _fold_for_dropout(self, input: Tensor) -> Tensor:
        if self.samples == 1 or self._kinds.folded(input):
            return input
        if self._kinds.get(input) == "static" or input.shape[:1] != (self.batch,):
            raise FoldingError(f"dropout on {tuple(input.shape)} for a batch of {self.batch}")
        return self._fold(input)

    def _after_fold(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
    ) -> Any:
        """A call that has folded arguments: unfolded activations among the others are repeated."""
        rows = self.batch * self.samples
        depths = {t.ndim for t in tensors if t.shape[:1] == (rows,) and self._kinds.folded(t)}

        def repeated(item: Any) -> Any:
            waits = isinstance(item, Tensor) and item.shape[:1] == (self.batch,)
            if waits and item.ndim in depths and self._kinds.get(item) is None:
                return self._fold(item)
            return item

        new_args, new_kwargs = tree_map(repeated, (args, kwargs))
        written = _writes(func) and new_args[0] is not args[0]
        if written and args[0]._is_view():
            raise FoldingError("a write to a part of a tensor from before the first dropout")
        result = func(*new_args, **new_kwargs)
        if written:
            # The caller may go on with the tensor it asked to be written to.
            self._replaced[args[0]] = new_args[0]
            self._kinds.mark(new_args[0], "folded")
        self._kinds.mark(result, "folded")
        return result

    def _fold(self, tensor: Tensor) -> Tensor:
        """Sample by sample, batch within; unlike `repeat`, `cat` keeps channels_last."""
        return torch.cat([tensor] * self.samples)

    def _current(self, item: Any) -> Any:
        return self._replaced.get(item, item) if isinstance(item, Tensor) else item


class _Kinds:
    """What is known of a tensor, for as long as it lives; nothing is known of activations."""

    def __init__(self, known: dict[Tensor, str]) -> None:
        self._known = WeakIdKeyDictionary(known)

    def get(self, tensor: Tensor) -> Literal["static", "folded"] | None:
        kind: Literal["static", "folded"] | None = self._known.get(tensor)
        return kind

    def folded(self, tensor: Tensor) -> bool:
        return self.get(tensor) == "folded"

    def any_folded(self, tensors: list[Tensor]) -> bool:
        return any(self.folded(tensor) for tensor in tensors)

    def all_static(self, tensors: list[Tensor]) -> bool:
        return all(self.get(tensor) == "static" for tensor in tensors)

    def mark(self, result: Any, kind: Literal["static", "folded"]) -> None:
        for tensor in _tensors((result,)):
            self._known[tensor] = kind


def _tensors(items: Iterable[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)


def _writes(func: Callable[..., Any]) -> bool:
    """Whether a function changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = func.__name__
    if name.startswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_")
