"""`softmax_summary`: one differentiable operation under the losses."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sfumato._core.checks import check_class_indices, is_traced
from sfumato.ops.library import (
    REAL,
    Shape,
    call,
    dense,
    has_values,
    in_order_of,
    is_within_reach,
    jobs,
    threads,
)

# exp of it is 0 in every precision: keeps 0 log 0 = 0 where a class is masked by -inf.
LEAST_LOG = -1000.0


def valid_entries(
    target: Tensor | None, classes: int, ignore_index: int
) -> tuple[Tensor | None, Tensor | None]:
    """A target that is safe to gather with, and which entries count (None: all of them).

    Labels are looked at in eager mode on the CPU only: an accelerator's own gather catches wrong
    ones without a synchronisation.
    """
    if target is None:
        return None, None
    if not is_traced() and target.device.type == "cpu" and target.numel() > 0:
        low, high = target.aminmax()
        if low < 0 or high >= classes:
            check_class_indices("target", target, classes, ignore_index=ignore_index)
        elif not 0 <= ignore_index < classes:
            return target, None
    valid = target != ignore_index
    return torch.where(valid, target, 0), valid


class PlainSoftmax:
    """Numbers of each entry, by PyTorch's own operations when first asked for: their definition.

    With p the softmax of the logits z; (N, ...) each. They are 0 where ignored, so that such an
    entry looks like a certain prediction that is right.

    Attributes:
        label: log p of the label, or sum_k q_k log p_k of a soft target q.
        top: log p of the predicted class.
        total: sum_k log p_k.
        entropy: sum_k p_k log p_k, minus the entropy.
        highest: max_k z_k.
        top_ties: how many classes are there; a constant.
        range: max_k z_k - min_k z_k.
        excess: how far classes are below the top beyond the margin M: sum_k relu(max z - z_k - M),
            the top held constant.
        squares: the same sum of relu(...)^2.
        number: how many classes are beyond the margin; a constant.
        brier: sum_k (q_k - p_k)^2, q the label or soft target.
        following: log p of the class that follows the label: the largest below it, whose ties share
            its derivative; -1000 where there is none.
        distance: sum_k |z_k - t_k|, t_k the share of class k among the labels around the entry
            (`shares_around`).
        predicted: the first class at the top; a constant.
        totals: (C,) sum of p over the valid entries.
        valid: (N, ...) where entries are not ignored; None where none is.
        count: how many are not: an int, or a tensor where that can't be known yet.

    `range` to `number` need a margin; `brier` to `totals` must be asked for.
    """

    def __init__(
        self,
        logits: Tensor,
        target: Tensor | None = None,
        soft_target: Tensor | None = None,
        *,
        margin: float | Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        # What is ignored may hold anything, NaN included, and must not reach a gradient.
        self.logits = logits if valid is None else torch.where(valid.unsqueeze(1), logits, 0.0)
        self.target, self.soft_target = target, soft_target
        self.margin, self.valid = margin, valid
        # Not `cached_property`, whose lock torch.compile refuses in Python 3.11.
        self._log_probs: Tensor | None = None
        self._highest: Tensor | None = None

    @property
    def count(self) -> int | Tensor:
        entries = self.logits.numel() // self.logits.shape[1]
        return entries if self.valid is None else self.valid.sum()

    def _counted(self, numbers: Tensor) -> Tensor:
        return numbers if self.valid is None else torch.where(self.valid, numbers, 0.0)

    @property
    def log_probs(self) -> Tensor:
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(1)
        return self._log_probs

    @property
    def label(self) -> Tensor:
        if self.soft_target is not None:
            # A class that can't be, log p = -inf, costs nothing where its target is 0.
            impossible = (self.soft_target == 0) & (self.log_probs == -torch.inf)
            possible = self.log_probs.masked_fill(impossible, 0.0)
            return self._counted((self.soft_target * possible).sum(1))
        place = self._label_indices.unsqueeze(1)
        return self._counted(self.log_probs.gather(1, place).squeeze(1))

    @property
    def _label_indices(self) -> Tensor:
        if self.target is None:
            raise TypeError("there is no label without a target")
        return self.target

    @property
    def top(self) -> Tensor:
        return self._counted(self.log_probs.amax(1))

    @property
    def total(self) -> Tensor:
        return self._counted(self.log_probs.sum(1))

    @property
    def entropy(self) -> Tensor:
        products = self.log_probs.exp() * self.log_probs.clamp(min=LEAST_LOG)
        return self._counted(products.sum(1))

    @property
    def _is_top(self) -> Tensor:
        return self.logits == self.logits.amax(1, keepdim=True)

    @property
    def highest(self) -> Tensor:
        if self._highest is None:
            self._highest = _shared_value(self.logits, self._is_top)
        return self._highest

    @property
    def top_ties(self) -> Tensor:
        return self._counted(self._is_top.sum(1).to(self.logits.dtype))

    @property
    def range(self) -> Tensor:
        distance = self.logits.detach() - self.highest.detach().unsqueeze(1)
        is_low = distance == distance.amin(1, keepdim=True)
        return self.highest - _shared_value(self.logits, is_low)

    @property
    def _beyond(self) -> Tensor:
        if self.margin is None:
            raise TypeError("these numbers need a margin")
        margin = self.margin
        if isinstance(margin, Tensor):
            margin = margin.reshape(-1, *(1,) * (self.logits.ndim - 2))
        return self.highest.detach().unsqueeze(1) - self.logits - margin

    @property
    def excess(self) -> Tensor:
        return self._counted(self._beyond.relu().sum(1))

    @property
    def squares(self) -> Tensor:
        return self._counted(self._beyond.relu().square().sum(1))

    @property
    def number(self) -> Tensor:
        return self._counted((self._beyond > 0).sum(1).to(self.logits.dtype))

    @property
    def brier(self) -> Tensor:
        probs = self.log_probs.exp()
        if self.soft_target is not None:
            apart = probs - self.soft_target
        else:
            # Not 1 - p, which has lost the last places of a sure prediction.
            miss = torch.expm1(self.log_probs.clamp(min=LEAST_LOG))
            apart = torch.where(_is_class(self._label_indices, probs), miss, probs)
        # Nothing is added, and no slope, as the sum is always 1. But the slope of a sure class is
        # what the others add up to, and would be lost beside its own share in float32.
        total = probs.sum(1)
        at_top = apart.detach().gather(1, probs.argmax(1, keepdim=True)).squeeze(1)
        return self._counted(apart.square().sum(1) - 2 * at_top * (total - total.detach()))

    @property
    def following(self) -> Tensor:
        own = self.logits.detach().gather(1, self._label_indices.unsqueeze(1))
        behind = torch.where(self.logits < own, self.logits, -torch.inf).amax(1)
        is_there = behind.detach() > -torch.inf
        # Where there is none the difference may be anything, infinity included.
        log_prob = torch.where(is_there, behind, 0.0) - self.logits.logsumexp(1)
        return self._counted(torch.where(is_there, log_prob, LEAST_LOG))

    @property
    def distance(self) -> Tensor:
        target = self._label_indices if self.soft_target is None else self.soft_target
        shares = shares_around(target, self.valid, self.logits)
        return self._counted((self.logits - shares).abs().sum(1))

    @property
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)

    @property
    def totals(self) -> Tensor:
        probs = self.log_probs.exp()
        if self.valid is not None:
            probs = probs * self.valid.unsqueeze(1)
        return over_entries(probs)


def soft_targets_of(table: Tensor, target: Tensor | None) -> Tensor:
    """(N, C, ...), the row of the table (C, C) for each label (N, ...)."""
    if target is None:
        raise TypeError("there is no row of the table without a target")
    return table[target].movedim(-1, 1)


def shares_around(target: Tensor, valid: Tensor | None, like: Tensor) -> Tensor:
    """Shares of the classes in the neighbourhood of each entry, 3 wide in every dimension.

    Args:
        target: class indices (N, ...), 0 where they are ignored, or soft targets (N, C, ...).
        valid: which of them count, or None for all; what lies outside of the map doesn't either.
        like: (N, C, ...), of the type and on the device of which they should be.
    """
    shares = target if target.is_floating_point() else _is_class(target, like).to(like.dtype)
    counted = shares.new_ones((len(shares), 1, *shares.shape[2:]))
    if valid is not None:
        counted = valid.unsqueeze(1).to(shares)
        shares = shares * counted
    return _sum_around(shares) / _sum_around(counted).clamp(min=1)


def _sum_around(values: Tensor) -> Tensor:
    for dimension in range(2, values.ndim):
        size = values.shape[dimension]
        if size > 1:
            edge = torch.zeros_like(values.narrow(dimension, 0, 1))
            before = torch.cat([edge, values.narrow(dimension, 0, size - 1)], dimension)
            after = torch.cat([values.narrow(dimension, 1, size - 1), edge], dimension)
            values = values + before + after
    return values


def _is_class(target: Tensor, like: Tensor) -> Tensor:
    """(N, C, ...), whether a class is the label of its entry."""
    classes = torch.arange(like.shape[1], device=like.device)
    return target.unsqueeze(1) == classes.reshape(-1, *(1,) * (like.ndim - 2))


def over_entries(values: Tensor) -> Tensor:
    """Sums of (N, C, ...) over everything but the classes, (C,)."""
    return values.sum([0, *range(2, values.ndim)])


def _shared_value(logits: Tensor, is_chosen: Tensor) -> Tensor:
    """The value of the chosen classes, which share its derivative.

    As `amax` but without a product with the mask, which would make an infinite derivative NaN.
    """
    chosen = torch.where(is_chosen, logits, 0.0).sum(1)
    # A NaN is equal to nothing, and must not be lost.
    return torch.where(is_chosen.any(1), chosen / is_chosen.sum(1).clamp(min=1), torch.nan)


Also = Literal["brier", "following", "distance"]

# In the order in which the kernel keeps them; `PlainSoftmax` says what they mean.
_ALWAYS = ("label", "top", "total", "entropy", "highest", "top_ties", "normaliser")

# One of these besides: those with a derivative, and constants that belong to them.
_MORE: dict[str | None, tuple[tuple[str, ...], tuple[str, ...]]] = {
    None: ((), ()),
    "margin": (("range", "excess", "squares"), ("number", "low_ties")),
    "brier": (("brier",), ("tilt",)),
    "following": (("following",), ("following_ties", "behind")),
    "distance": (("distance",), ()),
}

_NUMBERS = len(_ALWAYS) + max(len(smooth + constant) for smooth, constant in _MORE.values()) + 1

_PLACES = {name: place for place, name in enumerate(_ALWAYS)} | {
    name: len(_ALWAYS) + place
    for smooth, constant in _MORE.values()
    for place, name in enumerate(smooth + constant)
}  # and the mass of soft targets, which is the last

# For each of these: its number in the kernel, the names with a derivative, how many are kept.
_LAYOUTS = {
    more: (kind, _ALWAYS[:-2] + smooth, len(_ALWAYS + smooth + constant))
    for kind, (more, (smooth, constant)) in enumerate(_MORE.items())
}

# Labels that are skipped can be any number but this one, which no label is.
NOTHING_IGNORED = -(2**63)

# As in `kernels.c`: so many entries are worked on at a time.
_TILE = 128


class Reading(NamedTuple):
    """Numbers that a pass over the logits found."""

    names: tuple[str, ...]  # those with a derivative that are handed out
    numbers: Tensor  # (K, N, ...), one value of each entry for each number, constants included
    predicted: Tensor | None  # (N, ...), the first class at the top
    totals: Tensor | None  # (C,), sums of the probabilities of all valid entries
    valid: int  # how many entries are not ignored
    strange: int  # how many labels are outside [0, C) and not ignored

    def outputs(self) -> tuple[Tensor, ...]:
        """Return all that has a derivative: each of `names`, (N, ...), and the totals if any."""
        # For few names cheaper than a view of every number.
        rows = self.numbers if len(self.names) < 3 else self.numbers.unbind(0)
        numbers = tuple(rows[_PLACES[name]] for name in self.names)
        return numbers if self.totals is None else (*numbers, self.totals)

    def predicted_classes(self) -> Tensor:
        """`predicted`, where it was asked for."""
        if self.predicted is None:
            raise TypeError("read_numbers was called without wants_predicted")
        return self.predicted

    def of(self, name: str) -> Tensor:
        """One of the numbers, (N, ...)."""
        return self.numbers[_PLACES[name]]


class Pass(NamedTuple):
    """Logits and targets in the form that the kernel takes, and what to read."""

    logits: Tensor  # (N, C, ...), dense
    target: Tensor | None  # class indices (N, ...) without gaps
    soft_target: Tensor | None  # in the order of the logits
    table: Tensor | None  # (C, C), the soft target of each label
    margins: Tensor | None  # (C,), where each class has a margin of its own
    shape: Shape
    margin: float | None = None  # None where there is none or each class has its own
    ignore_index: int = NOTHING_IGNORED
    also: Also | None = None

    @property
    def more(self) -> str | None:
        """Name the numbers that are read beside those that are always there."""
        has_margin = self.margin is not None or self.margins is not None
        return "margin" if has_margin else self.also


def plan_pass(
    logits: Tensor,
    target: Tensor | None = None,
    soft_target: Tensor | None = None,
    table: Tensor | None = None,
    margin: float | Tensor | None = None,
    ignore_index: int = NOTHING_IGNORED,
    also: Also | None = None,
) -> Pass | None:
    """Prepare tensors for the kernel; None where there is none for such tensors."""
    margins, margin = (margin, None) if isinstance(margin, Tensor) else (None, margin)
    given = [each for each in (logits, target, soft_target, table, margins) if each is not None]
    # An empty tensor has no address to hand over.
    if logits.dtype not in REAL or logits.numel() == 0 or not is_within_reach(*given):
        return None
    # Of soft targets these numbers are sums of their own, and a volume has other neighbours.
    if also is not None and (soft_target is not None or (also == "distance" and logits.ndim > 4)):
        return None
    logits, shape = dense(logits)
    target, table, margins = (
        each if each is None else each.contiguous() for each in (target, table, margins)
    )
    if soft_target is not None:
        soft_target = in_order_of(soft_target, logits)
    return Pass(logits, target, soft_target, table, margins, shape, margin, ignore_index, also)


def read_numbers(
    plan: Pass,
    *,
    only: tuple[str, ...] | None = None,
    wants_predicted: bool = False,
    wants_totals: bool = False,
) -> Reading:
    """The first pass; all numbers with a derivative are handed out, or `only` some of them."""
    samples, classes, *positions = plan.logits.shape
    entries = (samples, *positions)
    _, names, kept = _LAYOUTS[plan.more]
    kept = kept if plan.soft_target is None and plan.table is None else _NUMBERS
    numbers = plan.logits.new_empty((kept, *entries))
    job, _shares = _job(plan, numbers)
    predicted = totals = None
    if wants_predicted:
        predicted = torch.empty(entries, dtype=torch.int64, device="cpu")
        job.predicted = predicted.data_ptr()
    if wants_totals:
        totals = torch.zeros((job.threads, classes), dtype=torch.float64, device="cpu")
        job.totals = totals.data_ptr()
    call("softmax", numbers.dtype, job)
    if totals is not None:
        totals = totals.sum(0).to(numbers.dtype)
    return Reading(only or names, numbers, predicted, totals, job.valid, job.strange)


def write_gradient(
    plan: Pass, numbers: Tensor, upstream: Mapping[str, Tensor | None], direction: Tensor | None
) -> Tensor:
    """The second pass: the gradient of the logits."""
    gradient = torch.empty_like(plan.logits)
    job, shares = _job(plan, numbers)
    job.gradient = gradient.data_ptr()
    kept = [shares]  # What is made here has to live until the end.
    for name, values in upstream.items():
        if values is not None:
            place = _PLACES[name]
            is_one = not any(values.stride())
            values = values if is_one else values.contiguous()
            kept.append(values)
            job.upstream[place], job.step[place] = values.data_ptr(), int(not is_one)
    if direction is not None:
        direction = direction.contiguous()
        job.direction = direction.data_ptr()
    call("softmax", numbers.dtype, job)
    return gradient


_JOBS = jobs(
    ("logits soft table margins shares label", ctypes.c_void_p),
    ("numbers predicted totals gradient", ctypes.c_void_p),
    ("upstream", ctypes.c_void_p * _NUMBERS),
    ("step", ctypes.c_int64 * _NUMBERS),
    ("direction", ctypes.c_void_p),
    ("samples classes positions height width ignored valid strange", ctypes.c_int64),
    ("margin", None),
    ("more is_rows threads", ctypes.c_int32),
)


def _job(plan: Pass, numbers: Tensor) -> tuple[Any, Tensor | None]:
    """Fill the kernel's structure, and make room for the targets that it computes itself."""
    job: Any = _JOBS[numbers.dtype](numbers=numbers.data_ptr(), margin=plan.margin or 0.0)
    tensors = (plan.logits, plan.target, plan.soft_target, plan.table, plan.margins)
    for name, each in zip(("logits", "label", "soft", "table", "margins"), tensors, strict=True):
        if each is not None:
            setattr(job, name, each.data_ptr())
    job.samples, job.classes, job.positions, job.is_rows = plan.shape
    job.ignored = plan.ignore_index
    job.more = _LAYOUTS[plan.more][0]
    job.threads = threads(plan.logits.numel())
    if plan.table is None and plan.also != "distance":
        return job, None
    job.height, job.width = (1, 1, *plan.logits.shape[2:])[-2:]
    shares = numbers.new_empty((job.threads, job.classes * _TILE))
    job.shares = shares.data_ptr()
    return job, shares


