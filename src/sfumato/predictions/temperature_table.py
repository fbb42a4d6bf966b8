"""Calibration error before and after temperature scaling, side by side for several methods.

Margin-based Label Smoothing, Liu et al., CVPR 2022, appendix D, Table 1 (PreT and PosT).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.predictions.held_out import ece_of_confidences, held_out_rows
from sfumato.predictions.temperature import TemperatureScaler


class HeldOutPredictions(NamedTuple):
    """Logits (N, C, ...) and class indices (N, ...) to fit on, and to measure on."""

    validation_logits: Tensor
    validation_target: Tensor
    test_logits: Tensor
    test_target: Tensor


class TemperatureRow(NamedTuple):
    """One method's line: test ECE as it is and after scaling, with both ways to choose T."""

    name: str
    ece_before: float
    ece_after_nll: float
    temperature_nll: float
    ece_after_ece: float
    temperature_ece: float


def temperature_table(
    predictions: Mapping[str, HeldOutPredictions | tuple[Tensor, Tensor, Tensor, Tensor]],
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
) -> list[TemperatureRow]:
    """ECE on test data before and after a temperature that was fitted on validation data.

    A method whose own temperature is near 1 needs no scaling; one that is only good after it has
    learned to rank but not to say how sure it is.

    Args:
        predictions: for each name (validation logits, validation labels, test logits, test labels).
        num_bins: bins of the calibration error.
        ignore_index: label of entries to leave out.

    Returns:
        One row per name, in their order.

    Example:
        >>> import torch
        >>> logits, target = torch.tensor([[4.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> row = temperature_table({"CE": (logits, target, logits, target)})[0]
        >>> round(row.ece_before, 3), round(row.ece_after_nll, 3), round(row.temperature_nll, 2)
        (0.232, 0.0, 3.64)

    Reference:
        Liu et al. 2022, Table 1 of the appendix: PreT is `ece_before`, PosT `ece_after_ece` with
        `temperature_ece` in brackets (the released code takes T by ECE on the grid).
    """
    check_integer("num_bins", num_bins, low=1)
    rows = []
    for name, arrays in predictions.items():
        held = HeldOutPredictions(*arrays)
        fitted = [
            TemperatureScaler(method, num_bins=num_bins).fit(
                held.validation_logits, held.validation_target, ignore_index=ignore_index
            )
            for method in ("nll", "ece")
        ]
        logits, labels = held_out_rows(held.test_logits, held.test_target, ignore_index)
        correct = (logits.argmax(1) == labels).double()
        before, by_nll, by_ece = (
            float(ece_of_confidences(scaled.softmax(1).amax(1), correct, num_bins))
            for scaled in (logits, *(scaler(logits) for scaler in fitted))
        )
        nll, ece = (scaler.temperature for scaler in fitted)
        rows.append(TemperatureRow(name, before, by_nll, nll, by_ece, ece))
    return rows
