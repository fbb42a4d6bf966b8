"""Smoothing profiles: the analytic rows of ACLS Table 2, any loss, activity, the figure."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.analysis import active_share, plot_smoothing_profile, smoothing_profile
from sfumato.analysis.smoothing_profile import SmoothingProfile
from sfumato.labels import (
    acls_loss,
    acls_penalty,
    cpc_loss,
    crl_loss,
    cross_entropy_loss,
    flsd_loss,
    margin_penalty,
    mbls_loss,
    mdca_loss,
    ranking_penalty,
)

CLASSES = 6


def split(profile: SmoothingProfile) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f C of the predicted class (S,) and of the others (S, C - 1), and their probabilities."""
    probs = profile.logits.softmax(1)
    return profile.smoothing[:, -1], profile.smoothing[:, :-1], probs[:, -1], probs[:, :-1]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_sweep_goes_from_low_to_high_confidence() -> None:
    profile = smoothing_profile(F.cross_entropy, num_classes=4, max_lead=10.0, num_steps=50)
    assert profile.confidence.shape == (50,)
    assert (profile.confidence.diff() > 0).all()
    assert profile.confidence[0] < 0.45
    assert profile.confidence[-1] > 0.9999
    assert (profile.logits.argmax(1) == 3).all()
    assert profile.lead[-1] == 10.0
    assert not profile.active.any()  # cross entropy smooths nothing
    assert (profile.smoothing.abs() < 1e-12).all()


def test_label_smoothing_row() -> None:
    profile = smoothing_profile(partial(cross_entropy_loss, smoothing=0.1), num_classes=CLASSES)
    predicted, others, _, _ = split(profile)
    # epsilon_1 and epsilon_2 of Eq. (5)
    assert_same(predicted, torch.full_like(predicted, 0.1 * (1 - 1 / CLASSES)))
    assert_same(others, torch.full_like(others, 0.1 / CLASSES))
    assert profile.active.all()


def test_cpc_row() -> None:
    """Supplement Eq. (5)-(7) with the released divisors.

    Table 2 adds lambda_1 p_j / (p_y + p_j) for the other classes; by Eq. (5) it is subtracted.
    """
    profile = smoothing_profile(cpc_loss, num_classes=CLASSES, max_lead=8.0)
    predicted, others, top, rest = split(profile)
    first, second = 0.1 / (CLASSES - 1), 1.0 / (2 * (CLASSES - 1) * (CLASSES - 2))
    contest = rest / (rest + top[:, None])
    assert_same(predicted, -first * contest.sum(1))
    pairs = (rest[:, None, :] - rest[:, :, None]) / (rest[:, None, :] + rest[:, :, None])
    assert_same(others, -first * contest + second * pairs.sum(2))
    assert (predicted < 0).all()  # raises the label of the overconfident class
    assert profile.active[:, -1].all()


def test_mdca_row() -> None:
    """Supplement Eq. (12): the predicted class is overconfident in the batch, the others under."""
    companion_logits = torch.zeros(CLASSES - 1, CLASSES)
    companion_logits[:, -1] = 5.0
    companions = (companion_logits, torch.arange(CLASSES - 1))
    profile = smoothing_profile(mdca_loss, num_classes=CLASSES, companions=companions)
    predicted, others, top, rest = split(profile)
    signed = top - rest.sum(1)  # sum_k a_k p_k with a = 1 at the predicted class, -1 elsewhere
    assert_same(predicted, top * (1 - signed) / CLASSES)
    assert_same(others, rest * (1 + signed)[:, None] / CLASSES)
    # Table 2: p (1 - p) with lambda_1 = 2 / C exactly, p_j (1 + p_top) with 1 / C in the limit
    assert_same(predicted, 2 / CLASSES * top * (1 - top))
    sure = profile.confidence > 0.99
    table = rest * (1 + top)[:, None] / CLASSES
    torch.testing.assert_close(others[sure], table[sure], rtol=0.01, atol=0)
    assert (predicted[sure].diff() < 0).all()  # less smoothing the surer: Fig. 1 (e)


