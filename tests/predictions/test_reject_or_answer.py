"""Answer, ask a person, or turn away: the promises of the rule, by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.predictions import conformal_p_values, reject_or_answer

RISK, TURNED_AWAY = 0.1, 0.1


def _draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Confidence, correctness, and strangeness that goes along with little confidence."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(count, generator=generator, dtype=torch.float64)
    correct = torch.rand(count, generator=generator) < 0.3 + 0.7 * confidence
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return confidence, correct, noise - 2 * confidence


def test_p_values_by_counting() -> None:
    known, asked = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([0.0, 2.0, 2.5, 9.0])
    expected = [(1 + sum(float(k) >= float(a) for k in known)) / 5 for a in asked]
    assert conformal_p_values(known, asked).tolist() == pytest.approx(expected)


def test_p_values_of_familiar_inputs_are_at_least_uniform() -> None:
    """Over draws of 19 known inputs and one new: P(p <= a) is a where ties are impossible."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 20, generator=generator)
    found = torch.cat([conformal_p_values(row[:19], row[19:]) for row in draws])
    for share in (0.05, 0.1, 0.5):
        assert float((found <= share).double().mean()) == pytest.approx(share, abs=0.025)
    ties = (draws * 2).round()
    found = torch.cat([conformal_p_values(row[:19], row[19:]) for row in ties])
    assert float((found <= 0.1).double().mean()) <= 0.115


def test_both_promises_hold() -> None:
    turned, broken = [], 0
    for seed in range(150):
        held_out, new = _draw(2000, 2 * seed), _draw(3000, 2 * seed + 1)
        rule = reject_or_answer(*held_out, answer_risk=RISK, turned_away=TURNED_AWAY)
        decided = rule.decide(new[0], new[2])
        turned.append(float((decided == 2).double().mean()))
        answered = decided == 0
        wrong = float((~new[1])[answered].double().mean()) if answered.any() else 0.0
        broken += wrong > RISK
    assert np.mean(turned) == pytest.approx(TURNED_AWAY, abs=0.01)
    assert np.mean(turned) <= TURNED_AWAY + 0.005
    assert broken / 150 <= 0.05 + 0.04  # delta, and the error of 150 draws and of 3,000 inputs


def test_strange_inputs_are_turned_away_whatever_their_confidence() -> None:
    rule = reject_or_answer(*_draw(6000, 0), answer_risk=RISK, turned_away=TURNED_AWAY)
    assert rule.answer.confidence is not None
    assert rule.decide(np.array([1.0, 0.0]), np.array([50.0, 50.0])).tolist() == [2, 2]
    assert rule.decide(np.array([1.0, 0.0]), np.array([-50.0, -50.0])).tolist() == [0, 1]


def test_bad_input() -> None:
    confidence, correct, strangeness = _draw(20, 0)
    with pytest.raises(ValueError, match="needs 38 held-out inputs or more, got 20"):
        reject_or_answer(confidence, correct, strangeness, answer_risk=0.1)
    with pytest.raises(ValueError, match=r"strangeness must be \(20,\)"):
        reject_or_answer(confidence, correct, strangeness[1:], answer_risk=0.1)
    with pytest.raises(ValueError, match=r"without NaN, got .* with 20 NaN"):
        reject_or_answer(confidence, correct, strangeness * torch.nan, answer_risk=0.1)
    with pytest.raises(ValueError, match="at least one familiar input"):
        conformal_p_values(torch.zeros(0), torch.zeros(1))
    rule = reject_or_answer(*_draw(100, 0), answer_risk=0.1, turned_away=0.1)
    with pytest.raises(ValueError, match="a score for each of"):
        rule.decide(torch.zeros(3), torch.zeros(2))
