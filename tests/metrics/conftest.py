"""Predictions to measure: random ones, calibrated ones, and the golden ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Make = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture
def make() -> Make:
    """`make(n, classes, temperature=1.0, seed=0)`: probabilities, and labels drawn from them.

    The labels are drawn at temperature 1, so a lower one makes the model overconfident.
    """

    def build(
        n: int, classes: int, *, temperature: float = 1.0, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
        target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        return (logits / temperature).softmax(1), target

    return build


@pytest.fixture(params=["c10", "c100", "edge"])
def case(
    request: pytest.FixtureRequest, golden: Callable[[str], dict[str, Any]]
) -> tuple[Tensor, Tensor, Callable[[str], float]]:
    """Probabilities, labels and `number("ece15")` of a golden case."""
    arrays = golden("metrics")
    name = request.param

    def number(key: str) -> float:
        return float(arrays[f"{name}.{key}"])

    probs, labels = (torch.from_numpy(arrays[f"{name}.{key}"]) for key in ("probs", "labels"))
    return probs, labels, number
