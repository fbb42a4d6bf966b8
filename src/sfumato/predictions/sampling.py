"""Many stochastic passes in one: dropout on, everything before the first dropout computed once.

A torch function mode watches the calls of an ordinary forward pass. At the first dropout the batch
is repeated once for each sample, so that what comes before runs once and what comes after runs on
the folded batch. A tensor from before that meets one from after (a residual connection) is
repeated then. Modules stay in evaluation mode: batch norm keeps its statistics, and dropout that a
model calls as a function (`F.dropout`) is switched on like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

DROPOUTS: frozenset[Callable[..., Tensor]] = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
    }
)


class FoldedSampling(TorchFunctionMode):
    """Within this mode dropout is active and the batch is folded `samples` times.

    Attributes:
        found: number of dropout calls seen; 0 after a pass means that nothing was random.
    """

    def __init__(self, batch: int, samples: int) -> None:
        super().__init__()
        self.batch = batch
        self.samples = samples
        self.found = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return self._dropout(func, *args, **kwargs)
        if self.found and self.samples > 1:
            args = self._align(args)
        return func(*args, **kwargs)

    def _dropout(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if p == 0:
            return input
        self.found += 1
        folded = self._fold(input)
        # Writing over a tensor from before the fold would change what other branches read.
        return func(folded, p=p, training=True, inplace=inplace and folded is input)

    def _fold(self, tensor: Tensor) -> Tensor:
        """Repeat a tensor from before the first dropout: sample by sample, batch within."""
        if self.samples == 1 or tensor.shape[0] != self.batch:
            return tensor
        return tensor.repeat(self.samples, *[1] * (tensor.ndim - 1))

    def _align(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Repeat unfolded activations that meet folded ones in one call."""
        tensors = list(_tensors(args))
        folded = {t.ndim for t in tensors if t.ndim > 1 and t.shape[0] == self.batch * self.samples}
        waiting = [t for t in tensors if t.shape[:1] == (self.batch,) and t.ndim in folded]
        if not waiting or not all(_is_activation(t) for t in waiting):
            return args
        return tuple(
            type(arg)(self._fold(t) if t.ndim in folded else t for t in arg)
            if isinstance(arg, list | tuple)
            else self._fold(arg)
            if isinstance(arg, Tensor) and arg.ndim in folded
            else arg
            for arg in args
        )


def _tensors(args: tuple[Any, ...]) -> Iterable[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (item for item in arg if isinstance(item, Tensor))


def _is_activation(tensor: Tensor) -> bool:
    return not isinstance(tensor, torch.nn.Parameter)
