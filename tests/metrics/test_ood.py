"""Metrics of strange inputs: against torchmetrics, pytorch-ood and by counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from sfumato.metrics import augrc, aurc, ood_metrics
from sfumato.metrics.ood import OODEvaluation


def _scores(step: float = 0.25) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores with ties of both sets, and whether the familiar predictions are right."""
    generator = torch.Generator().manual_seed(0)
    familiar = torch.randn(300, generator=generator)
    strange = torch.randn(200, generator=generator) + 0.7
    right = torch.rand(300, generator=generator) > 0.2
    return (familiar / step).round() * step, (strange / step).round() * step, right


def test_by_hand() -> None:
    found = ood_metrics([0.1, 0.2, 0.6], [0.5, 0.9], correct=[True, False, True])
    assert found["auroc"] == pytest.approx(5 / 6)
    assert found["fpr95"] == pytest.approx(1 / 3)
    assert found["aupr_out"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["aupr_in"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    # Answered from the least strange on: right, wrong, strange, right, strange.
    assert found["aurc"] == pytest.approx((0 + 1 / 2 + 2 / 3 + 2 / 4 + 3 / 5) / 5)


def test_against_torchmetrics() -> None:
    familiar, strange, _ = _scores()
    # Their thresholds want scores in [0, 1]; ranks stay.
    scores = torch.cat([familiar, strange]).sigmoid()
    target = torch.cat([torch.zeros(300), torch.ones(200)]).long()
    found = ood_metrics(familiar, strange)
    assert found["auroc"] == pytest.approx(float(binary_auroc(scores, target)), abs=1e-6)
    out, kept = (
        float(binary_average_precision(*each))
        for each in ((scores, target), (1 - scores, 1 - target))
    )
    assert (found["aupr_out"], found["aupr_in"]) == pytest.approx((out, kept), abs=1e-6)


def test_separation_is_that_of_pytorch_ood(golden: Callable[[str], dict[str, Any]]) -> None:
    arrays = golden("ood")  # of its version 0.4.0, which has other average precisions: trapezoids
    found = ood_metrics(arrays["familiar"], arrays["strange"])
    assert found["auroc"] == pytest.approx(float(arrays["AUROC"]))
    assert found["fpr95"] == pytest.approx(float(arrays["FPR95TPR"]))


def test_risk_over_both_sets_is_that_of_one_set_with_mistakes() -> None:
    familiar, strange, right = _scores()
    confidence = 1 - torch.cat([familiar, strange]).double().sigmoid() / 2  # in (1/2, 1)
    probs = torch.stack([confidence, 1 - confidence], 1)
    target = torch.cat([(~right).long(), torch.ones(200).long()])  # class 0 is predicted
    found = ood_metrics(familiar, strange, correct=right)
    assert found["aurc"] == pytest.approx(float(aurc(probs, target)))
    assert found["augrc"] == pytest.approx(float(augrc(probs, target)))


def test_a_resample_is_the_metrics_of_the_inputs_that_are_drawn() -> None:
    familiar, strange, right = _scores()
    sources = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    drawn = OODEvaluation(familiar, strange, right).resample(3, (sources[0], sources[1]))
    sources = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    places = [
        torch.randint(n, (3, n), generator=g) for n, g in zip((300, 200), sources, strict=True)
    ]
    for row in range(3):
        first, second = places[0][row], places[1][row]
        whole = ood_metrics(familiar[first], strange[second], correct=right[first])
        for name, value in whole.items():
            assert float(drawn[name][row]) == pytest.approx(value), name


def test_intervals_hold_the_value_and_are_those_of_the_same_seed() -> None:
    familiar, strange, right = _scores()
    first, second = (
        ood_metrics(
            familiar,
            strange,
            correct=right,
            resamples=100,
            generator=torch.Generator().manual_seed(3),
        )
        for _ in range(2)
    )
    assert first == second
    for name in ("auroc", "fpr95", "aupr_in", "aupr_out", "aurc", "augrc"):
        low, high = first[f"{name}_interval"]
        assert low < first[name] < high


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="strange must be the scores of at least one input"):
        ood_metrics([0.1], [])
    with pytest.raises(ValueError, match="familiar must have no NaN, got 1: leave"):
        ood_metrics(np.array([np.nan, 0.0]), [0.1])
    with pytest.raises(ValueError, match="correct"):
        ood_metrics([0.1, 0.2], [0.1], correct=[True])