def softmax_summary(
    logits: Tensor,
    target: Tensor | None = None,
    soft_target: Tensor | None = None,
    *,
    table: Tensor | None = None,
    margin: float | Tensor | None = None,
    ignore_index: int = NOTHING_IGNORED,
    also: Also | None = None,
    only: tuple[str, ...] | None = None,
    wants_predicted: bool = False,
    wants_totals: bool = False,
) -> SoftmaxSummary:
    """The numbers of each softmax that losses are functions of, differentiable by the logits.

    Args:
        logits: (N, C, ...) in float32 or float64; half precision is computed in float32.
        target: class indices (N, ...) int64, or None.
        soft_target: q, shaped like `logits`, for `label`; the class indices then only say which
            entries are ignored.
        table: (C, C), whose row y is the soft target of the entries with label y: as if
            `soft_target` had been gathered from it.
        margin: M, for `range` to `number`; (C,) where each class has its own.
        ignore_index: label of entries to skip.
        also: which of `brier`, `following` and `distance` will be read; not beside a margin.
        only: the numbers with a derivative that will be read: each costs autograd a few
            microseconds. None for all of them.
        wants_predicted, wants_totals: whether `predicted` and `totals` will be read.

    Example:
        >>> softmax = softmax_summary(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        >>> softmax.label, softmax.entropy
        (tensor([-0.1698]), tensor([-0.5243]))
    """
    plan = None
    if not _needs_autograd(logits, soft_target, table, margin):
        plan = plan_pass(logits, target, soft_target, table, margin, ignore_index, also)
    if plan is None:
        asks_more = table is not None or also is not None or wants_predicted or wants_totals
        if not asks_more and _is_on_gpu(logits, soft_target, margin):
            return FusedSoftmax(logits, target, soft_target, margin, ignore_index)
        logits = in_full(logits)
        target, valid = valid_entries(target, logits.shape[1], ignore_index)
        soft_target = soft_target if table is None else soft_targets_of(table, target)
        return PlainSoftmax(logits, target, soft_target, margin=margin, valid=valid)
    reading = read_numbers(
        plan, only=only, wants_predicted=wants_predicted, wants_totals=wants_totals
    )
    if reading.strange and target is not None:
        check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
    return ReadSoftmax(plan, reading)


