"""The frame of every loss: check logits and target, reduce values, hold a module's arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_floating, check_integer, classes_second
from sfumato.ops.library import REAL
from sfumato.ops.softmax import (
    PlainSoftmax,
    SoftmaxSummary,
    in_full,
    reads_half,
    softmax_summary,
    valid_entries,
)

Options = ParamSpec("Options")
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Entries(NamedTuple):
    """Checked logits and target of one call.

    Attributes:
        given: logits (N, C, ...) in float32 or float64; on a GPU in half precision, too.
        target: class indices (N, ...) int64, or None.
        soft_target: (N, C, ...) in the precision of `logits`, or None.
        ignore_index: class index of entries that are skipped.
    """

    given: Tensor
    target: Tensor | None
    soft_target: Tensor | None
    ignore_index: int

    @property
    def logits(self) -> Tensor:
        """The logits in float32 or float64, for what no pass of a kernel computes."""
        return in_full(self.given)

    @property
    def like(self) -> Tensor:
        """A tensor of the device and the precision of `logits`."""
        return in_full(self.given if self.given.dtype in REAL else self.given.new_empty(0))

    @property
    def num_classes(self) -> int:
        return self.given.shape[1]

    @property
    def shape(self) -> torch.Size:
        """(N, ...), one number per entry."""
        return self.given.shape[:1] + self.given.shape[2:]

    @property
    def indices(self) -> Tensor:
        """The class indices; for losses that were prepared with `soft=False`."""
        if self.target is None:
            raise TypeError("target must hold class indices here")
        return self.target

    @property
    def safe_indices(self) -> Tensor:
        """The class indices with 0 for ignored ones, so that they can be gathered with."""
        target, _ = valid_entries(self.indices, self.num_classes, self.ignore_index)
        return self.indices if target is None else target

    @property
    def softmax(self) -> Callable[..., SoftmaxSummary]:
        """`softmax_summary` of these entries; call it with what is to be read."""
        given = (self.given, self.target, self.soft_target)
        return partial(softmax_summary, *given, ignore_index=self.ignore_index)

    def plain(self) -> PlainSoftmax:
        """The same with the logits themselves, for losses that need more than numbers."""
        target, valid = valid_entries(self.target, self.num_classes, self.ignore_index)
        return PlainSoftmax(self.logits, target, self.soft_target, valid=valid)


def full_precision(logits: Tensor) -> AbstractContextManager[object]:
    """Autocast off, so that products of float32 tensors stay float32."""
    return torch.autocast(device_type=logits.device.type, enabled=False)


def prepare_entries(
    logits: Tensor,
    target: Tensor | None,
    class_dim: int = 1,
    ignore_index: int = -100,
    *,
    soft: bool = True,
) -> Entries:
    """Check logits and target; labels out of range are found when they are read.

    Args:
        logits: (N, C) or (N, C, d1, ...), floating point, C >= 2.
        target: class indices (N, d1, ...), soft targets shaped like `logits`, or None.
        class_dim: dimension of C in `logits` and soft targets; they are viewed, not copied.
        ignore_index: class index whose entries are skipped; for class indices only.
        soft: whether this loss is defined for soft targets.
    """
    _check_logits(logits, class_dim)
    check_integer("ignore_index", ignore_index, low=-(2**63))
    given = logits.shape
    logits = classes_second(logits, class_dim)
    # Sums over classes lose digits in half precision; where kernels don't see to it, it is here.
    if not reads_half(logits):
        logits = in_full(logits)
    if target is None:
        return Entries(logits, None, None, ignore_index)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if target.is_floating_point():
        _check_soft_target(given, target, ignore_index, allowed=soft)
        target = classes_second(target, class_dim)
        exact = logits.dtype if logits.dtype in REAL else torch.float32
        return Entries(logits, None, target.to(exact), ignore_index)
    _check_hard_target(given, target, class_dim)
    if target.dtype != torch.int64:
        # Before any comparison: uint8 labels would wrap a negative ignore_index.
        target = target.long()
    return Entries(logits, target, None, ignore_index)


def reduce_entries(
    values: Tensor, counted: SoftmaxSummary, reduction: Reduction, *, weight: Tensor | None = None
) -> Tensor:
    """Reduce one value per entry; an all-ignored batch gives 0, connected to the graph.

    Args:
        values: (N, ...), one number per entry.
        counted: which entries count, and how many they are.
        reduction: "mean" over the valid entries, "sum", or "none" (0 at ignored entries).
        weight: (N, ...), by which the values are already multiplied; the mean divides by its sum.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    valid = counted.valid
    # `where`, not a product: 0 times an infinite value of an ignored entry would be NaN.
    if valid is not None:
        values = torch.where(valid, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if weight is not None:
        total = (weight if valid is None else torch.where(valid, weight, 0.0)).sum()
        return values.sum() / torch.where(total > 0, total, 1.0)
    if valid is None and values.numel():
        return values.mean()
    # Not `mean`, which is NaN for an empty batch and would end the training.
    return values.sum() / at_least_one(counted.count)


def factor_like(factor: float | Tensor, values: Tensor) -> float | Tensor:
    """A number, or a tensor with one, to multiply `values` by: in their dtype, on their device."""
    return factor.to(values) if isinstance(factor, Tensor) else factor


def checked_for_each(name: str, value: Tensor, entries: Entries, *, hint: str) -> Tensor:
    """One number for each entry, as a history of samples knows it, like the logits."""
    check_floating(name, value, hint=hint)
    if value.shape != entries.shape:
        raise ValueError(
            f"{name} must hold one number per entry, shape {tuple(entries.shape)}, "
            f"got {tuple(value.shape)}"
        )
    return value.to(entries.like)


def at_least_one(count: int | Tensor) -> int | Tensor:
    """A number of entries to divide by."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(1, count)


def _check_logits(logits: Tensor, class_dim: int) -> None:
    check_floating("logits", logits, hint="Pass the network's raw outputs")
    if logits.ndim < 2:
        raise ValueError(
            f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(logits.shape)}. "
            "For a single sample use logits[None]."
        )
    if classes_second(logits, class_dim).shape[1] < 2:
        raise ValueError(
            f"logits must have at least 2 classes in dimension {class_dim}, got shape "
            f"{tuple(logits.shape)}. "
            "For a binary task with one output z pass torch.stack([torch.zeros_like(z), z], 1)."
        )


def _check_soft_target(
    shape: torch.Size, target: Tensor, ignore_index: int, *, allowed: bool
) -> None:
    if not allowed:
        raise TypeError(
            f"target must hold class indices for this loss, got soft targets ({target.dtype}). "
            "Pass the labels before smoothing or mixing."
        )
    if target.shape != shape:
        raise ValueError(
            f"soft target must have the shape of logits {tuple(shape)}, got {tuple(target.shape)}"
        )
    if ignore_index >= 0:
        raise ValueError(
            f"ignore_index={ignore_index} marks class indices, but target holds soft targets. "
            "Leave ignore_index at -100, or pass class indices."
        )


def _check_hard_target(shape: torch.Size, target: Tensor, class_dim: int) -> None:
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target must hold integer class indices, got {target.dtype}")
    expected = list(shape)
    del expected[class_dim]
    if target.shape != torch.Size(expected):
        last = class_dim == 1 and target.shape == shape[:-1]
        hint = ". Pass class_dim=-1 where the classes are the last dimension" if last else ""
        raise ValueError(
            f"target must have shape {tuple(expected)} (class indices) or "
            f"{tuple(shape)} (soft targets, floating point) for logits of shape "
            f"{tuple(shape)} with the classes in dimension {class_dim}, "
            f"got {tuple(target.shape)}{hint}"
        )


def next_valid(valid: Tensor | None, like: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from values of the entries (N, ...), shaped `like`, to those of their partners.

    A partner is the next entry that counts (`valid`, None for all), of the last the first; that of
    an ignored entry is arbitrary.
    """
    if valid is None:
        return lambda values: values.flatten().roll(-1).view(like.shape)
    # Stable: valid entries first, in their order, whatever lies between them.
    order = (~valid.flatten()).byte().argsort(stable=True)
    place = torch.arange(len(order), device=order.device)
    following = order[torch.where(place + 1 < valid.sum(), place + 1, 0)]
    partner = torch.empty_like(order).scatter(0, order, following)
    return lambda values: values.flatten()[partner].view(like.shape)


def arguments_of(
    function: Callable[Concatenate[Tensor, Tensor, Options], Tensor],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, Options], None]]:
    """Make the options of a loss function the arguments of a module's `__init__`."""
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    found = inspect.signature(function, eval_str=True)
    options = list(found.parameters.values())[2:]  # after logits and target
    signature = inspect.Signature([first, *options], return_annotation=None)

    def decorate(_stub: Callable[[Any], None]) -> Callable[Concatenate[Any, Options], None]:
        def initialise(self: LossModule, *args: Options.args, **given: Options.kwargs) -> None:
            try:
                bound = signature.bind(self, *args, **given)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
            bound.apply_defaults()
            LossModule.__init__(self, bound.arguments)

        # What `inspect`, `help` and the reader of configurations go by.
        vars(initialise).update(__signature__=signature, function=function)
        return initialise

    return decorate


