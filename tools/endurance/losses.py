"""Losses and gradients against float64, over shapes, layouts, precisions, values and modes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sfumato import labels
from sfumato.engine.config.components import components
from sfumato.ops import library
from tools.endurance.loss_references import (
    IGNORED,
    REFERENCES,
    parts_of,
    reduced,
    stands_at_kink,
)
from tools.endurance.trials import Drawn

# What may be drawn besides the defaults.
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "acls": {"margin": (0.0, 2.0, 6.0), "form": ("paper", "gradient", "released")},
    "adafocal": {},
    "bsce": {"gamma": (0.0, 1.0, 3.0), "norm": (1, 2), "stop_gradient": (False,)},
    "cals": {"rho": (0.3, 4.0), "margin": (2.0,)},
    "cape": {"weight": (0.5,)},
    "cpc": {"discrimination_weight": (1.0,), "exclusion_weight": (0.1,)},
    "crl": {"confidence": ("softmax", "margin", "entropy"), "weight": (0.3,)},
    "cross_entropy": {"smoothing": (0.05, 1.0), "smoothing_over": ("all", "others")},
    "dual_focal": {"gamma": (0.0, 1.0, 2.3)},
    "ecp": {"weight": (1.0,)},
    "flsd": {"rule": ("released", "paper"), "gamma": (2.0, 1.0)},
    "focal": {"gamma": (0.0, 1.0, 2.0, 5.0)},
    "maxsup": {"weight": (0.2,)},
    "mbls": {"margin": (0.0, 2.0, 6.0), "weight": (1.0,)},
    "mdca": {"weight": (5.0,)},
    "mmce": {"weighted": (True,), "weight": (2.0,)},
    "nacl": {"weight": (1.0,)},
    "normalised_cross_entropy": {},
    "online_label_smoothing": {"weight": (0.0, 0.3)},
}
# What some learn while they train: of C classes, as their functions take it.
STATES: dict[str, Callable[[int, torch.Generator], dict[str, Tensor]]] = {
    "adafocal": lambda classes, random: {
        "gammas": torch.tensor([-1.7, 0.2, 1.0, 4.5]),
        "edges": torch.rand(3, generator=random).sort().values,
    },
    "cals": lambda classes, random: {"multipliers": torch.rand(classes, generator=random)},
    "online_label_smoothing": lambda classes, random: {
        "soft_labels": torch.randn(classes, classes, generator=random).softmax(1)
    },
}
TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 3e-2, "float16": 6e-3}


@dataclass(frozen=True)
class LossCase:
    """One call of a loss; `number` draws its logits and targets."""

    loss: str
    number: int
    samples: int = 3
    classes: int = 4
    shape: tuple[int, ...] = ()
    scale: float = 1.0
    values: str = "normal"
    dtype: str = "float64"
    layout: str = "dense"
    is_soft: bool = False
    has_weight: bool = False
    ignored: float = 0.0
    reduction: str = "mean"
    kernels: bool = True
    mode: str = "plain"
    has_state: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def draw(number: int) -> LossCase:
    """A case from a number, the same one each time."""
    dice = random.Random(number)
    name = dice.choice(sorted(REFERENCES))
    part = components("loss")[name]
    options = {
        key: dice.choice(choices) for key, choices in OPTIONS[name].items() if dice.random() < 0.5
    }
    mode = dice.choice(["plain"] * 8 + ["double", "vmap"])
    soft = part.takes_soft_targets and name != "cape" and dice.random() < 0.3
    case = LossCase(
        name,
        number,
        samples=dice.choice([1, 2, 3, 5, 17, 64]),
        classes=dice.choice([2, 3, 4, 7, 10, 33, 100] if name != "cpc" else [2, 3, 5]),
        shape=dice.choice([(), (), (1,), (5,), (3, 4), (2, 3, 2)]),
        scale=dice.choice([0.01, 1.0, 5.0, 30.0]),
        # Where logits are equal a derivative is one of several, and its own is anything.
        values=dice.choice(["normal"] * 4 + ["integers", "constant"] * (mode != "double")),
        dtype="float64" if mode == "double" else dice.choice(["float32"] * 3 + [*TOLERANCES]),
        layout=dice.choice(["dense", "channels_last", "strided", "moved"]),
        is_soft=soft,
        has_weight=part.takes("class_weight") and dice.random() < 0.2,
        ignored=0.0 if soft else dice.choice([0.0, 0.0, 0.3, 1.0]),
        reduction=dice.choice(["mean", "mean", "sum", "none"]),
        kernels=dice.random() < 0.7,
        mode=mode,
        has_state=name in STATES and dice.random() < 0.7,
        options=options,
    )
    # Compiling takes as long as hundreds of other cases.
    is_compiled = mode == "plain" and dice.random() < 0.001
    return replace(case, mode="compiled") if is_compiled else case


def smaller(case: LossCase) -> Iterator[LossCase]:
    """Simpler cases: each default in turn, then fewer of everything."""
    plain = LossCase(case.loss, case.number)
    for name in ("options", "mode", "layout", "values", "has_weight", "has_state", "ignored"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    for name in ("reduction", "shape", "is_soft", "kernels", "scale", "dtype"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    if case.samples > 1:
        yield replace(case, samples=case.samples // 2)
    if case.classes > 2:
        yield replace(case, classes=case.classes // 2 + 1 if case.classes > 3 else 2)


def check(case: LossCase) -> bool:
    """Raise where value or gradient differ; False where rounding may decide the derivative."""
    given = _Given(case)
    expected = given.expected()
    if expected is None:
        return False
    with _kernels(case.kernels):
        found = given.found()
    tolerance = TOLERANCES[case.dtype]
    for name, ours, theirs in zip(("value", "gradient", "second"), found, expected, strict=True):
        size = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(
            ours.double(),
            theirs,
            rtol=tolerance,
            atol=tolerance * max(1e-2, size),
            msg=lambda text, name=name: f"{name}: {text}",
        )
    return True


class _Given:
    """The tensors of a case."""

    def __init__(self, case: LossCase) -> None:
        self.case = case
        self.random = torch.Generator().manual_seed(case.number)
        entries = (case.samples, *case.shape)
        dtype = getattr(torch, case.dtype)
        values = self._normal((case.samples, case.classes, *case.shape)) * case.scale
        if case.values == "integers":
            values = values.round()
        elif case.values == "constant":
            values = torch.full_like(values, case.scale)
        self.logits = _laid_out(values.to(dtype), case.layout)
        self.label = torch.randint(0, case.classes, entries, generator=self.random)
        is_ignored = torch.rand(entries, generator=self.random) < case.ignored
        self.target = self.label.masked_fill(is_ignored, IGNORED)
        if case.is_soft:
            self.target = self._normal(self.logits.shape).softmax(1).to(dtype)
        self.extra = torch.rand(entries, generator=self.random, dtype=torch.float64)
        self.weight = torch.rand(case.classes, generator=self.random, dtype=torch.float64) + 0.1
        self.state = STATES[case.loss](case.classes, self.random) if case.has_state else {}
        self.upstream = self._normal(entries)
        self.direction = self._normal(self.logits.shape)

    def _normal(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(tuple(shape), generator=self.random, dtype=torch.float64)

    def found(self) -> list[Tensor]:
        """Return the package's value, gradient, and in mode "double" its derivative."""
        case, z = self.case, self.logits.detach().requires_grad_()
        options: dict[str, Any] = {**case.options, **self.state, "reduction": case.reduction}
        if case.has_weight:
            options["class_weight"] = self.weight.float()
        function = getattr(labels, f"{case.loss}_loss")
        needs = components("loss")[case.loss].remembers_samples({})
        more = (self.extra.to(torch.float32 if z.dtype != torch.float64 else z.dtype),)

        def call(logits: Tensor) -> Tensor:
            return function(logits, self.target, *(more if needs else ()), **options)

        if case.mode == "vmap":
            value = torch.func.vmap(call)(z.unsqueeze(0)).squeeze(0)
        elif case.mode == "compiled":
            torch.compiler.reset()
            value = torch.compile(call, backend="aot_eager")(z)
        else:
            value = call(z)
        return _derivatives(self._scalar(value), z, self.direction, case.mode == "double")

    def _scalar(self, value: Tensor) -> Tensor:
        return (value * self.upstream.to(value)).sum() if self.case.reduction == "none" else value

    def expected(self) -> list[Tensor] | None:
        """The same by the reference; None where it stands at a kink."""
        case = self.case
        z = self.logits.detach().double().requires_grad_()
        options: dict[str, Any] = {**case.options}
        options.update((name, values.double()) for name, values in self.state.items())
        if case.has_weight:
            options["class_weight"] = self.weight.float().double()
        options["extra"] = self.extra.to(
            torch.float64 if self.logits.dtype == torch.float64 else torch.float32
        ).double()
        parts, valid = parts_of(case.loss, z, self.target, **options)
        near = {"float64": 1e-7, "float32": 2e-3}.get(case.dtype, 3e-1)
        if stands_at_kink(parts, near):
            return None
        total = reduced(parts, case.reduction, valid)
        if total.ndim:
            total = (total * self.upstream).sum()
        return _derivatives(total, z, self.direction, case.mode == "double")


def _derivatives(value: Tensor, z: Tensor, direction: Tensor, twice: bool) -> list[Tensor]:
    (gradient,) = torch.autograd.grad(value, z, create_graph=twice)
    second = torch.zeros_like(gradient)
    if twice and gradient.requires_grad:
        (found,) = torch.autograd.grad((gradient * direction).sum(), z, allow_unused=True)
        second = second if found is None else found
    return [value.detach(), gradient.detach(), second]


def _laid_out(values: Tensor, layout: str) -> Tensor:
    if layout == "channels_last" and values.ndim == 4:
        return values.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        wide = torch.zeros((*values.shape[:-1], 2 * values.shape[-1]), dtype=values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == "moved":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    return values


@contextmanager
def _kernels(wanted: bool) -> Iterator[None]:
    """With the compiled kernels, or by PyTorch's operations."""
    with mock.patch.object(library, "library", library.library if wanted else cache(lambda: None)):
        yield


LOSSES = Drawn("losses", draw, check, smaller, lambda case: case.loss)
