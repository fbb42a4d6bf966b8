"""What is read off a prediction, and what is refused."""

from __future__ import annotations

import pytest
import torch

from sfumato.metrics.groups import flat_rows, score


def test_hand_worked_values() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    samples = score(probs, torch.tensor([0, 1]))
    assert samples.confidence.tolist() == pytest.approx([0.7, 0.4])
    assert samples.correct.tolist() == [True, False]
    assert samples.log_likelihood.exp().tolist() == pytest.approx([0.7, 0.3])


def test_agrees_with_argmax_and_log_softmax() -> None:
    logits = 5 * torch.randn(500, 7, dtype=torch.float64)
    target = torch.randint(7, (500,))
    samples = score(logits, target, from_logits=True)
    confidence, predicted = logits.softmax(1).max(1)
    torch.testing.assert_close(samples.confidence, confidence)
    assert torch.equal(samples.correct, predicted == target)
    expected = logits.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(samples.log_likelihood, expected)


@pytest.mark.parametrize("from_logits", [False, True])
def test_first_of_tied_classes_is_predicted(from_logits: bool) -> None:
    tied = torch.full((3, 4), 0.25)
    samples = score(tied, torch.tensor([0, 1, 3]), from_logits=from_logits)
    assert samples.correct.tolist() == [True, False, False]
    pair = torch.tensor([[0.1, 0.45, 0.45]])
    assert score(pair, torch.tensor([1])).correct.item()
    assert not score(pair, torch.tensor([2])).correct.item()


def test_ties_in_dense_predictions() -> None:
    probs = torch.tensor([0.5, 0.5]).view(1, 2, 1, 1).expand(2, 2, 3, 4)
    target = torch.randint(2, (2, 3, 4))
    assert torch.equal(score(probs, target).correct, (target == 0).flatten())


def test_dense_is_flat_in_the_order_of_the_target() -> None:
    logits = torch.randn(2, 5, 3, 4)
    target = torch.randint(5, (2, 3, 4))
    target[0, 1] = 255
    flat, labels = logits.movedim(1, -1).reshape(-1, 5), target.flatten()
    keep = labels != 255
    dense = score(logits, target, from_logits=True, ignore_index=255)
    plain = score(flat[keep], labels[keep], from_logits=True)
    for left, right in zip(dense, plain, strict=True):
        torch.testing.assert_close(left, right)
    rows, kept = flat_rows(logits, target, from_logits=True, ignore_index=255)
    torch.testing.assert_close(rows, flat[keep].softmax(1))
    assert torch.equal(kept, labels[keep])


def test_ignored_class_inside_the_range() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert len(score(probs, torch.tensor([0, 1]), ignore_index=0).confidence) == 1


def test_nothing_counts() -> None:
    for target in (torch.tensor([-100, -100]), torch.zeros(0, dtype=torch.long)):
        probs = torch.full((len(target), 2), 0.5)
        assert all(len(part) == 0 for part in score(probs, target)[:3])
        assert len(flat_rows(probs, target)[1]) == 0


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0]])
    samples = score(logits, torch.tensor([0, 1]), from_logits=True)
    assert samples.confidence.tolist() == [1.0, 1.0]
    assert samples.log_likelihood.tolist() == [0.0, 0.0]


def test_masked_classes_may_be_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    samples = score(logits, torch.tensor([0]), from_logits=True)
    assert samples.confidence.item() == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(dtype: torch.dtype) -> None:
    logits = torch.randn(64, 100).to(dtype)
    samples = score(logits, torch.zeros(64, dtype=torch.long), from_logits=True)
    expected = logits.double().softmax(1).amax(1)
    torch.testing.assert_close(samples.confidence, expected, rtol=1e-5, atol=1e-6)
    assert len(score(logits.softmax(1), torch.zeros(64, dtype=torch.long)).confidence) == 64


@pytest.mark.parametrize(
    ("probs", "target", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], [0, 1], r"sum to one .* got 1.1 at sample \(1,\)"),
        ([[0.5, 0.5], [float("nan"), 0.6]], [0, 1], r"no NaN, got nan at sample \(1,\)"),
        ([[1.2, -0.2], [0.5, 0.5]], [0, 1], r"not be negative, got -0.2 at sample \(0,\)"),
        ([[0.8, 0.2], [0.9, -0.3]], [0, 1], r"not be negative, got -0.3 at sample \(1,\)"),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 2], r"in \[0, 2\), got 2 at position \(1,\)"),
        ([[0.5, 0.5], [0.5, 0.5]], [-1, 0], r"got -1 at position \(0,\)"),
        ([[3.0, 1.0], [0.5, 0.5]], [0, 1], "For raw scores pass logits"),
    ],
)
def test_bad_values(probs: list[list[float]], target: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(torch.tensor(probs), torch.tensor(target))
    with pytest.raises(ValueError, match=message):
        flat_rows(torch.tensor(probs), torch.tensor(target))


def test_bad_pixel_is_named_by_its_position() -> None:
    probs = torch.full((2, 2, 3, 4), 0.5)
    probs[1, :, 2, 3] = 0.9
    with pytest.raises(ValueError, match=r"at sample \(1, 2, 3\)"):
        score(probs, torch.zeros(2, 3, 4, dtype=torch.long))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_must_be_finite(bad: float) -> None:
    logits = torch.zeros(3, 2)
    logits[2, 1] = bad
    target = torch.zeros(3, dtype=torch.long)
    for read in (score, flat_rows):
        with pytest.raises(ValueError, match=r"logits must be finite.* at sample \(2,\)"):
            read(logits, target, from_logits=True)


def test_values_of_ignored_entries_do_not_matter() -> None:
    probs = torch.tensor([[0.5, 0.5], [float("nan"), 7.0]])
    assert len(score(probs, torch.tensor([0, -100])).confidence) == 1


def test_byte_labels_are_not_mistaken_for_ignored_ones() -> None:
    # In uint8, 156 is what -100 wraps to.
    target = torch.tensor([156, 3], dtype=torch.uint8)
    assert len(score(torch.full((2, 200), 1 / 200), target, validate=False).confidence) == 2


def test_gradients_are_left_behind() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    target = torch.zeros(4, dtype=torch.long)
    for samples in (
        score(logits, target, from_logits=True),
        score(logits.softmax(1), target),
        flat_rows(logits, target, from_logits=True),
    ):
        assert not any(part.requires_grad for part in samples[:3])


def test_validation_can_be_switched_off() -> None:
    assert len(score(torch.ones(2, 2), torch.tensor([0, 1]), validate=False).confidence) == 2


@pytest.mark.parametrize(
    ("probs", "target", "error", "message"),
    [
        (torch.rand(4), torch.zeros(4, dtype=torch.long), ValueError, r"\(N, C\)"),
        (torch.ones(4, 1), torch.zeros(4, dtype=torch.long), ValueError, "stack"),
        (torch.ones(4, 2), torch.zeros(4, 2, dtype=torch.long), ValueError, "class indices"),
        (torch.ones(4, 2), torch.zeros(4), TypeError, "integer class indices"),
        (torch.ones(4, 2, dtype=torch.long), torch.zeros(4), TypeError, "floating point"),
        ([[0.5, 0.5]], torch.zeros(1), TypeError, "must be a tensor"),
        (torch.full((1, 2), 0.5), [0], TypeError, "target must be a tensor"),
    ],
)
def test_bad_shapes_and_types(
    probs: torch.Tensor, target: torch.Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        score(probs, target)