# Names of torch, torchvision and timm, and ours.
_THEIRS = {
    "weight": "class_weight",
    "label_smoothing": "smoothing",
    "alpha": "class_weight",
    "size_average": "reduction",
    "reduce": "reduction",
}


def _by_own_names(initialise: Callable[..., None]) -> Callable[..., None]:
    """Name the argument to use where another library's was given, or take it as a synonym."""
    known = inspect.signature(initialise).parameters

    @wraps(initialise)
    def initialised(self: LossModule, *args: Any, **given: Any) -> None:
        for theirs in [name for name in given if name in _THEIRS and name not in known]:
            ours, name = _THEIRS[theirs], type(self).__name__
            if ours not in known:
                raise TypeError(f"{name} has no {theirs}; it takes {', '.join(list(known)[1:])}")
            if theirs not in self.synonyms:
                raise TypeError(f"{name} calls {theirs} {ours}: give {ours}=")
            if ours in given:
                raise TypeError(f"give {ours} or {theirs}, which mean the same, not both")
            given[ours] = given.pop(theirs)
        initialise(self, *args, **given)

    return initialised


class LossModule(nn.Module):
    """Base of the modules of losses: it holds the arguments and hands them to the function.

    Each argument becomes an attribute, `class_weight` a buffer. A loss without a state has the
    arguments of its function:

        class ECPLoss(LossModule):
            @arguments_of(ecp_loss)
            def __init__(self) -> None: ...

    Another states its own, and begins with `super().__init__(locals())`. It may name a function,
    which then checks them; without one it writes its own `forward`. What a class does not say of
    its arguments is taken from the function, or from `COMMON`.

    Args:
        arguments: `locals()` of the subclass's `__init__`, taken before anything else.
        buffers: arguments that the subclass registers itself, as buffers of the same name.
    """

    function: ClassVar[Callable[..., Tensor] | None] = None
    synonyms: ClassVar[tuple[str, ...]] = ()  # names of torch that are understood
    passed_on: ClassVar[frozenset[str]] = frozenset()
    class_weight: Tensor | None
    class_dim: int
    ignore_index: int
    reduction: Reduction

    def __init_subclass__(cls, *, function: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        initialise = vars(cls).get("__init__")
        function = function or getattr(initialise, "function", None)
        if function is not None:
            cls.function = staticmethod(function)
            cls.passed_on = frozenset(inspect.signature(function).parameters)
        if initialise is not None:
            names = inspect.signature(initialise).parameters
            cls.__doc__ = _with_arguments(vars(cls).get("__doc__") or "", names, function)
            setattr(cls, "__init__", _by_own_names(initialise))  # noqa: B010 (mypy)

    def __init__(self, arguments: Mapping[str, Any], *, buffers: tuple[str, ...] = ()) -> None:
        super().__init__()
        check_choice("reduction", arguments["reduction"], REDUCTIONS)
        check_integer("class_dim", arguments.get("class_dim", 1), low=-(2**63))
        outside = ("self", "__class__", *buffers)  # `locals()` has the first two
        self.argument_names = tuple(name for name in arguments if name not in outside)
        for name in self.argument_names:
            if name == "class_weight":
                self.register_buffer(name, arguments[name])
            else:
                setattr(self, name, arguments[name])
        if self.function is not None:
            self._check()

    def _check(self, **more: Tensor | None) -> None:
        """Call the function with an empty batch: its own checks find a bad argument now."""
        options = {**self._options(), **more}
        # Two classes of no samples: enough to reach every check, nothing to compute.
        options |= {"class_dim": 1} if "class_dim" in options else {}
        if "class_weight" in options:  # its length is that of the logits to come
            options["class_weight"] = None
        target = torch.empty(0, dtype=torch.int64, device="cpu")
        self._call(torch.empty(0, 2, device="cpu"), target, options)

    def _options(self) -> dict[str, Any]:
        """The arguments of the function, as the attributes are now."""
        return {name: getattr(self, name) for name in self.argument_names if name in self.passed_on}

    def entries(self, logits: Tensor, target: Tensor, *, soft: bool = True) -> Entries:
        """`prepare_entries` with the module's own `class_dim` and `ignore_index`."""
        return prepare_entries(logits, target, self.class_dim, self.ignore_index, soft=soft)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Args: logits (N, C, ...), target: class indices (N, ...) or, if allowed, soft targets."""
        return self._call(logits, target, self._options())

    def _call(self, logits: Tensor, target: Tensor, options: Mapping[str, Any]) -> Tensor:
        if self.function is None:
            raise NotImplementedError(f"{type(self).__name__} names no function")
        return self.function(logits, target, **options)

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults."""
        defaults = inspect.signature(type(self)).parameters
        shown = []
        for name in self.argument_names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                shown.append(f"{name}=<{tuple(value.shape)}>")
            elif name not in defaults or value != defaults[name].default:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)