class _KernelSoftmax:
    """The numbers of `PlainSoftmax` that a kernel was asked for, as attributes."""

    valid: Tensor | None
    count: int | Tensor

    if TYPE_CHECKING:  # which numbers there are is checked by those of `PlainSoftmax`

        def __getattr__(self, name: str) -> Tensor: ...


class ReadSoftmax(_KernelSoftmax):
    """As the kernel of a processor read them, with its second pass behind them."""

    def __init__(self, plan: Pass, reading: Reading) -> None:
        self.count = reading.valid
        self.valid = None
        self._reading = reading
        # The mask costs a pass; mostly nothing is ignored.
        if plan.target is not None and reading.valid < plan.target.numel():
            self.valid = plan.target != plan.ignore_index
        if torch.is_grad_enabled() and plan.logits.requires_grad:
            outputs = _WithGradient.apply(plan.logits, plan, reading)
        else:
            outputs = reading.outputs()
        self.__dict__.update(zip(reading.names, outputs, strict=False))
        if reading.totals is not None:
            self.totals = outputs[-1]
        if reading.predicted is not None:
            self.predicted = reading.predicted

    @property
    def top_ties(self) -> Tensor:
        return self._reading.of("top_ties")

    @property
    def number(self) -> Tensor:
        return self._reading.of("number")


