"""The PreT / PosT table against the scalers and a calibration error of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import calibration_error
from sfumato.predictions import HeldOutPredictions, TemperatureScaler, temperature_table


def _predictions(factor: float, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1000, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits * factor, labels


def test_rows_equal_scalers_and_metric() -> None:
    table = {
        "overconfident": HeldOutPredictions(*_predictions(3.0, 0), *_predictions(3.0, 1)),
        "honest": (*_predictions(1.0, 0), *_predictions(1.0, 1)),
    }
    rows = temperature_table(table)
    assert [row.name for row in rows] == ["overconfident", "honest"]
    for row, arrays in zip(rows, table.values(), strict=True):
        logits, labels = arrays[2:]
        for method, after, temperature in (
            ("nll", row.ece_after_nll, row.temperature_nll),
            ("ece", row.ece_after_ece, row.temperature_ece),
        ):
            scaler = TemperatureScaler(method)  # type: ignore[arg-type]
            scaler.fit(logits=arrays[0], target=arrays[1])
            assert temperature == scaler.temperature
            expected = calibration_error(scaler(logits).softmax(1), labels)
            assert after == pytest.approx(float(expected), abs=1e-6)
        assert row.ece_before == pytest.approx(
            float(calibration_error(logits.softmax(1), labels)), abs=1e-6
        )
    overconfident, honest = rows
    assert overconfident.ece_before > 5 * overconfident.ece_after_ece
    assert overconfident.temperature_nll == pytest.approx(3.0, rel=0.1)
    assert honest.temperature_nll == pytest.approx(1.0, rel=0.1)


def test_dense_and_ignored() -> None:
    logits, labels = _predictions(2.0, 0)
    dense, maps = logits.view(10, 100, 4).movedim(2, 1), labels.view(10, 100).clone()
    maps[0] = 255
    kept = (logits[100:], labels[100:])
    found = temperature_table({"a": (dense, maps, dense, maps)}, ignore_index=255)
    expected = temperature_table({"a": (*kept, *kept)})
    assert np.array(found[0][1:]) == pytest.approx(np.array(expected[0][1:]), rel=1e-6)


def test_bad_input() -> None:
    logits, labels = _predictions(1.0, 0)
    with pytest.raises(ValueError, match="no valid entry"):
        temperature_table({"a": (logits, labels, logits[:0], labels[:0])})
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        temperature_table({}, num_bins=0)
    assert temperature_table({}) == []