# What all losses say of these.
COMMON = """Args:
    class_weight: (C,), for the cross entropy only.
    class_dim, ignore_index: dimension of the classes in `logits`; class index to skip.
    reduction: "mean" of the entries that are not skipped, "sum" or "none"."""


def _with_arguments(
    text: str, names: Collection[str], function: Callable[..., Tensor] | None
) -> str:
    """Add to a docstring what those of the function and of all losses say of more arguments."""
    text = inspect.cleandoc(text)
    own = _described(text)
    for source in (inspect.getdoc(function) or "" if function else "", COMMON):
        for entry, named in _described(source).items():
            is_news = named & set(names) - set().union(*own.values())
            # A reference to the arguments of another function is no description.
            if is_news and not (named & {"logits", "target"}):
                own[entry] = named
    before, _, rest = text.partition("\n\nArgs:\n")
    arguments = "\n    ".join(["Args:", *own]) if own else ""
    return "\n\n".join(part for part in (before, arguments, rest.partition("\n\n")[2]) if part)


def _described(text: str) -> dict[str, set[str]]:
    """The entries of a docstring's `Args:`, and the names of the arguments that each describes."""
    _, _, rest = text.partition("Args:\n")
    entries = re.split(r"^    (?=\w)", rest.partition("\n\n")[0], flags=re.MULTILINE)
    return {each.rstrip(): set(each.partition(":")[0].split(", ")) for each in entries if each}
