"""Preparation of logits and targets, and the reduction."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sfumato.labels._entries import full_precision, prepare_entries, reduce_entries


def test_ignored_entries_are_marked_and_safe_to_gather() -> None:
    logits = torch.randn(3, 4)
    plain = prepare_entries(logits, torch.tensor([2, 255, 0]), ignore_index=255).plain()
    assert plain.valid.tolist() == [True, False, True]
    assert plain.target.tolist() == [2, 0, 0]
    assert plain.count == 2
    assert not plain.logits[1].any()


def test_without_target_everything_is_valid() -> None:
    entries = prepare_entries(torch.randn(2, 3, 5), None)
    assert entries.shape == (2, 5)
    assert entries.plain().valid is None
    assert entries.softmax().valid is None
    assert entries.softmax().count == entries.plain().count == 10


def test_unsigned_labels_do_not_wrap_the_ignore_index() -> None:
    # As uint8, -100 is 156.
    target = torch.tensor([156, 0], dtype=torch.uint8)
    entries = prepare_entries(torch.randn(2, 200), target, ignore_index=-100)
    assert entries.plain().valid is None
    assert entries.softmax().count == 2


def test_ignore_index_may_be_a_class() -> None:
    entries = prepare_entries(torch.randn(2, 3), torch.tensor([0, 1]), ignore_index=0)
    assert entries.plain().valid.tolist() == [False, True]
    assert entries.softmax().valid.tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_single(dtype: torch.dtype) -> None:
    entries = prepare_entries(torch.randn(2, 3).to(dtype), torch.rand(2, 3).to(dtype))
    assert entries.logits.dtype == entries.soft_target.dtype == torch.float32
    assert prepare_entries(torch.randn(2, 3).double(), None).logits.dtype == torch.float64


def test_autocast_is_off_inside() -> None:
    logits = torch.randn(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (logits @ logits).dtype == torch.bfloat16
        with full_precision(logits):
            assert (logits @ logits).dtype == torch.float32


class Some(NamedTuple):
    """Three entries of which some count."""

    valid: Tensor | None

    @property
    def count(self) -> int | Tensor:
        return 3 if self.valid is None else self.valid.sum()


def test_reductions() -> None:
    values, some = torch.tensor([1.0, 5.0, 3.0]), Some(torch.tensor([True, False, True]))
    assert reduce_entries(values, some, "mean").item() == 2.0
    assert reduce_entries(values, some, "sum").item() == 4.0
    assert reduce_entries(values, some, "none").tolist() == [1.0, 0.0, 3.0]
    assert reduce_entries(values, Some(None), "mean").item() == 3.0
    weight = torch.tensor([0.5, 9.0, 1.5])
    assert reduce_entries(values, some, "mean", weight=weight).item() == 2.0


def test_ignored_infinity_does_not_spread() -> None:
    values = torch.tensor([1.0, torch.inf, 2.0], requires_grad=True)
    mean = reduce_entries(values, Some(torch.tensor([True, False, True])), "mean")
    mean.backward()
    assert mean.item() == 1.5
    assert values.grad.tolist() == [0.5, 0.0, 0.5]


def test_nothing_valid_gives_a_connected_zero() -> None:
    values = torch.ones(3, requires_grad=True)
    mean = reduce_entries(values, Some(torch.zeros(3, dtype=torch.bool)), "mean")
    mean.backward()
    assert mean.item() == 0.0
    assert not values.grad.any()


@pytest.mark.parametrize(
    ("logits", "target", "options", "error", "message"),
    [
        ([[0.0, 1.0]], torch.tensor([0]), {}, TypeError, "logits must be a tensor"),
        (torch.ones(2, 3).long(), torch.tensor([0, 0]), {}, TypeError, "logits must be floating"),
        (torch.randn(3), torch.tensor(0), {}, ValueError, r"logits must have shape.*got \(3,\)"),
        (torch.randn(3, 1), torch.zeros(3).long(), {}, ValueError, "at least 2 classes"),
        (torch.randn(2, 3), [0, 1], {}, TypeError, "target must be a tensor, got list"),
        (torch.randn(2, 3), torch.tensor([0, 3]), {}, ValueError, r"in \[0, 3\), got 3 at pos"),
        (torch.randn(2, 3), torch.tensor([0, -1]), {}, ValueError, "ignore_index=-100"),
        (
            torch.randn(2, 3),
            torch.tensor([0, -100]),
            {"ignore_index": 255},
            ValueError,
            "got -100 at position",
        ),
        (torch.randn(2, 3), torch.tensor([0]), {}, ValueError, r"target must have shape \(2,\)"),
        (torch.randn(2, 3), torch.ones(2).bool(), {}, TypeError, "integer class indices"),
        (torch.randn(2, 3), torch.rand(2, 4), {}, ValueError, "soft target must have the shape"),
        (torch.randn(2, 3), torch.rand(2, 3), {"soft": False}, TypeError, "class indices for this"),
        (
            torch.randn(2, 3),
            torch.rand(2, 3),
            {"ignore_index": 255},
            ValueError,
            "ignore_index=255 marks class indices",
        ),
        (
            torch.randn(2, 3),
            torch.tensor([0, 1]),
            {"ignore_index": 1.0},
            TypeError,
            "ignore_index must be an integer",
        ),
    ],
)
def test_bad_input(
    logits: Any, target: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    for read in ("softmax", "plain"):  # labels are looked at when they are read
        with pytest.raises(error, match=message):
            getattr(prepare_entries(logits, target, **options), read)()