class FusedSoftmax(_KernelSoftmax):
    """As the kernel of a GPU read them; only those that are there for every loss, or a margin."""

    def __init__(
        self,
        logits: Tensor,
        target: Tensor | None,
        soft_target: Tensor | None,
        margin: float | Tensor | None,
        ignore_index: int,
    ) -> None:
        from sfumato.ops.softmax_triton import read_numbers

        self.__dict__.update(read_numbers(logits, target, soft_target, margin, ignore_index))
        self.valid = None if target is None else target != ignore_index
        self.count = self.top.numel() if self.valid is None else self.valid.sum()


def reads_half(logits: Tensor) -> bool:
    """True if logits in half precision need no copy in float32: the kernels of a GPU widen them."""
    return logits.is_cuda


def in_full(logits: Tensor) -> Tensor:
    """The logits in float32 if they are in half precision."""
    # The type is looked at, because a conversion costs something where nothing is to be converted.
    return logits if logits.dtype in REAL else logits.float()


def _is_on_gpu(logits: Tensor, soft_target: Tensor | None, margin: float | Tensor | None) -> bool:
    """True if the kernels of a GPU serve: a gradient of the logits only, and nothing is traced."""
    if not logits.is_cuda or logits.numel() == 0 or is_traced():
        return False
    asks_more = _needs_autograd(logits, soft_target, margin)
    return not asks_more and _is_trusted(logits.device, logits.dtype)


