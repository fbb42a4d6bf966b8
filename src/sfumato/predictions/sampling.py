"""Ensembles over weights: MC dropout, deep ensembles, and ensembles while training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from sfumato._core.checks import check_integer
from sfumato._core.evaluation_mode import keeping_modes, returns_probabilities
from sfumato._core.seeds import draw_seed

_LEVELS = 1 << 16  # the rate is a multiple of its inverse: 0.1 is 0.100006


def element_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`F.dropout` with other random numbers; on a processor several times as fast.

    What is kept is scaled by the rate that is drawn, so that the expectation is the input.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> element_dropout(torch.ones(2, 4), 0.5)
        tensor([[0., 0., 2., 0.],
                [0., 0., 0., 0.]])
    """
    dropped = round(float(p) * _LEVELS)
    if not training or input.device.type != "cpu" or not 0 < dropped < _LEVELS:
        return F.dropout(input, p, training, inplace)
    count = input.numel()
    drawn = torch.empty(-(-count // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    kept = torch.empty_like(input, dtype=torch.bool)  # dense, in the input's order of axes
    lanes = drawn.view(torch.int16)[:count]
    torch.ge(lanes, dropped - _LEVELS // 2, out=kept.as_strided((count,), (1,)))
    factor = kept.view(torch.uint8).to(input.dtype).mul_(_LEVELS / (_LEVELS - dropped))
    return input.mul_(factor) if inplace else input * factor


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
    """Mode in which dropout is active and the batch is folded `samples` times.

    Attributes:
        found: number of dropout calls seen; 0 after a pass means that nothing was random.
    """

    def __init__(self, batch: int, samples: int, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.batch = batch
        self.samples = samples
        self.found = 0
        # "static" or "folded", for as long as a tensor lives; nothing is known of activations.
        self._kinds = WeakIdKeyDictionary(dict.fromkeys(weights, "static") if samples > 1 else {})
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
        if self.found and any(map(self._is_folded, tensors)):
            return self._after_fold(func, args, kwargs, tensors)
        result = func(*args, **kwargs)
        is_static = tensors and all(self._kinds.get(each) == "static" for each in tensors)
        if is_static and func.__name__ not in _SPREADING:
            self._mark(result, "static")
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
        # Nothing is random, so it doesn't count as found.
        if p == 0:
            return input
        self.found += 1
        source = self._fold_for_dropout(input)
        result = DROPOUTS[func](source, p=p, training=True, inplace=inplace)
        if self.samples > 1:
            self._mark(result, "folded")
        if inplace and source is not input:
            self._replaced[input] = result
        return result

    def _fold_for_dropout(self, input: Tensor) -> Tensor:
        if self.samples == 1 or self._is_folded(input):
            return input
        if self._kinds.get(input) == "static" or input.shape[:1] != (self.batch,):
            raise FoldingError(f"dropout on {tuple(input.shape)} for a batch of {self.batch}")
        return repeat_images(input, self.samples)

    def _after_fold(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
    ) -> Any:
        """A call that has folded arguments: unfolded activations among the others are repeated."""
        rows = self.batch * self.samples
        depths = {t.ndim for t in tensors if t.shape[:1] == (rows,) and self._is_folded(t)}

        def repeated(item: Any) -> Any:
            waits = isinstance(item, Tensor) and item.shape[:1] == (self.batch,)
            if waits and item.ndim in depths and self._kinds.get(item) is None:
                return repeat_images(item, self.samples)
            return item

        new_args, new_kwargs = tree_map(repeated, (args, kwargs))
        written = _writes(func) and new_args[0] is not args[0]
        if written and args[0]._is_view():
            raise FoldingError("a write to a part of a tensor from before the first dropout")
        result = func(*new_args, **new_kwargs)
        if written:
            # The caller may go on with the tensor it asked to be written to.
            self._replaced[args[0]] = new_args[0]
            self._mark(new_args[0], "folded")
        self._mark(result, "folded")
        return result

    def _is_folded(self, tensor: Tensor) -> bool:
        return bool(self._kinds.get(tensor) == "folded")

    def _mark(self, result: Any, kind: str) -> None:
        for tensor in _tensors((result,)):
            self._kinds[tensor] = kind

    def _current(self, item: Any) -> Any:
        return self._replaced.get(item, item) if isinstance(item, Tensor) else item


def _tensors(items: Iterable[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)


def _writes(func: Callable[..., Any]) -> bool:
    """True if a function changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = func.__name__
    if name.startswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_")


@dataclass(frozen=True)
class SampledPrediction:
    """Outcome of N stochastic passes, each of shape (B, ...) or (B, C, ...) for probabilities.

    Attributes:
        probs: mean probabilities, Eq. (2).
        entropy: entropy of the mean, the total uncertainty.
        mutual_information: entropy of the mean minus mean entropy; what the passes disagree on.
        variance: of the passes' probabilities, (B, C, ...).
    """

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor
    variance: Tensor


class MCDropout(nn.Module):
    """Averages the probabilities of a network over random dropout masks.

    Dropout is on, everything else is in evaluation mode; dropout called as a function counts too.
    What comes before the first dropout is computed once. The samples are folded into the batch,
    `max_batch` at a time, so that memory does not grow with their number. A model that can't be
    folded (the batch is not the first axis, dropout on weights, a batch size kept from before the
    dropout) is sampled pass by pass.

    Dropout inside fused calls stays off: in `nn.MultiheadAttention`,
    `F.scaled_dot_product_attention` and `nn.LSTM`, stochastic depth, and scripted models.

    Args:
        model: a network with dropout, giving logits (B, C) or (B, C, ...).
        samples: number N of passes.
        max_batch: largest folded batch. Larger ones can be slower on a CPU; a GPU may want 1024.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        >>> mc = MCDropout(net, samples=10)
        >>> mc(torch.zeros(4, 2)).shape
        torch.Size([4, 3])

    Reference:
        Park and Kim 2022, Eq. (2). Differs: the released code keeps dropout of its MLP heads off
        at test time; here every dropout is on.
    """

    returns_probabilities = True  # the call gives the mean of softmaxes, no logits

    def __init__(self, model: nn.Module, samples: int = 30, *, max_batch: int = 256) -> None:
        super().__init__()
        check_integer("samples", samples, low=1)
        check_integer("max_batch", max_batch, low=1)
        self.model = model
        self.samples = samples
        self.max_batch = max_batch
        self._folds = True

    def forward(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Mean probabilities over the samples."""
        return self.curve(x, [self.samples], generator=generator)[self.samples]

    def predict(self, x: Tensor, *, generator: torch.Generator | None = None) -> SampledPrediction:
        """Mean probabilities with their uncertainties."""
        parts = []
        with self._sampling(generator):
            for images in self._slices(x):
                mean = square = entropy = torch.zeros(())
                for probs in self._passes(images, self.samples):  # (S, B, C, ...)
                    share = len(probs) / self.samples
                    mean = mean + share * probs.mean(0)
                    square = square + share * probs.square().mean(0)
                    entropy = entropy + share * torch.special.entr(probs).sum(2).mean(0)
                total = torch.special.entr(mean).sum(1)
                gained = (total - entropy).clamp_min(0)
                parts.append((mean, total, gained, (square - mean.square()).clamp_min(0)))
        return SampledPrediction(*map(torch.cat, zip(*parts, strict=True)))

    def curve(
        self, x: Tensor, sizes: Sequence[int], *, generator: torch.Generator | None = None
    ) -> dict[int, Tensor]:
        """Mean probabilities of ensembles of several sizes, from one set of max(sizes) passes."""
        if not sizes:
            raise ValueError("sizes must name at least one ensemble size, got none")
        for size in sizes:
            check_integer("sizes", size, low=1)
        wanted = sorted(set(sizes))
        parts: dict[int, list[Tensor]] = {size: [] for size in wanted}
        with self._sampling(generator):
            for images in self._slices(x):
                total, done = torch.zeros(()), 0
                for probs in self._passes(images, wanted[-1]):
                    for size in wanted:
                        if done < size <= done + len(probs):
                            parts[size].append((total + probs[: size - done].sum(0)) / size)
                    total, done = total + probs.sum(0), done + len(probs)
        return {size: torch.cat(parts[size]) for size in sizes}

    def _slices(self, x: Tensor) -> Iterator[Tensor]:
        """The batch in parts whose folded size is at most `max_batch`."""
        return iter(x.split(max(1, self.max_batch // self.samples)))

    def _passes(self, images: Tensor, samples: int) -> Iterator[Tensor]:
        """Probabilities (s, B, C, ...) of `samples` passes, as many at a time as fit."""
        at_once = max(1, self.max_batch // max(1, len(images)))
        done = 0
        while done < samples:
            count = min(at_once if self._folds else 1, samples - done)
            try:
                logits = _folded_logits(self.model, images, count)
            except FoldingError:
                self._folds = False  # for the rest of this call
                continue
            # Half precision would lose the small probabilities, and the sum over many samples.
            dtype = torch.promote_types(logits.dtype, torch.float32)
            yield logits.softmax(1, dtype=dtype).unflatten(0, (count, len(images)))
            done += count

    @contextmanager
    def _sampling(self, generator: torch.Generator | None) -> Iterator[None]:
        """Evaluation mode for all modules, and the generator's randomness; undone at the end."""
        self._folds = True
        with ExitStack() as undone:
            undone.enter_context(keeping_modes(self.model))
            self.model.eval()
            if generator is not None:
                seed = draw_seed(generator)
                undone.enter_context(torch.random.fork_rng())
                torch.manual_seed(seed)
            yield


def _folded_logits(model: nn.Module, images: Tensor, samples: int) -> Tensor:
    weights = itertools.chain(model.parameters(), model.buffers())
    try:
        with FoldedSampling(len(images), samples, weights) as mode:
            logits: Tensor = model(images)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if samples > 1:  # such as a view to a batch size that was read before the fold
            raise FoldingError("the folded pass failed") from error
        raise
    if not mode.found:
        raise ValueError(
            "the model has no active dropout, so all passes are the same: insert it with "
            "sfumato.features.add_dropout(model, rate), or use DeepEnsemble"
        )
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ValueError(
            "the model must return logits (B, C, ...) alone; it returned "
            f"{type(logits).__name__} {tuple(getattr(logits, 'shape', ()))}. Wrap it in a module "
            "that picks the logits."
        )
    if len(logits) != samples * len(images):
        if samples > 1:
            raise FoldingError("the output does not follow the folded batch")
        raise ValueError(
            "the model must return logits (B, C, ...) whose batch axis follows its input; it "
            f"returned {tuple(logits.shape)} for a batch of {len(images)}"
        )
    return logits


class DeepEnsemble(nn.Module):
    """Mean of the members' probabilities, Eq. (2) with independently trained weights.

    Args:
        models: networks that give logits (B, C, ...), or modules with `returns_probabilities =
            True`, such as `MCDropout` and `DeepEnsemble`; both kinds may be mixed.

    Example:
        >>> members = [nn.Linear(2, 3), nn.Linear(2, 3)]
        >>> DeepEnsemble(members)(torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """

    returns_probabilities = True  # the call gives the mean of softmaxes, no logits

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ValueError("models must hold at least one network")
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        """Mean probabilities over the members, in the members' own modes."""
        total = torch.zeros(())
        for model in self.models:
            output = model(x)
            total = total + (output if returns_probabilities(model) else output.softmax(1))
        return total / len(self.models)

    @torch.no_grad()
    def curve(self, x: Tensor) -> dict[int, Tensor]:
        """Mean probabilities of the first 1, 2, ... members, from one pass of each."""
        means, total = {}, torch.zeros(())
        for count, model in enumerate(self.models, start=1):
            total = total + DeepEnsemble([model])(x)
            means[count] = total / count
        return means


def mean_log_probability(model: nn.Module, images: Tensor, *, samples: int) -> Tensor:
    r"""Logarithm of the mean predicted probability over several stochastic passes.

    Dropout makes the loss fluctuate, which sharpens its landscape; the variance falls with the
    number of passes (Eq. 28). softmax(log p) = p, so that any loss takes it in place of logits:

        log p(y|x) = log 1/N sum_i softmax(f(x; w_i))                                 (Eq. 2, D.4)

    All passes are one batch of `samples` times the size, which batch norm sees as a whole.

    Args:
        model: a network with dropout, in training mode, that returns logits.
        images: a batch, (B, ...); the result is like the model's logits.
        samples: N, the number of passes.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
        >>> _ = torch.manual_seed(0)
        >>> logits = mean_log_probability(model, torch.ones(2, 4), samples=8)
        >>> round(logits.exp().sum().item(), 4)
        2.0

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (2)**, Appendices D.3 and D.4.
    """
    check_integer("samples", samples, low=1)
    return average_passes(model(repeat_images(images, samples)), samples)


def repeat_images(images: Tensor, samples: int) -> Tensor:
    """A batch `samples` times in a row, (B, ...) as (N B, ...)."""
    return torch.cat([images] * samples)  # cat keeps channels_last, repeat does not


def average_passes(logits: Tensor, samples: int) -> Tensor:
    """Logarithm of the mean probability of each image, of logits of `repeat_images`."""
    passes = logits.log_softmax(1).unflatten(0, (samples, len(logits) // samples))  # (N, B, C, ...)
    return passes.logsumexp(0) - math.log(samples)  # Eq. (2)
