"""The shared argument checks: each names the argument, what was expected, what came, what to do."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in tuple(choices):  # so that a list as value is compared and not hashed
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def check_number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> None:
    """Raise unless `value` is a finite real number in [low, high] (or (low, high])."""
    # A tuple, because torch.export of PyTorch 2.8 does not know `int | float`.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    below = value <= low if open_low else value < low
    if not math.isfinite(value) or below or value > high:
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise ValueError(f"{name} must be in {left}{low:g}, {high:g}{right}, got {value!r}")


def check_open_share(name: str, value: Any) -> None:
    """Raise unless `value` is a number in (0, 1): 0 and 1 would promise all or nothing."""
    check_number(name, value, low=0.0, high=1.0, open_low=True)
    if value == 1:
        raise ValueError(f"{name} must be below 1, got {value!r}")


def check_integer(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    """Raise unless `value` is an int of at least `low` (and at most `high`)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ValueError(f"{name} must be at least {low}{upper}, got {value}")


def check_floating(name: str, value: Any, *, hint: str = "") -> None:
    """Raise unless `value` is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}. {hint}".rstrip(". "))
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}. {hint}".rstrip(". "))


def check_class_indices(
    name: str, target: Tensor, num_classes: int, *, ignore_index: int | None = None
) -> None:
    """Raise unless every entry of `target` is in [0, num_classes) or equals `ignore_index`."""
    if target.is_floating_point() or target.dtype in (torch.bool, torch.complex64):
        raise TypeError(f"{name} must hold integer class indices, got {target.dtype}")
    bad = (target < 0) | (target >= num_classes)
    if ignore_index is not None:
        bad &= target != ignore_index
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        value = int(target[where]) if where else int(target)
        hint = (
            ""
            if ignore_index is None
            else f". Mark entries to skip with ignore_index={ignore_index}."
        )
        raise ValueError(
            f"{name} must be class indices in [0, {num_classes}), got {value} at position {where}"
            f"{hint}"
        )
