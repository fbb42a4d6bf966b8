"""Temperature scaling against hand-worked values, brute force and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sfumato.predictions import EnsembleTemperatureScaler, TemperatureScaler
from sfumato.predictions.scalers import GRID


def _overconfident(
    count: int = 2000, classes: int = 5, factor: float = 3.0
) -> tuple[Tensor, Tensor]:
    """Logits that are `factor` times too large for labels drawn from their own distribution."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64) * 1.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits * factor, labels


def test_two_class_value_by_hand() -> None:
    """Logit gap 4 and accuracy 3/4: the best T has sigmoid(4 / T) = 3/4, so T = 4 / ln 3."""
    logits = torch.tensor([[4.0, 0.0]] * 4)
    scaler = TemperatureScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
    assert scaler.temperature == pytest.approx(4 / math.log(3), rel=1e-6)


def test_recovers_the_factor() -> None:
    logits, labels = _overconfident()
    assert TemperatureScaler().fit(logits=logits, target=labels).temperature == pytest.approx(
        3.0, rel=0.1
    )


def test_nll_is_minimal() -> None:
    logits, labels = _overconfident(300)
    best = TemperatureScaler().fit(logits=logits, target=labels).temperature
    losses = [float(F.cross_entropy(logits / t, labels)) for t in (best * 0.99, best, best * 1.01)]
    assert losses[1] == min(losses)


def test_ece_choice_equals_a_loop_over_the_grid() -> None:
    logits, labels = _overconfident(200)
    errors = []
    for temperature in GRID.tolist():
        probs = (logits / temperature).softmax(1).numpy()
        confidence, predicted = probs.max(1), probs.argmax(1)
        error = 0.0
        for low in np.arange(15) / 15:
            inside = (confidence > low) & (confidence <= low + 1 / 15)
            if inside.any():
                gap = (predicted == labels.numpy())[inside].mean() - confidence[inside].mean()
                error += inside.mean() * abs(gap)
        errors.append(error)
    scaler = TemperatureScaler("ece").fit(logits=logits, target=labels)
    assert scaler.temperature == pytest.approx(float(GRID[int(np.argmin(errors))]))


@pytest.mark.filterwarnings("ignore:the temperature ended at its bound")
@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["nll", "ece"]))
def test_argmax_never_changes(seed: int, method: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, 4, generator=generator) * 10
    labels = torch.randint(4, (40,), generator=generator)
    scaler = TemperatureScaler(method).fit(logits=logits, target=labels)  # type: ignore[arg-type]
    assert torch.equal(scaler(logits).argmax(1), logits.argmax(1))


def test_separable_and_hopeless_data_stay_in_bounds() -> None:
    logits = torch.eye(3).repeat(5, 1) * 5
    labels = torch.arange(3).repeat(5)
    assert 0.01 <= TemperatureScaler().fit(logits=logits, target=labels).temperature < 0.5
    with pytest.warns(UserWarning, match=r"ended at its bound 0\.1: .* never wrong"):
        assert TemperatureScaler("ece").fit(
            logits=5 * logits, target=labels
        ).temperature == pytest.approx(0.1)
    with pytest.warns(UserWarning, match=r"ended at its bound 100: .* know nothing"):
        assert TemperatureScaler().fit(logits=logits, target=(labels + 1) % 3).temperature == 100
    with pytest.warns(UserWarning, match=r"ended at its bound 10: "):
        assert (
            TemperatureScaler("ece").fit(logits=20 * logits, target=(labels + 1) % 3).temperature
            == 10
        )
    with pytest.warns(UserWarning, match=r"ended at its bound 100: "):
        EnsembleTemperatureScaler().fit(logits=logits, target=(labels + 1) % 3)


def test_dense_logits_and_ignored_entries() -> None:
    logits, labels = _overconfident(60)
    dense = logits.reshape(3, 4, 5, 5).permute(0, 3, 1, 2)  # 3 images of 4 x 5 pixels
    maps = labels.reshape(3, 4, 5).clone()
    expected = TemperatureScaler().fit(logits=logits[1:], target=labels[1:]).temperature
    maps[0, 0, 0] = 255
    scaler = TemperatureScaler().fit(logits=dense, target=maps, ignore_index=255)
    assert scaler.temperature == pytest.approx(expected, rel=1e-6)
    assert scaler(dense).shape == dense.shape


def test_state_survives_saving() -> None:
    logits, labels = _overconfident(100)
    scaler = TemperatureScaler().fit(logits=logits, target=labels)
    other = TemperatureScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.temperature == scaler.temperature


def test_bad_input() -> None:
    logits, labels = _overconfident(10)
    with pytest.raises(ValueError, match=r"call fit\(logits=..., target=...\) first"):
        TemperatureScaler()(logits)
    with pytest.raises(ValueError, match="method must be one of"):
        TemperatureScaler("lbfgs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no valid entry"):
        TemperatureScaler().fit(logits=logits, target=torch.full((10,), -100))
    with pytest.raises(ValueError, match=r"class indices in \[0, 5\), got 7"):
        TemperatureScaler().fit(logits=logits, target=labels.clone().fill_(7))
    with pytest.raises(ValueError, match="finite"):
        TemperatureScaler().fit(logits=logits * math.inf, target=labels)
    with pytest.raises(ValueError, match="got \\(10, 5\\) and \\(9,\\)"):
        TemperatureScaler().fit(logits=logits, target=labels[:9])
