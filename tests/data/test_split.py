"""Stratified, seeded, nested parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sfumato.data import ArrayDataset, divide
from sfumato.data.splits import stratified_order


def make(counts: list[int]) -> ArrayDataset:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    generator = torch.Generator().manual_seed(len(labels))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return ArrayDataset(images, labels, tuple(str(c) for c in range(len(counts))))


# A busy machine must not fail a law.
RELAXED = settings(max_examples=50)
counts = st.lists(st.integers(1, 40), min_size=1, max_size=6)


class TestOrder:
    def test_hand_worked(self) -> None:
        # Keys: class 0 at 1/8, 3/8, 5/8, 7/8; class 1 at 1/4, 3/4.
        labels = torch.tensor([0, 1, 0, 0, 1, 0])
        order = stratified_order(labels, seed=3)
        assert labels[order].tolist() == [0, 1, 0, 0, 1, 0]

    @RELAXED
    @given(counts, st.integers(0, 99))
    def test_is_a_permutation(self, counts: list[int], seed: int) -> None:
        order = stratified_order(make(counts).labels, seed=seed)
        assert order.sort().values.tolist() == list(range(sum(counts)))

    @RELAXED
    @given(st.integers(1, 30), st.integers(1, 8), st.data())
    def test_equal_classes_differ_by_at_most_one(
        self, each: int, classes: int, data: st.DataObject
    ) -> None:
        labels = make([each] * classes).labels
        cut = data.draw(st.integers(0, each * classes))
        found = labels[stratified_order(labels, seed=0)[:cut]].bincount(minlength=classes)
        assert found.max() - found.min() <= 1

    @RELAXED
    @given(counts, st.floats(0, 1))
    def test_any_classes_stay_near_their_share(self, counts: list[int], share: float) -> None:
        labels = make(counts).labels
        cut = round(share * len(labels))
        found = labels[stratified_order(labels, seed=0)[:cut]].bincount(minlength=len(counts))
        wanted = torch.tensor(counts) * cut / len(labels)
        assert (found - wanted).abs().max() <= 1 + len(counts) / 2

    def test_seed_decides(self) -> None:
        labels = make([50, 50]).labels
        assert torch.equal(stratified_order(labels, seed=1), stratified_order(labels, seed=1))
        assert not torch.equal(stratified_order(labels, seed=1), stratified_order(labels, seed=2))

    def test_empty_and_maps(self) -> None:
        assert stratified_order(torch.empty(0, dtype=torch.int64), seed=0).tolist() == []
        order = stratified_order(torch.zeros(5, 2, 2, dtype=torch.int64), seed=0)
        assert order.sort().values.tolist() == list(range(5))


class TestDivide:
    def test_sizes_and_strata(self) -> None:
        parts = divide(make([100, 50]), test=0.2, validation=12, limit_train=30, seed=1)
        assert parts.test.labels.bincount().tolist() == [20, 10]
        assert parts.validation.labels.bincount().tolist() == [8, 4]
        assert parts.train.labels.bincount().tolist() == [20, 10]

    @RELAXED
    @given(counts, st.floats(0, 0.4), st.floats(0, 0.4), st.integers(0, 9))
    def test_parts_are_disjoint_and_complete(
        self, counts: list[int], test: float, validation: float, seed: int
    ) -> None:
        data = make([3, *counts])
        parts = divide(data, test=test, validation=validation, seed=seed)
        index = torch.cat([parts.train.index, parts.validation.index, parts.test.index])
        assert index.sort().values.tolist() == list(range(len(data)))

    def test_limit_is_nested_and_leaves_the_others_alone(self) -> None:
        data = make([60, 60])
        small = divide(data, test=10, limit_train=20, seed=4)
        large = divide(data, test=10, limit_train=50, seed=4)
        assert set(small.train.index.tolist()) < set(large.train.index.tolist())
        assert torch.equal(small.validation.index, large.validation.index)
        assert torch.equal(small.test.index, large.test.index)

    def test_source_order_is_kept(self) -> None:
        index = divide(make([30, 30]), seed=2).train.index
        assert torch.equal(index, index.sort().values)

    def test_zero_validation_is_empty(self) -> None:
        parts = divide(make([5, 5]), validation=0)
        assert (len(parts.train), len(parts.validation)) == (10, 0)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"validation": 1.0}, ValueError, "validation must be a share below 1 or an integer"),
            ({"validation": -0.1}, ValueError, r"validation must be in \[0, inf\)"),
            ({"validation": -1}, ValueError, "validation must be at least 0"),
            ({"validation": 20}, ValueError, "validation=20 leaves nothing of 20 samples"),
            ({"validation": 0.99}, ValueError, "validation=0.99 leaves nothing of 20 samples"),
            ({"validation": True}, TypeError, "validation must be an integer"),
            ({"test": 21}, ValueError, "test=21 leaves nothing"),
            ({"limit_train": 1}, ValueError, "limit_train must be at least 2 and at most 18"),
            ({"limit_train": 19}, ValueError, "limit_train must be at least 2 and at most 18"),
            ({"seed": -1}, ValueError, "seed must be at least 0"),
        ],
    )
    def test_bad_input(self, options: dict[str, Any], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            divide(make([10, 10]), **options)
