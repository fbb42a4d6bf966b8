"""Fixtures of the losses: golden values and gradients of the authors' code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

LossFunction = Callable[..., Tensor]
# `ties` has no single gradient of the maximum: there values only are compared where asked.
CASES = ("c2", "c10", "c200", "c10_large", "ties", "allright", "allwrong")
DENSE_CASES = ("ignore_m100", "ignore_255", "one_valid")


@pytest.fixture
def check_golden(golden: Callable[[str], dict[str, Any]]) -> Callable[..., int]:
    """`check_golden("ce", loss)` compares value and gradient in float64 on all cases that exist.

    `value` and `gradient` name the arrays; the loss takes logits, labels and ignore_index.
    """

    def check(
        name: str,
        loss: LossFunction,
        *,
        value: str = "loss",
        gradient: str = "grad",
        tied_gradient: bool = True,
        atol: float = 0.0,
    ) -> int:
        compared = 0
        for file, cases in (("losses", CASES), ("losses_dense", DENSE_CASES)):
            arrays = golden(file)
            for case in cases:
                if f"{case}.{name}.{value}" not in arrays:
                    continue
                logits = torch.tensor(arrays[f"{case}.logits"], requires_grad=True)
                target = torch.tensor(arrays[f"{case}.labels"])
                ignore_index = int(arrays.get(f"{case}.ignore_index", -100))
                result = loss(logits, target, ignore_index=ignore_index)
                (slope,) = torch.autograd.grad(result, logits)
                expected = arrays[f"{case}.{name}.{value}"]
                np.testing.assert_allclose(result.item(), expected, rtol=1e-6, atol=atol)
                if tied_gradient or case != "ties":
                    expected = arrays[f"{case}.{name}.{gradient}"]
                    absolute = max(atol, 1e-7 * np.abs(expected).max())
                    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=absolute)
                compared += 1
        return compared

    return check