@cache
@torch.inference_mode(False)
@torch.enable_grad()  # the first loss of a device may be that of a validation
def _is_trusted(device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    """Compare the kernels of a GPU with plain operations, once for each device and type."""
    if os.environ.get("SFUMATO_NATIVE", "1") == "0" or find_spec("triton") is None:
        return False
    generator = torch.Generator("cpu").manual_seed(0)
    rows = 5 * torch.randn(6, 300, generator=generator, dtype=torch.float32, device="cpu")
    target = torch.arange(6, device=device)
    found = []
    try:
        for is_fused in (True, False):
            logits = rows.to(device, dtype, copy=True).requires_grad_()
            made: SoftmaxSummary = PlainSoftmax(in_full(logits), target, margin=8.0)
            if is_fused:
                made = FusedSoftmax(logits, target, None, 8.0, -1)
            total = made.label + 0.1 * made.entropy + made.range.square() + made.squares
            found.append((total.detach(), *torch.autograd.grad(total.sum(), logits)))
        near = 1e-4 if dtype in REAL else 2**-6  # gradients are rounded to its digits
        torch.testing.assert_close(*found, rtol=near, atol=near)
    # Whatever a compiler or a driver says: the plain operations serve.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"the fused losses fail on {device} in {dtype} ({reason}): PyTorch's own operations "
            "are used, and take more memory. Please report it with the versions of PyTorch and "
            "Triton",
            stacklevel=2,
        )
        return False
    return True


