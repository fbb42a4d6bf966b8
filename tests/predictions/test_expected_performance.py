"""Performance without labels: CBPE from its equations, and the coverage of the intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from sfumato.predictions import expected_performance


def draw(seed: int, n: int = 300, classes: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet([0.4] * classes, n)


def cbpe(probs: np.ndarray, number: int) -> tuple[float, float, float]:
    """Precision, recall and AUROC of one class from its expected confusion matrices."""
    p, predicted = probs[:, number], probs.argmax(1) == number
    true_positive = sum(each for each, hit in zip(p, predicted, strict=True) if hit)
    false_positive = sum(1 - each for each, hit in zip(p, predicted, strict=True) if hit)
    false_negative = sum(each for each, hit in zip(p, predicted, strict=True) if not hit)
    curve = [(0.0, 0.0)]
    for threshold in sorted(set(p), reverse=True):
        kept = p[p >= threshold]
        curve.append(((1 - kept).sum() / (1 - p).sum(), kept.sum() / p.sum()))
    x, y = np.array(curve).T
    return (
        true_positive / (true_positive + false_positive),
        true_positive / (true_positive + false_negative),
        float(np.trapezoid(y, x)),
    )


def test_against_the_equations() -> None:
    probs = draw(0)
    probs[:100] = probs[:100].round(1)  # ties
    probs /= probs.sum(1, keepdims=True)
    found = expected_performance(probs)
    for number in range(4):
        theirs = cbpe(probs, number)
        ours = [float(each.value[number]) for each in found]
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert isinstance(expected_performance(torch.tensor(probs)).recall.value, torch.Tensor)


# `estimate_precision`, `estimate_recall` and `estimate_roc_auc` of NannyML 0.13.1, which CBPE
# calls, for each class against the others. It can't be installed beside Python 3.13.
NANNYML = [
    (0.5555125072, 0.8502321825, 0.79058145),
    (0.6767890946, 0.3817184964, 0.7643848219),
    (0.6275476395, 0.5446006206, 0.7995460389),
]


def test_against_nannyml() -> None:
    rows = (np.arange(60)[:, None] * np.array([7, 11, 13]) % 17 + 1.0) ** 2
    found = expected_performance(rows / rows.sum(1, keepdims=True))
    for number, theirs in enumerate(NANNYML):
        precision, recall, auroc = (float(each.value[number]) for each in found)
        assert (precision, recall) == pytest.approx(theirs[:2], abs=1e-9)
        assert auroc == pytest.approx(theirs[2], abs=1e-6)  # it rounds sums to five digits


def test_intervals_cover_the_measures_of_drawn_labels() -> None:
    inside = np.zeros(3)
    for seed in range(100):
        probs = draw(seed)
        rng = np.random.default_rng((1, seed))
        labels = (probs.cumsum(1) > rng.random((len(probs), 1))).argmax(1)
        found = expected_performance(probs)
        is_class, chosen = labels == 0, probs.argmax(1) == 0
        true = (
            precision_score(is_class, chosen),
            recall_score(is_class, chosen),
            roc_auc_score(is_class, probs[:, 0]),
        )
        for place, (each, value) in enumerate(zip(found, true, strict=True)):
            inside[place] += each.low[0] <= value <= each.high[0]
    assert (inside >= 87).all()  # 95 expected; fewer than 87 less than once in 1,000 times


def test_a_class_that_is_never_predicted_has_no_precision() -> None:
    found = expected_performance([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]])
    assert np.isnan(found.precision.value).tolist() == [False, False, True]
    assert float(found.recall.value[2]) == 0
    sure = expected_performance([[1.0, 0.0], [1.0, 0.0]])
    assert np.isnan(sure.auroc.value).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"probs must be \(N, C\) with N >= 1 and C >= 2"):
        expected_performance([0.5, 0.5])
    with pytest.raises(ValueError, match="probs"):
        expected_performance([[0.5, 0.9]])
    with pytest.raises(ValueError, match="level must be"):
        expected_performance([[0.5, 0.5]], level=1.0)
