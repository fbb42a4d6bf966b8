"""Numbers of calibrators at the edges: large logits, probabilities of 0, rows off by a rounding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.predictions import choose_calibrator


def draw(n: int, factor: float) -> tuple[Tensor, Tensor]:
    """Overconfident logits and labels of the true ones."""
    generator = torch.Generator().manual_seed(0)
    true = 1.5 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
    return factor * true, labels


@pytest.mark.parametrize("factor", [400.0, 1e5])
def test_large_logits_have_a_finite_likelihood(factor: float) -> None:
    logits, labels = draw(300, factor=factor)
    methods = ("temperature", "isotonic")
    table = choose_calibrator(logits=logits, target=labels, methods=methods, folds=2).report[
        "table"
    ]
    assert table["none"]["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)))
    assert all(np.isfinite(row["nll"]) for row in table.values())
    probs = logits.softmax(1)  # of which many are 0
    table = choose_calibrator(probs=probs, target=labels, methods=methods, folds=2).report["table"]
    assert np.isinf(table["none"]["nll"])
    assert np.isfinite(table["isotonic"]["nll"])


def test_isotonic_by_the_equation_of_the_document(tmp_path: Path) -> None:
    """Rows with zeros, mixed with the uniform one, and rows that sum to 0.995."""
    logits, labels = draw(400, factor=30)
    probs = logits.softmax(1).numpy().round(2)
    probs /= probs.sum(1, keepdims=True)
    found = choose_calibrator(probs=probs, target=labels, methods=("isotonic",), folds=2)
    assert found.method == "isotonic"
    found.save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    a, s, classes = content["uniform"], content["smoothing"], content["classes"]
    given = 0.995 * probs
    mixed = (1 - a) * given + a / classes
    q = mixed / mixed.sum(1, keepdims=True)
    curves = zip(q.T, *content["parameters"].values(), strict=True)
    g = np.stack([np.interp(x, stated, seen) for x, stated, seen in curves], 1)
    r = np.where(g.sum(1, keepdims=True) > 0, g / g.sum(1, keepdims=True), 1 / classes)
    expected = (1 - s) * r + s / classes
    np.testing.assert_allclose(found.predict_proba(probs=given), expected, atol=1e-9)
