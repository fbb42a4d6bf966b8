"""Acc-90, Unc-90, Freq-90."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import threshold_rates

Case = tuple[Tensor, Tensor, Callable[[str], float]]


def test_hand_worked_value() -> None:
    probs = torch.tensor([[0.95, 0.05], [0.92, 0.08], [0.7, 0.3], [0.4, 0.6]])
    rates = threshold_rates(probs, torch.tensor([0, 1, 1, 1]))
    assert float(rates.accuracy) == 0.5
    assert float(rates.unconfident) == 0.5
    assert float(rates.frequency) == 0.5
    assert float(rates.iou) == pytest.approx((1 / 2 + 0) / 2)


def test_takes_arrays(case: Case) -> None:
    probs, target, _ = case
    found = threshold_rates(probs.numpy(), target.numpy())  # type: ignore[arg-type]
    for ours, theirs in zip(found, threshold_rates(probs, target), strict=True):
        assert isinstance(ours, np.floating)
        assert ours == pytest.approx(float(theirs), nan_ok=True)


def test_golden(case: Case) -> None:
    probs, target, number = case
    rates = threshold_rates(probs, target)
    # The released code adds 1e-7 to its denominators.
    for name, key in (
        ("accuracy", "ss_acc90"),
        ("unconfident", "ss_unc90"),
        ("frequency", "ss_freq90"),
    ):
        assert float(getattr(rates, name)) == pytest.approx(number(key), rel=1e-6), name
    # It leaves out classes that are predicted but never a label; here they count as zero.
    num_classes = probs.shape[1]
    missing = num_classes - len(target[probs.amax(1) > 0.9].unique())
    released = number("ss_iou90") * (num_classes - missing) / num_classes
    assert float(rates.iou) == pytest.approx(released, rel=1e-6)


def test_edges() -> None:
    probs = torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    rates = threshold_rates(probs, torch.tensor([0, 0]))
    assert math.isnan(rates.accuracy)
    assert math.isnan(rates.unconfident)
    assert float(rates.frequency) == 0
    assert math.isnan(rates.iou)
    with pytest.raises(ValueError, match="threshold must be in"):
        threshold_rates(probs, torch.tensor([0, 0]), threshold=1.5)
