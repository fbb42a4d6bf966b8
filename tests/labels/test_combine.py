"""The combinator: its sum, its parts, and what it accepts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sfumato.labels import (
    CombinedLoss,
    CRLLoss,
    acls_loss,
    acls_penalty,
    cape_penalty,
    combined_loss,
    cpc_loss,
    cross_entropy_loss,
    discrimination_penalty,
    ecp_loss,
    entropy_penalty,
    exclusion_penalty,
    focal_loss,
    margin_penalty,
    mbls_loss,
    mdca_loss,
    mdca_penalty,
    mmce_loss,
    mmce_penalty,
    ranking_penalty,
)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.randint(5, (8,))
    target[0] = -100
    return 6 * torch.randn(8, 5, dtype=torch.float64), target


def test_total_is_the_sum_of_its_parts(batch) -> None:
    logits, target = batch
    penalties = {"margin": (0.1, margin_penalty), "mdca": (2.0, mdca_penalty)}
    total, parts = combined_loss(logits, target, fidelity=focal_loss, penalties=penalties)
    assert list(parts) == ["fidelity", "margin", "mdca"]
    torch.testing.assert_close(parts["fidelity"], focal_loss(logits, target))
    torch.testing.assert_close(parts["margin"], 0.1 * margin_penalty(logits, target))
    torch.testing.assert_close(parts["mdca"], 2.0 * mdca_penalty(logits, target))
    torch.testing.assert_close(total, sum(parts.values()))


@pytest.mark.parametrize(
    ("loss", "penalties"),
    [
        (mbls_loss, {"margin": (0.1, margin_penalty)}),
        (acls_loss, {"acls": (1.0, acls_penalty)}),
        (mmce_loss, {"mmce": (1.0, mmce_penalty)}),
        (mdca_loss, {"mdca": (1.0, mdca_penalty)}),
        (ecp_loss, {"entropy": (0.1, entropy_penalty)}),
        (cpc_loss, {"one": (0.1, discrimination_penalty), "two": (1.0, exclusion_penalty)}),
    ],
)
def test_named_losses_are_combinations(batch, loss, penalties) -> None:
    logits, target = batch
    logits.requires_grad_()
    value = CombinedLoss(cross_entropy_loss, penalties)(logits, target)
    expected = loss(logits, target)
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


def test_parts_are_detached_and_the_total_is_not(batch) -> None:
    logits, target = batch
    logits.requires_grad_()
    loss = CombinedLoss(cross_entropy_loss, {"margin": (0.1, margin_penalty)})
    total, parts = loss.with_parts(logits, target)
    assert total.requires_grad
    assert not any(part.requires_grad for part in parts.values())


def test_further_inputs_of_a_batch(batch) -> None:
    logits, target = batch
    numbers = torch.rand(8, dtype=torch.float64)
    loss = CombinedLoss(
        partial(cross_entropy_loss, smoothing=0.1),
        {"ranking": (0.5, ranking_penalty), "cape": (2.0, cape_penalty)},
    )
    inputs = {"ranking": (numbers,), "cape": (numbers,)}
    total, parts = loss.with_parts(logits, target, inputs)
    torch.testing.assert_close(parts["ranking"], 0.5 * ranking_penalty(logits, target, numbers))
    torch.testing.assert_close(parts["cape"], 2.0 * cape_penalty(logits, target, numbers))
    torch.testing.assert_close(loss(logits, target, inputs), total)


def test_no_penalty_is_the_fidelity(batch) -> None:
    logits, target = batch
    assert torch.equal(CombinedLoss(focal_loss, {})(logits, target), focal_loss(logits, target))


def test_modules_travel_with_the_state_dict() -> None:
    loss = CombinedLoss(nn.CrossEntropyLoss(weight=torch.ones(3)), {"crl": (1.0, CRLLoss(4))})
    assert set(loss.state_dict()) == {
        "fidelity.weight",
        "penalty_modules.crl.history.counts",
        "penalty_modules.crl.history.completed_epochs",
    }


@pytest.mark.parametrize(
    ("penalties", "error", "message"),
    [
        ({"fidelity": (1.0, margin_penalty)}, ValueError, 'other than "fidelity"'),
        ({"a.b": (1.0, margin_penalty)}, ValueError, "penalties must have names like"),
        ({"margin": (-1.0, margin_penalty)}, ValueError, "weight of penalty 'margin' must be in"),
        ({"margin": margin_penalty}, TypeError, r"must be \(weight, function\)"),
        ({"margin": (margin_penalty, 1.0)}, TypeError, r"must be \(weight, function\)"),
    ],
)
def test_bad_penalties(penalties, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CombinedLoss(focal_loss, penalties)


def test_inputs_without_a_penalty(batch) -> None:
    logits, target = batch
    with pytest.raises(ValueError, match=r"inputs must name penalties \[\], got 'ranking'"):
        combined_loss(
            logits,
            target,
            fidelity=focal_loss,
            penalties={},
            inputs={"ranking": (torch.rand(8),)},
        )