SoftmaxSummary = PlainSoftmax | ReadSoftmax | FusedSoftmax


class _WithGradient(torch.autograd.Function):
    """Hands out the numbers of a reading and, backwards, writes the gradient in one pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, plan: Pass, reading: Reading) -> tuple[Tensor, ...]:
        # Zeros for numbers that no loss used would each be a tensor to read.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*plan[:5], reading.numbers)  # the tensors; the rest is options
        ctx.options, ctx.names = plan[5:], reading.names
        return reading.outputs()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, None, None]:
        *tensors, numbers = ctx.saved_tensors
        plan = Pass(*tensors, *ctx.options)
        by_name = dict(zip(ctx.names, upstream, strict=False))
        direction = upstream[-1] if len(upstream) > len(by_name) else None
        given = [each for each in upstream if each is not None]
        if torch.is_grad_enabled() or is_traced() or not all(map(has_values, given)):
            return gradient_by_autograd(plan, by_name, direction), None, None
        return write_gradient(plan, numbers, by_name, direction), None, None


def gradient_by_autograd(
    plan: Pass, upstream: Mapping[str, Tensor | None], direction: Tensor | None
) -> Tensor:
    """The gradient of a pass by autograd, for second derivatives and batches of gradients."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        target, valid = valid_entries(plan.target, plan.shape.classes, plan.ignore_index)
        soft = plan.soft_target if plan.table is None else soft_targets_of(plan.table, target)
        margin = plan.margin if plan.margins is None else plan.margins
        plain = PlainSoftmax(in_full(plan.logits), target, soft, margin=margin, valid=valid)
        wanted = {**upstream, "totals": direction}
        pairs = [(getattr(plain, name), g) for name, g in wanted.items() if g is not None]
    outputs, gradients = zip(*pairs, strict=True)
    (result,) = torch.autograd.grad(outputs, plan.logits, gradients, create_graph=create_graph)
    return result


def _needs_autograd(logits: Tensor, *constants: Tensor | float | None) -> bool:
    """True if more is asked than a gradient with respect to the logits."""
    asked = any(isinstance(each, Tensor) and each.requires_grad for each in constants)
    return asked or forward_ad.unpack_dual(logits).tangent is not None
