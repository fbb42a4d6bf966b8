"""Adaptive and conditional label smoothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.labels import ACLSLoss, acls_loss, acls_penalty, cross_entropy_loss
from sfumato.labels.acls import is_ranked_wrongly
from sfumato.ops.softmax import softmax_summary
from tools.endurance.loss_references import penalty_of

FORMS = ("paper", "gradient", "released")


def test_by_hand() -> None:
    # Distances to the top are 0, 3, 8: beyond the margin 2 lie 1 and 6.
    logits = torch.tensor([[5.0, 2.0, -3.0]])
    penalty = partial(acls_penalty, margin=2.0, predicted_weight=1.0, other_weight=0.1)
    values = {form: penalty(logits, form=form).item() for form in FORMS}
    others = 0.1 * (1 + 36) / 2
    assert values["paper"] == pytest.approx(36 + others)
    assert values["gradient"] == pytest.approx((36 + others) / 2)
    assert values["released"] == pytest.approx(9 + others)


@pytest.mark.parametrize("form", FORMS)
def test_against_reference(form: Any) -> None:
    logits = (torch.randn(7, 5, dtype=torch.float64) * 4 + 2).requires_grad_()
    options = {"margin": 3.0, "predicted_weight": 0.7, "other_weight": 0.2, "form": form}
    values = acls_penalty(logits, **options, reduction="none")
    expected = penalty_of("acls", logits, **options, reduction="none")
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=0.0)
    slope, expected = (torch.autograd.grad(x.sum(), logits)[0] for x in (values, expected))
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-14)


def test_printed_equation_12_has_no_division_by_the_number_of_classes() -> None:
    z = np.array([7.0, -2.0, 1.0, 3.5])
    logits = torch.tensor(z[None], requires_grad=True)
    value = acls_penalty(
        logits, margin=3.0, predicted_weight=0.7, other_weight=0.2 * (len(z) - 1), form="gradient"
    )
    value.backward()
    printed = [0.7 * (7 + 2 - 3), -0.2 * (7 + 2 - 3), -0.2 * (7 - 1 - 3), -0.2 * (7 - 3.5 - 3)]
    np.testing.assert_allclose(logits.grad, [printed], rtol=1e-12)


@pytest.mark.parametrize(("name", "margin"), [("acls_m10", 10.0), ("acls_m6", 6.0)])
def test_golden(check_golden: Callable[..., int], name: str, margin: float) -> None:
    loss = partial(acls_loss, margin=margin, form="released")
    weights = {"predicted_weight": 1.0, "other_weight": 0.1}
    penalty = partial(acls_penalty, margin=margin, form="released", **weights)
    # Tied maxima share the gradient here; the released code gives it to the first of them.
    assert check_golden(name, loss, tied_gradient=False) == 10
    compared = check_golden(
        name, penalty, value="penalty", gradient="penalty_grad", tied_gradient=False
    )
    assert compared == 10


def test_predicted_part_moves_no_logits_together() -> None:
    logits = (torch.randn(50, 8, dtype=torch.float64) * 6).requires_grad_()

    def drift(form: Any) -> Tensor:
        penalty = acls_penalty(logits, margin=3.0, other_weight=0.0, form=form, reduction="sum")
        (slope,) = torch.autograd.grad(penalty, logits)
        return slope.sum(1)

    torch.testing.assert_close(drift("paper"), torch.zeros(50, dtype=torch.float64))
    assert drift("gradient").min() > 0.1
    assert drift("released").max() > 0.1


def test_paper_form_lowers_the_top_and_raises_the_minimum() -> None:
    logits = torch.tensor([[9.0, 1.0, 4.0, 0.0]], requires_grad=True)
    acls_penalty(logits, margin=5.0, predicted_weight=1.0, other_weight=0.0).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[8.0, 0.0, 0.0, -8.0]]))


def test_released_form_is_blind_to_a_common_shift() -> None:
    logits = torch.tensor([[20.0, 0.0, 5.0]])
    shifted = logits - 15.0
    moves = {
        form: (
            acls_penalty(logits, other_weight=0.0, form=form)
            - acls_penalty(shifted, other_weight=0.0, form=form)
        ).item()
        for form in FORMS
    }
    assert moves["paper"] == moves["gradient"] == 0.0
    assert moves["released"] == pytest.approx(0.1 * 10**2)


@pytest.mark.parametrize("form", FORMS)
def test_limits(form: Any) -> None:
    logits, target = torch.randn(8, 5) * 10, torch.randint(0, 5, (8,))
    stock = cross_entropy_loss(logits, target)
    torch.testing.assert_close(acls_loss(logits, target, margin=1e6, form=form), stock)
    unweighted = acls_loss(logits, target, predicted_weight=0.0, other_weight=0.0, form=form)
    torch.testing.assert_close(unweighted, stock)


@pytest.mark.parametrize("form", FORMS)
def test_one_weight_alone(form: Any) -> None:
    logits = torch.randn(6, 4, dtype=torch.float64) * 8
    logits.requires_grad_()
    first = acls_penalty(logits, margin=2.0, other_weight=0.0, form=form)
    second = acls_penalty(logits, margin=2.0, predicted_weight=0.0, form=form)
    both = acls_penalty(logits, margin=2.0, form=form)
    torch.testing.assert_close(first + second, both)
    torch.testing.assert_close(
        torch.autograd.grad(first + second, logits), torch.autograd.grad(both, logits)
    )


def test_gradcheck_of_what_is_a_gradient() -> None:
    # The other-class part holds the top constant and "gradient" the minimum: no derivatives.
    logits = (torch.randn(3, 4, 2, dtype=torch.float64) * 4).requires_grad_()
    target = torch.tensor([[0, 1], [2, -100], [3, 1]])
    for form in ("paper", "released"):

        def loss(z: Tensor, form: Any = form) -> Tensor:
            return acls_loss(z, target, margin=1.5, other_weight=0.0, form=form)

        assert torch.autograd.gradcheck(loss, logits)
        assert torch.autograd.gradgradcheck(loss, logits)


def test_ties() -> None:
    logits = torch.tensor([[9.0, 0.0, 9.0, 0.0]], requires_grad=True)
    penalty = acls_penalty(logits, margin=4.0, predicted_weight=1.0, other_weight=0.0)
    penalty.backward()
    assert penalty.item() == 25.0
    torch.testing.assert_close(logits.grad, torch.tensor([[5.0, -5.0, 5.0, -5.0]]))
    # As released, every tied class is a predicted one.
    released = acls_penalty(
        logits, margin=4.0, predicted_weight=1.0, other_weight=0.0, form="released"
    )
    assert released.item() == 50.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "ablation", [{"condition": "always"}, {"smoothing": "constant"}], ids=lambda each: str(*each)
)
def test_ablations_against_reference(form: Any, ablation: dict[str, Any]) -> None:
    logits = torch.randn(7, 5, dtype=torch.float64) * 4 + 2
    options = {"margin": 3.0, "predicted_weight": 0.7, "other_weight": 0.2, "form": form}
    values = acls_penalty(logits, **options, **ablation, reduction="none")
    expected = penalty_of("acls", logits, **options, **ablation, reduction="none")
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=0.0)


def test_adaptive_only_gradient_is_eq_10() -> None:
    logits = torch.tensor([[5.0, 2.0, -3.0]], requires_grad=True)
    acls_penalty(
        logits,
        margin=4.0,
        predicted_weight=1.0,
        other_weight=1.0,
        form="gradient",
        condition="always",
    ).backward()
    # f = 8 - 4 down for the top, (3 - 4) / 2 and (8 - 4) / 2 up for the others.
    torch.testing.assert_close(logits.grad, torch.tensor([[4.0, 0.5, -2.0]]))


def test_conditional_only_gradient_is_constant() -> None:
    logits = torch.tensor([[5.0, 2.0, -3.0]], requires_grad=True)
    acls_penalty(
        logits,
        margin=4.0,
        predicted_weight=0.3,
        other_weight=0.2,
        form="gradient",
        smoothing="constant",
    ).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.3, 0.0, -0.1]]))


def test_ranking_condition_by_hand() -> None:
    confidences = torch.tensor([0.9, 0.6, 0.7, 0.8])
    logits = torch.stack([confidences.log(), (1 - confidences).log()], 1)
    correctness = torch.tensor([0.5, 0.9, 0.5, 0.1])
    # 0-1: more confident, less often right; 1-2 and 2-3: the reverse; 3-0: the orders agree.
    softmax = softmax_summary(logits, torch.zeros(4, dtype=torch.long))
    assert is_ranked_wrongly(softmax, correctness).tolist() == [True, True, True, False]
    # Ignored entries are jumped over: 0 now meets 2, of equal correctness.
    softmax = softmax_summary(logits, torch.tensor([0, -100, 0, 0]), ignore_index=-100)
    found = is_ranked_wrongly(softmax, correctness) & softmax.valid
    assert found.tolist() == [False, False, True, False]


def test_ranking_gates_the_unconditional_penalty() -> None:
    logits = torch.randn(9, 4, dtype=torch.float64) * 5
    target, correctness = torch.randint(0, 4, (9,)), torch.rand(9)
    ungated = acls_penalty(logits, target, condition="always", reduction="none")
    gated = acls_penalty(
        logits, target, condition="ranking", correctness=correctness, reduction="none"
    )
    gate = is_ranked_wrongly(softmax_summary(logits, target), correctness)
    assert 0 < gate.sum() < 9
    torch.testing.assert_close(gated, gate * ungated)
    fresh = acls_penalty(logits, target, condition="ranking", correctness=torch.zeros(9))
    assert fresh.item() == 0.0


def test_released_average_over_ignored_is_not_repeated(golden: Callable[[str], Any]) -> None:
    arrays = golden("losses_dense")
    logits = torch.tensor(arrays["ignore_m100.logits"])
    target = torch.tensor(arrays["ignore_m100.labels"])
    released = arrays["ignore_m100.acls_m6.released_default_loss"]
    penalty = acls_penalty(logits, margin=6.0, form="released")
    everywhere = cross_entropy_loss(logits, target) + penalty
    np.testing.assert_allclose(everywhere, released, rtol=1e-12)
    assert abs(acls_loss(logits, target, margin=6.0, form="released").item() - released) > 1e-4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"margin": -1.0}, "margin must be in"),
        ({"predicted_weight": -1.0}, "predicted_weight must be in"),
        ({"other_weight": -1.0}, "other_weight must be in"),
        ({"form": "draft"}, "form must be one of"),
        ({"smoothing": "linear"}, "smoothing must be one of"),
        ({"condition": "never"}, "condition must be one of"),
        ({"condition": "ranking"}, "needs correctness"),
        ({"correctness": torch.rand(2)}, "correctness is used by"),
        (
            {"condition": "ranking", "correctness": torch.rand(3)},
            r"correctness must hold one number",
        ),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acls_loss(torch.randn(2, 3), torch.tensor([0, 1]), **parameters)


def test_module() -> None:
    logits, target = torch.randn(4, 3) * 9, torch.tensor([0, 1, 2, 0])
    parameters: dict[str, Any] = {
        "margin": 2.0,
        "predicted_weight": 0.3,
        "other_weight": 0.2,
        "form": "gradient",
        "class_weight": torch.rand(3),
    }
    module = ACLSLoss(**parameters)
    assert torch.equal(module(logits, target), acls_loss(logits, target, **parameters))
    correctness = torch.rand(4)
    module = ACLSLoss(condition="ranking")
    expected = acls_loss(logits, target, condition="ranking", correctness=correctness)
    assert torch.equal(module(logits, target, correctness), expected)
    with pytest.raises(ValueError, match="form must be one of"):
        ACLSLoss(form="draft")


def test_a_module_with_a_history_ranks_by_what_it_remembers() -> None:
    loss = ACLSLoss(condition="ranking", num_samples=4, margin=1.0)
    logits = torch.tensor([[4.0, 0.0, 1.0], [0.0, 3.0, -2.0], [1.0, 0.0, 6.0]])
    target, index = torch.tensor([0, 2, 2]), torch.tensor([3, 0, 1])
    for _ in range(2):
        known = loss.history.correctness(index)
        expected = acls_loss(logits, target, condition="ranking", margin=1.0, correctness=known)
        torch.testing.assert_close(loss(logits, target, index=index), expected)
        loss.history.end_epoch()
    assert loss.history.counts.tolist() == [0, 2, 0, 2]
    without = acls_loss(logits, target, condition="ranking", correctness=torch.zeros(3))
    assert expected != without
    loss.eval()(logits, target, index=index)
    assert loss.history.counts.tolist() == [0, 2, 0, 2]


def test_a_history_needs_indices_and_classes() -> None:
    loss = ACLSLoss(condition="ranking", num_samples=4)
    with pytest.raises(TypeError, match="needs index="):
        loss(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="must hold class indices"):
        loss(torch.zeros(2, 3), torch.full((2, 3), 1 / 3), index=torch.tensor([0, 1]))
    assert ACLSLoss(num_samples=4).history is None
