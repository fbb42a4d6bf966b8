"""Logit normalisation: the equation, its limits, and the order that it restores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.metrics import aurc
from sfumato.predictions import LogitNormaliser, normalise_logits
from sfumato.predictions.logit_normalisation import _risk_coverage_area


def _label_smoothed(count: int = 3000, classes: int = 10) -> tuple[Tensor, Tensor]:
    """The largest logit is held down where the prediction is right; the others' spread is not."""
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(count, generator=generator) < 0.8
    spread = torch.where(right, 0.2, 1.0)[:, None]
    logits = torch.randn(count, classes, generator=generator) * spread
    labels = torch.randint(classes, (count,), generator=generator)
    top = torch.where(right, labels, (labels + 1) % classes)
    logits.scatter_(1, top[:, None], logits.amax(1, keepdim=True) + 3.0)
    return logits, labels


def test_by_hand() -> None:
    """Mean 2, centred (3, -1, -2): 1-norm 6, 2-norm sqrt(14)."""
    logits = torch.tensor([[5.0, 1.0, 0.0]], dtype=torch.float64)
    centred = torch.tensor([[3.0, -1.0, -2.0]], dtype=torch.float64)
    assert torch.allclose(normalise_logits(logits, order=1), centred / 6)
    assert torch.allclose(normalise_logits(logits, order=2), centred / 14**0.5)
    assert torch.equal(normalise_logits(logits, order=0), centred)


@pytest.mark.parametrize("order", [1.0, 2.5, 9.0])
def test_equals_a_numpy_loop(order: float) -> None:
    logits = torch.randn(6, 4, 2, 3, dtype=torch.float64)
    found = normalise_logits(logits, order=order).numpy()
    for n, h, w in np.ndindex(6, 2, 3):
        z = logits[n, :, h, w].numpy() - logits[n, :, h, w].numpy().mean()
        assert found[n, :, h, w] == pytest.approx(z / (np.abs(z) ** order).sum() ** (1 / order))


def test_shift_and_scale_change_nothing() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    assert torch.allclose(
        normalise_logits(logits * 7 + 3, order=3), normalise_logits(logits, order=3)
    )


def test_gradient() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: normalise_logits(z, order=3), logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_huge_and_equal_logits(dtype: torch.dtype) -> None:
    big = 0.4 * torch.finfo(dtype).max
    logits = torch.tensor([[big, 0.0, 0.0, -big], [2.0, 2.0, 2.0, 2.0]], dtype=dtype)
    found = normalise_logits(logits, order=9)
    assert bool(torch.isfinite(found).all())
    assert torch.equal(found[1], torch.zeros(4, dtype=dtype))


def test_restores_the_order_of_confidences() -> None:
    logits, labels = _label_smoothed()
    scorer = LogitNormaliser().fit(logits=logits, target=labels)
    wrong = (logits.argmax(1) != labels).double()
    before = _risk_coverage_area(logits.softmax(1).amax(1), wrong)
    after = _risk_coverage_area(scorer.confidence(logits), wrong)
    assert scorer.order is not None
    assert scorer.order > 0
    assert float(after) < 0.7 * float(before)
    assert torch.equal(scorer(logits).argmax(1), logits.argmax(1))


def test_softmax_wins_where_it_ranks_best() -> None:
    """Labels drawn from the softmax: nothing orders them better than the softmax itself."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 10, generator=generator) * 2
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    scorer = LogitNormaliser().fit(logits=logits, target=labels)
    assert scorer.order is None
    assert torch.allclose(scorer.confidence(logits), logits.softmax(1).amax(1).log(), atol=1e-6)
    other = LogitNormaliser()
    other.load_state_dict(scorer.state_dict())
    assert other.order is None
    assert repr(other) == "LogitNormaliser(order=softmax)"


def test_area_equals_the_metric_with_ties() -> None:
    probs = torch.rand(200, 4).round(decimals=1).double() + 0.01
    probs /= probs.sum(1, keepdim=True)
    labels = torch.randint(4, (200,))
    wrong = (probs.argmax(1) != labels).double()
    assert float(_risk_coverage_area(probs.amax(1), wrong)) == pytest.approx(
        float(aurc(probs, labels)), abs=1e-6
    )


def test_fixed_order_needs_no_fit() -> None:
    logits = torch.randn(4, 3)
    scorer = LogitNormaliser(order=2)
    assert torch.equal(scorer(logits), normalise_logits(logits, order=2))
    assert scorer.confidence(logits[..., None]).shape == (4, 1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"at least 3 classes.*two classes are the same"):
        normalise_logits(torch.zeros(4, 2), order=1)
    with pytest.raises(ValueError, match="order must be in"):
        LogitNormaliser(order=-1.0)
    with pytest.raises(ValueError, match="or give order="):
        LogitNormaliser()(torch.zeros(4, 3))
