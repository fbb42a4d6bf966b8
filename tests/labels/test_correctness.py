"""The correctness history: counts over epochs, checkpoints, several processes, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from sfumato.labels.correctness import CorrectnessHistory
from sfumato.labels.crl import CRLLoss


def test_history_counts_over_epochs() -> None:
    history = CorrectnessHistory(3)
    index = torch.arange(3)
    assert (history.correctness(index) == 0).all()
    for _ in range(4):
        history.update(index, torch.tensor([True, False, True]))
        history.end_epoch()
    history.update(index, torch.tensor([False, True, False]))
    history.end_epoch()
    # counts 4, 1, 4 after 5 epochs
    torch.testing.assert_close(history.correctness(index), torch.tensor([0.75, 0.0, 0.75]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_indices_of_any_width(dtype: torch.dtype) -> None:
    history = CorrectnessHistory(3)
    for right in ([True, False, True], [True, False, False]):
        history.update(torch.arange(3, dtype=dtype), torch.tensor(right))
        history.end_epoch()
    found = history.correctness(torch.tensor([2, 1, 0], dtype=dtype))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.0, 1.0]))


def test_history_where_all_were_always_right_ranks_nothing() -> None:
    history = CorrectnessHistory(2)
    history.update(torch.tensor([0, 1]), torch.tensor([True, True]))
    history.end_epoch()
    assert torch.equal(history.correctness(torch.tensor([0, 1])), torch.zeros(2))


def test_history_is_checkpointed() -> None:
    loss = CRLLoss(5)
    loss(torch.eye(3), torch.arange(3), torch.tensor([4, 2, 0]))
    loss.history.end_epoch()
    copy = CRLLoss(5)
    copy.load_state_dict(loss.state_dict())
    assert torch.equal(copy.history.counts, torch.tensor([1, 0, 1, 0, 1]))
    assert copy.history.completed_epochs == 1


def test_only_the_history_ends_epochs() -> None:
    """A training loop calls `end_epoch` of every submodule that has it: it must be one."""
    enders = [module for module in CRLLoss(2).modules() if hasattr(module, "end_epoch")]
    assert len(enders) == 1


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.tensor([0, 4]), ValueError, r"index must be in \[0, 4\), got values from 0 to 4"),
        (torch.tensor([-1, 0]), ValueError, "got values from -1 to 0"),
        (torch.tensor([0.0, 1.0]), TypeError, "index must be a tensor of data set indices"),
        ([0, 1], TypeError, "got list"),
    ],
)
def test_bad_index(index, error: type[Exception], message: str) -> None:
    history = CorrectnessHistory(4)
    with pytest.raises(error, match=message):
        history.correctness(index)
    with pytest.raises(error, match=message):
        history.update(index, torch.tensor([True, True]))


def test_bad_history_arguments() -> None:
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        CorrectnessHistory(0)
    with pytest.raises(ValueError, match="correct must have the shape of index"):
        CorrectnessHistory(3).update(torch.tensor([0, 1]), torch.tensor([True]))


def _rank_updates(rank: int, folder: str) -> None:
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    history = CorrectnessHistory(5)
    mine = [([0, 1, 2], [True, False, True]), ([3], [True])][rank]  # batches of unequal length
    history.update(torch.tensor(mine[0]), torch.tensor(mine[1]))
    history.update(torch.tensor([4 - rank]), torch.tensor([True]))
    history.end_epoch()
    torch.save(history.state_dict(), Path(folder) / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_share_one_history(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank_updates, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        state = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert torch.equal(state["counts"], torch.tensor([1, 0, 1, 2, 1]))
