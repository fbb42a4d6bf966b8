"""The tensor loader: order, slices, normalisation, and independence of the process count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sfumato.augment import Augment, Sample
from sfumato.data import ArrayDataset, TensorLoader

# A busy machine must not fail a law.
RELAXED = settings(max_examples=50)


def make(count: int, *, channels: int = 3, **fields: Any) -> ArrayDataset:
    generator = torch.Generator().manual_seed(count)
    shape = (count, channels, 6, 8)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return ArrayDataset(images, torch.arange(count) % 3, ("a", "b", "c"), **fields)


def joined(batches: list[Sample]) -> Sample:
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def same(one: Sample, two: Sample) -> bool:
    return set(one) == set(two) and all(torch.equal(one[key], two[key]) for key in one)


class TestOrder:
    def test_in_order_without_shuffle(self) -> None:
        loader = TensorLoader(make(7), 3)
        assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
        assert len(loader) == 3

    @RELAXED
    @given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5), st.integers(0, 99))
    def test_every_sample_once_in_every_epoch(
        self, count: int, size: int, epoch: int, seed: int
    ) -> None:
        loader = TensorLoader(make(count), size, shuffle=True, seed=seed)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert joined(batches)["index"].sort().values.tolist() == list(range(count))
        assert [loader.count(step) for step in range(len(loader))] == [
            len(batch["label"]) for batch in batches
        ]

    def test_epochs_and_seeds_differ_and_repeat(self) -> None:
        data = make(50)

        def order(seed: int, epoch: int) -> list[int]:
            loader = TensorLoader(data, 50, shuffle=True, seed=seed)
            loader.set_epoch(epoch)
            return loader.batch(0)["index"].tolist()

        orders = [order(seed, epoch) for seed in range(3) for epoch in range(3)]
        assert len({tuple(o) for o in orders}) == 9
        assert order(1, 2) == order(1, 2)

    def test_resume_at_any_epoch_and_step(self) -> None:
        data = make(20)
        options: dict[str, Any] = {"shuffle": True, "seed": 3, "augment": Augment(crop=2)}
        long = TensorLoader(data, 8, **options)
        for epoch in range(4):
            long.set_epoch(epoch)
            last = list(long)
        fresh = TensorLoader(data, 8, **options)
        fresh.set_epoch(3)
        for step in (2, 0, 1):
            assert same(fresh.batch(step), last[step])

    def test_global_random_state_plays_no_part(self) -> None:
        loader = TensorLoader(make(9), 9, shuffle=True, augment=Augment())
        first = loader.batch(0)
        torch.manual_seed(99)
        state = torch.get_rng_state()
        loader.set_epoch(0)
        assert same(loader.batch(0), first)
        assert torch.equal(torch.get_rng_state(), state)

    def test_set_epoch_does_not_touch_a_running_iteration(self) -> None:
        loader = TensorLoader(make(12), 4, shuffle=True)
        expected = joined(list(loader))["index"]
        running = iter(loader)
        batches = [next(running)]
        loader.set_epoch(1)
        batches += list(running)
        assert torch.equal(joined(batches)["index"], expected)

    def test_drop_last(self) -> None:
        loader = TensorLoader(make(10), 4, drop_last=True, shuffle=True)
        assert len(loader) == 2
        assert [len(batch["label"]) for batch in loader] == [4, 4]

    def test_empty_set(self) -> None:
        loader = TensorLoader(make(3).subset(torch.empty(0, dtype=torch.int64)), 4, drop_last=True)
        assert len(loader) == 0
        assert list(loader) == []


class TestProcesses:
    @RELAXED
    @given(
        st.integers(1, 40),
        st.integers(1, 6),
        st.integers(1, 4),
        st.booleans(),
        st.integers(0, 9),
    )
    def test_ranks_partition_the_global_batch(
        self, count: int, each: int, world: int, rotate: bool, seed: int
    ) -> None:
        data = make(count, boxes=torch.rand(count, 2, 4))
        augment = Augment(crop=2, rotation=10.0 if rotate else 0.0)
        options: dict[str, Any] = {"shuffle": True, "seed": seed, "augment": augment}
        one = TensorLoader(data, each * world, **options)
        ranks = [
            TensorLoader(data, each * world, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]
        assert {len(loader) for loader in ranks} == {len(one)}
        for whole, *parts in zip(one, *ranks, strict=True):
            assert same(joined(parts), whole)

    def test_full_batches_are_even_and_the_last_may_be_empty(self) -> None:
        ranks = [TensorLoader(make(9), 4, rank=rank, world_size=2) for rank in range(2)]
        sizes = [[len(batch["label"]) for batch in loader] for loader in ranks]
        assert sizes == [[2, 2, 0], [2, 2, 1]]
        assert next(iter(ranks[0]))["image"].shape == (2, 3, 6, 8)
        assert ranks[0].batch(2)["image"].shape == (0, 3, 6, 8)

    def test_augmentation_does_not_depend_on_the_batch_size(self) -> None:
        data = make(24)
        options: dict[str, Any] = {"shuffle": True, "augment": Augment(crop=2)}
        small, large = (joined(list(TensorLoader(data, size, **options))) for size in (5, 24))
        assert same(small, large)


class TestImages:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_normalisation_equals_numpy(self, channels: int) -> None:
        data = make(5, channels=channels)
        mean, std = (0.49, 0.48, 0.44)[:channels], (0.24, 0.25, 0.26)[:channels]
        batch = TensorLoader(data, 5, mean=mean, std=std).batch(0)["image"]
        pixels = data.images.numpy().astype(np.float64) / 255
        expected = (pixels - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
        assert batch.dtype == torch.float32
        np.testing.assert_allclose(batch.numpy(), expected, atol=1e-6)

    def test_without_statistics_the_range_is_zero_to_one(self) -> None:
        levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
        data = ArrayDataset(levels, torch.zeros(1, dtype=torch.int64), ("a",))
        image = TensorLoader(data, 1).batch(0)["image"]
        assert (image.min(), image.max()) == (0.0, 1.0)
        torch.testing.assert_close(image.flatten(), torch.arange(256) / 255, atol=1e-7, rtol=0)

    def test_mean_alone(self) -> None:
        data = make(2)
        batch = TensorLoader(data, 2, mean=(0.5, 0.5, 0.5)).batch(0)["image"]
        torch.testing.assert_close(batch, data.images / 255 - 0.5)

    def test_the_set_is_left_alone(self) -> None:
        data = make(8)
        copy = data.images.clone()
        list(TensorLoader(data, 4, augment=Augment(), mean=(0.5,) * 3, std=(0.2,) * 3))
        assert torch.equal(data.images, copy)

    @pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
    def test_memory_layout(self, stored: torch.memory_format) -> None:
        data = make(4)
        images = data.images.to(memory_format=stored)
        data = ArrayDataset(images, data.labels, data.classes)
        last = TensorLoader(data, 4).batch(0)["image"]
        first = TensorLoader(data, 4, channels_last=False).batch(0)["image"]
        assert last.is_contiguous(memory_format=torch.channels_last)
        assert first.is_contiguous()
        assert torch.equal(last, first)

    def test_annotations_travel_and_move(self) -> None:
        masks = torch.zeros(6, 6, 8, dtype=torch.bool)
        masks[:, :, :4] = True
        boxes = torch.tensor([[[0.0, 0.0, 4.0, 6.0]]]).expand(6, 1, 4)
        posterior = torch.rand(6, 3).softmax(1)
        data = make(6, masks=masks, boxes=boxes, posterior=posterior)
        plain = TensorLoader(data, 6).batch(0)
        assert set(plain) == {"image", "label", "index", "masks", "boxes", "posterior"}
        assert torch.equal(plain["posterior"], posterior)
        moved = TensorLoader(data, 6, augment=Augment(crop=0)).batch(0)
        flipped = moved["boxes"][:, 0, 0] == 4
        assert 0 < int(flipped.sum()) < 6
        assert torch.equal(moved["masks"][flipped], masks[flipped].flip(-1))

    def test_void_reaches_the_augmentation(self) -> None:
        labels = torch.zeros(4, 6, 8, dtype=torch.int64)
        data = ArrayDataset(make(4).images, labels, ("road",), void=11)
        moved = TensorLoader(data, 4, augment=Augment(crop=3)).batch(0)["label"]
        assert set(moved.unique().tolist()) == {0, 11}

    def test_any_augmentation_with_draws_and_apply(self) -> None:
        class Darken:
            draws = 1

            def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
                image = sample["image"] * (uniforms[:, 0, None, None, None] < 0.5)
                return {**sample, "image": image}

        loader = TensorLoader(make(30), 30, augment=Darken())
        dark = loader.batch(0)["image"].eq(0).all((1, 2, 3))
        assert 0 < int(dark.sum()) < 30


class TestMessages:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
            ({"batch_size": 2.0}, TypeError, "batch_size must be an integer"),
            ({"seed": -1}, ValueError, "seed must be at least 0"),
            ({"world_size": 0}, ValueError, "world_size must be at least 1"),
            ({"rank": 1}, ValueError, "rank must be at least 0 and at most 0, got 1"),
            ({"world_size": 3}, ValueError, "must be a multiple of world_size, got batch_size=4"),
            ({"batch_size": 11, "drop_last": True}, ValueError, "drop_last leaves nothing of 10"),
            ({"mean": (0.5,)}, ValueError, r"mean must have 3 entries \(channels\), got 1"),
            ({"std": (1.0, 1.0, 0.0)}, ValueError, r"std must be in \(0, inf\), got 0.0"),
            ({"mean": (0.0, float("nan"), 0.0)}, ValueError, "mean must be in"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            TensorLoader(make(10), **{"batch_size": 4, **options})

    def test_bad_epoch_and_step(self) -> None:
        loader = TensorLoader(make(10), 4)
        with pytest.raises(ValueError, match="epoch must be at least 0"):
            loader.set_epoch(-1)
        with pytest.raises(IndexError, match=r"step must be in \[0, 3\), got 3"):
            loader.batch(3)


def test_the_whole_batch_holds_the_parts_of_all_ranks() -> None:
    loaders = [
        TensorLoader(make(11), 4, shuffle=True, augment=Augment(crop=2), rank=rank, world_size=2)
        for rank in range(2)
    ]
    for step in range(3):
        whole = loaders[0].whole(step)
        assert same(joined([loader.batch(step) for loader in loaders]), whole)
        first, middle, last = loaders[0].bounds(step)
        assert (first, last) == (0, len(whole["label"]))
        assert torch.equal(whole["index"][:middle], loaders[0].batch(step)["index"])
