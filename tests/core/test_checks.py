"""Which logits are taken for probabilities, and which labels for classes."""

from __future__ import annotations

import pytest
import torch

from sfumato._core.checks import are_probabilities, check_class_indices, check_logit_values


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 2), (500, 10), (3, 5, 4, 4), (40, 1000)])
def test_softmax_is_found(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(shape)
    assert are_probabilities(logits.softmax(1).to(dtype))
    assert not are_probabilities(logits.to(dtype))
    assert not are_probabilities(logits.log_softmax(1).to(dtype))
    with pytest.raises(ValueError, match="scores must be raw scores, got probabilities"):
        check_logit_values("scores", logits.softmax(1).to(dtype))


def test_what_may_be_logits() -> None:
    row = torch.tensor([[0.7, 0.2, 0.1]])
    assert not are_probabilities(row)  # one row, as a server sees it
    assert not are_probabilities(row.repeat(3, 1))
    assert are_probabilities(row.repeat(4, 1))
    assert not are_probabilities(torch.eye(6))  # a toy, or votes
    assert not are_probabilities(torch.eye(6).long())
    assert not are_probabilities(torch.rand(100, 1))
    assert not are_probabilities(torch.rand(100))
    assert not are_probabilities(torch.empty(0, 3))
    mixed = torch.randn(100, 3).softmax(1)
    mixed[50] += 1
    assert not are_probabilities(mixed)  # one row of logits is enough
    mixed[50] = torch.nan
    assert not are_probabilities(mixed)


def test_random_logits_are_never_refused() -> None:
    """Of two classes, where chance comes nearest: 200,000 batches of 4 rows."""
    torch.manual_seed(0)
    batches = torch.randn(200_000, 4, 2).abs()
    sums = (batches.sum(2) - 1).abs() <= 1e-2
    assert not bool(sums.all(1).any())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_labels_of_any_dtype(dtype: torch.dtype) -> None:
    """In uint8, 300 is 44 and -100 is 156: neither may be compared with such labels."""
    labels = torch.tensor([[0, 44], [156, 255]], dtype=dtype)
    check_class_indices("labels", labels, 300)
    with pytest.raises(ValueError, match=r"\[0, 150\), got 156 at position \(1, 0\)"):
        check_class_indices("labels", labels, 150, ignore_index=-100)
    check_class_indices("labels", labels, 157, ignore_index=255)
