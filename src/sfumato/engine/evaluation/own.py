"""Evaluations of the user's own, named in a study by their import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from sfumato._core.spec import Spec
from sfumato.data import ArrayDataset
from sfumato.data.prepare import preparation
from sfumato.engine.config.parts import resolve_part
from sfumato.engine.runs.directory import Predictions


def evaluate_own(
    spec: Spec,
    found: Predictions,
    *,
    data: ArrayDataset,
    network: nn.Module,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> dict[str, float]:
    """The numbers that a user's function gives for the test set.

    Of `logits`, `probs`, `target`, `index`, `data` (the test set in the same order) and `network`
    (from images of bytes, or of numbers in [0, 1], or tokens, to logits) it gets what it asks for
    by name.

    Args:
        spec: its import path and parameters.
        found: the test set's predictions.
        data: the test set.
        network: takes standardised images, or tokens.
        mean: of the standardisation, for each channel.
        std: of the standardisation, for each channel.

    Returns:
        Its numbers by name; one number alone is called `value`.

    Raises:
        TypeError: what it returned is neither a number nor a mapping of names to numbers.
    """
    resolved = resolve_part("own", spec)
    supplied = {
        "logits": found.logits,
        "probs": found.logits.softmax(1),
        "target": found.labels,
        "index": found.index,
        "data": data.subset(data.index.argsort(stable=True)),
        "network": nn.Sequential(preparation(data.vocabulary, len(mean), mean, std), network),
    }
    asked = inspect.signature(resolved.build).parameters
    taken = {key: value for key, value in supplied.items() if key in asked}
    returned = resolved.build(**taken, **resolved.params)
    values = returned if isinstance(returned, Mapping) else {"value": returned}
    return {str(key): _number(value, resolved.name) for key, value in values.items()}


def _number(value: Any, name: str) -> float:
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(
            f"{name} must return a number, or a mapping of names to numbers, "
            f"got {type(value).__name__} {value!r}"
        )
    return float(value)
