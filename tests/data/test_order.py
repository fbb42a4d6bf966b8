"""The order of an epoch, and batches of texts."""

from __future__ import annotations

import torch

from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.loader import epoch_order
from sfumato.data.text.vocabulary import Vocabulary

LENGTHS = torch.randint(1, 60, (403,), generator=torch.Generator().manual_seed(1))


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _texts() -> ArrayDataset:
    """403 texts of these lengths, all of word 2."""
    tokens = (torch.arange(60) < LENGTHS[:, None]).int() * 2
    return ArrayDataset(
        tokens, torch.arange(403) % 4, ("a", "b", "c", "d"), vocabulary=Vocabulary(("x",), 60)
    )


def test_without_lengths_it_is_a_permutation_as_ever() -> None:
    order = epoch_order(403, 8, None, _generator())
    assert torch.equal(order, torch.randperm(403, generator=_generator()))


def test_every_sample_comes_once_and_batches_hold_similar_lengths() -> None:
    order = epoch_order(403, 8, LENGTHS, _generator())
    assert order.sort().values.tolist() == list(range(403))
    batches = LENGTHS[order[:400]].view(50, 8)
    assert (batches.amax(1) - batches.amin(1)).max() <= 6  # 50 batches are sorted together
    assert not torch.equal(batches.amax(1), batches.amax(1).sort().values)


def test_what_is_left_out_is_random() -> None:
    left = [epoch_order(403, 8, LENGTHS, _generator(seed))[400:] for seed in range(30)]
    lengths = LENGTHS[torch.cat(left)].float()
    assert abs(lengths.mean() - LENGTHS.float().mean()) < 6  # a standard error is about 1.8


def test_batches_of_texts_are_cut_to_their_longest() -> None:
    loader = TensorLoader(_texts(), 8, shuffle=True, drop_last=True)
    for batch in loader:
        tokens, lengths = batch["image"], LENGTHS[batch["index"]]
        assert tokens.dtype == torch.int64
        assert tokens.shape == (8, lengths.max())
        assert torch.equal((tokens != 0).sum(1), lengths)


def test_two_processes_see_what_one_sees() -> None:
    one, *two = (
        TensorLoader(_texts(), 8, shuffle=True, seed=3, rank=rank, world_size=world)
        for rank, world in ((0, 1), (0, 2), (1, 2))
    )
    for loader in (one, *two):
        loader.set_epoch(5)
    for step in range(len(one)):
        parts = torch.cat([loader.batch(step)["index"] for loader in two])
        assert torch.equal(parts, one.batch(step)["index"])
    assert two[1].batch(len(one) - 1)["image"].ndim == 2


def test_an_epoch_has_its_own_order() -> None:
    loader = TensorLoader(_texts(), 8, shuffle=True)
    first = loader.batch(0)["index"]
    loader.set_epoch(1)
    assert not torch.equal(loader.batch(0)["index"], first)
    loader.set_epoch(0)
    assert torch.equal(loader.batch(0)["index"], first)