def test_mbls_row() -> None:
    """Eq. (9) and supplement Eq. (15)-(17).

    They hold the top logit constant; the loss as released (and here) doesn't, and takes from the
    predicted class what it gives to the others.
    """
    loss = partial(mbls_loss, margin=6.0, weight=0.1)
    profile = smoothing_profile(loss, num_classes=CLASSES)
    predicted, others, _, _ = split(profile)
    condition = profile.logits[:, -1:] - profile.logits[:, :-1] > 6.0
    assert_same(others, 0.1 / CLASSES * condition.double())
    assert torch.equal(profile.active[:, :-1], condition)
    assert_same(predicted, others.sum(1))

    def top_held_constant(logits: Tensor, target: Tensor) -> Tensor:
        distance = logits.amax(1, keepdim=True).detach() - logits
        return F.cross_entropy(logits, target) + 0.1 * (distance - 6.0).relu().mean()

    table = smoothing_profile(top_held_constant, num_classes=CLASSES)
    assert_same(table.smoothing[:, :-1], others)
    assert not table.active[:, -1].any()  # the 0 of Table 2


@pytest.mark.parametrize("shift", [1e-12, 0.3])
def test_crl_row(shift: float) -> None:
    """Supplement Eq. (20)-(21); the shift of the released hinge widens the condition."""
    partner = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return crl_loss(logits, target, torch.tensor([0.0, shift], dtype=torch.float64))

    companions = (partner, torch.tensor([0]))
    profile = smoothing_profile(loss, num_classes=CLASSES, max_lead=8.0, companions=companions)
    predicted, others, top, rest = split(profile)
    condition = top > partner.softmax(1).max() - shift
    assert condition.any()
    # the pair is met from both sides, so lambda is 2
    assert_same(predicted, 2 * top * (1 - top) * condition)
    assert_same(others, 2 * rest * top[:, None] * condition[:, None])
    assert torch.equal(profile.active, condition[:, None].expand_as(profile.active))


def test_acls_row() -> None:
    """Eq. (10)-(12), the other classes averaged as released."""
    loss = partial(acls_loss, margin=6.0, predicted_weight=0.1, other_weight=0.01, form="gradient")
    profile = smoothing_profile(loss, num_classes=CLASSES)
    predicted, others, _, _ = split(profile)
    top = profile.logits[:, -1]
    spread = top - profile.logits.amin(1)
    gaps = top[:, None] - profile.logits[:, :-1]
    assert_same(predicted, 0.1 * (spread - 6.0) * (spread >= 6.0))
    assert_same(others, 0.01 / (CLASSES - 1) * (gaps - 6.0) * (gaps >= 6.0))
    assert torch.equal(profile.active[:, -1], spread > 6.0)
    assert torch.equal(profile.active[:, :-1], gaps > 6.0)


def test_acls_by_its_value_moves_the_minimum_too() -> None:
    profile = smoothing_profile(partial(acls_loss, margin=6.0, other_weight=0.0))
    predicted, others, _, _ = split(profile)
    assert_same(others[:, 0], predicted)  # the first class has the smallest logit
    assert not profile.active[:, 1:-1].any()


def test_wrong_prediction() -> None:
    """With another label the residual still has to vanish for cross entropy and stay for LS."""
    assert not smoothing_profile(F.cross_entropy, num_classes=4, label=1).active.any()
    profile = smoothing_profile(partial(cross_entropy_loss, smoothing=0.2), num_classes=4, label=1)
    assert profile.one_hot.tolist() == [0, 1, 0, 0]
    # taken from class 1, given to all, the predicted class included: f < 0 there by Eq. (8)
    assert_same(profile.smoothing[0], torch.tensor([0.05, -0.15, 0.05, -0.05], dtype=torch.float64))


def test_focal_losses_take_from_the_label() -> None:
    profile = smoothing_profile(flsd_loss)
    assert profile.active.any()


def test_own_loss() -> None:
    def shrink(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target) + 0.01 * logits.square().sum(1).mean()

    profile = smoothing_profile(shrink, num_classes=5)
    assert_same(profile.smoothing[:, -1], 0.02 * profile.logits[:, -1])
    assert_same(profile.smoothing[:, :-1], -0.02 * profile.logits[:, :-1])


def test_penalty_alone() -> None:
    alone = smoothing_profile(margin_penalty, is_penalty=True)
    whole = smoothing_profile(partial(mbls_loss, weight=1.0))
    assert_same(alone.smoothing, whole.smoothing)
    nothing = smoothing_profile(lambda z, y: torch.zeros(()), is_penalty=True)
    assert not nothing.active.any()


def test_effective_target_has_the_same_gradient() -> None:
    profile = smoothing_profile(mbls_loss, num_classes=4, num_steps=5)
    logits = profile.logits.clone().requires_grad_()
    loss = mbls_loss(logits, torch.full((5,), 3), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    assert_same(gradient, profile.logits.softmax(1) - profile.effective_target)


def test_other_logits() -> None:
    others = torch.tensor([1.0, -4.0, 0.5])
    profile = smoothing_profile(mbls_loss, num_classes=4, other_logits=others, max_lead=5.0)
    assert_same(profile.logits[-1], torch.tensor([1.0, -4.0, 0.5, 6.0], dtype=torch.float64))


def test_share_of_samples_inside_and_outside_the_margin() -> None:
    logits = torch.tensor([[12.0, 0.0], [4.0, 0.0], [0.0, 15.0], [3.0, 3.5]])
    target = torch.tensor([0, 0, 1, 0])
    assert active_share(mbls_loss, logits, target) == 0.5
    assert active_share(margin_penalty, logits, target, is_penalty=True) == 0.5
    assert active_share(partial(acls_penalty, margin=3.0), logits, target, is_penalty=True) == 0.75
    assert active_share(F.cross_entropy, logits, target) == 0.0
    assert active_share(partial(cross_entropy_loss, smoothing=0.1), logits, target) == 1.0


def test_ranking_falls_silent_when_all_samples_are_learned() -> None:
    """Fig. 3: equal correctness leaves the ranking condition nothing to do."""
    logits, target = 10 * torch.randn(200, 5), torch.randint(5, (200,))
    correctness = torch.ones(200)
    correctness[:20] = torch.rand(20)
    ranking = active_share(
        lambda z, y: ranking_penalty(z, y, correctness.to(z)), logits, target, is_penalty=True
    )
    margin = active_share(partial(margin_penalty, margin=6.0), logits, target, is_penalty=True)
    assert ranking < 0.15 < 0.85 < margin


def test_share_of_pixels_without_the_ignored() -> None:
    logits = torch.zeros(1, 2, 2, 2)
    logits[0, 0, 0] = torch.tensor([12.0, 13.0])
    target = torch.tensor([[[0, 255], [0, 0]]])
    loss = partial(mbls_loss, ignore_index=255)
    assert active_share(loss, logits, target, ignore_index=255) == pytest.approx(1 / 3)
    assert active_share(loss, logits, torch.full_like(target, 255), ignore_index=255) == 0.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_classes": 1}, ValueError, "num_classes must be at least 2"),
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ({"max_lead": 0.0}, ValueError, "max_lead must be in"),
        ({"label": 10}, ValueError, "label must be at least 0 and at most 9"),
        ({"other_logits": torch.zeros(10)}, ValueError, r"other_logits must have shape \(9,\)"),
        ({"other_logits": [0.0] * 9}, TypeError, "other_logits must be a tensor"),
    ],
)
def test_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        smoothing_profile(mbls_loss, **change)


def test_loss_must_be_a_scalar() -> None:
    with pytest.raises(ValueError, match=r"loss must return a scalar tensor, got \(1,\)"):
        smoothing_profile(partial(mbls_loss, reduction="none"))


def test_figure_names_what_it_shows() -> None:
    profiles = {
        "LS": smoothing_profile(partial(cross_entropy_loss, smoothing=0.05), num_steps=8),
        "ACLS": smoothing_profile(acls_loss, num_steps=8),
    }
    figure = plot_smoothing_profile(profiles)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["LS", "ACLS", "", ""]
    assert figure.axes[0].get_ylabel() == "smoothing f(z) C(z)"
    assert "confidence" in figure.axes[0].get_xlabel()
    bars = [patch.get_height() for patch in figure.axes[2].patches]
    assert bars[9] == pytest.approx(1 - 0.05 * 0.9)
    figure.canvas.draw()
    with pytest.raises(ValueError, match="profiles must hold at least one"):
        plot_smoothing_profile({})
