"""A checkpoint is whole at every moment, and holds nothing that could run code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sfumato.engine.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_weights,
    recover_checkpoint,
    save_checkpoint,
)


def _checkpoint(epoch: int) -> Checkpoint:
    weight = torch.full((2, 2), float(epoch))
    optimizer = {"state": {0: {"momentum_buffer": weight}}, "param_groups": [{"lr": 0.1}]}
    return Checkpoint(epoch, {"weight": weight}, optimizer, {}, {})


def test_round_trip(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", _checkpoint(3))
    found = load_checkpoint(tmp_path / "checkpoint")
    assert found is not None
    assert found.epoch == 3
    assert torch.equal(found.model["weight"], torch.full((2, 2), 3.0))
    assert torch.equal(found.optimizer["state"][0]["momentum_buffer"], torch.full((2, 2), 3.0))
    assert load_weights(tmp_path / "checkpoint").keys() == {"weight"}


def test_a_folder_may_be_a_string(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    save_checkpoint(folder, _checkpoint(3))
    found = load_checkpoint(folder)
    assert found is not None
    assert found.epoch == 3
    assert load_weights(folder).keys() == found.model.keys()


def test_tied_weights_are_kept(tmp_path: Path) -> None:
    one = torch.nn.Linear(2, 2)
    two = torch.nn.Linear(2, 2)
    two.weight = one.weight
    weights = torch.nn.Sequential(one, two).state_dict()
    save_checkpoint(tmp_path / "checkpoint", Checkpoint(0, weights, {}, {}, {}))
    found = load_weights(tmp_path / "checkpoint")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)


def test_files_load_without_running_code(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", _checkpoint(1))
    torch.load(tmp_path / "checkpoint" / "state.pt", weights_only=True)
    assert "weight" in load_file(tmp_path / "checkpoint" / "model.safetensors")


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "checkpoint") is None
    with pytest.raises(FileNotFoundError, match="has the run been trained"):
        load_weights(tmp_path / "checkpoint")


@pytest.mark.parametrize("dies_after", range(8))
def test_a_crash_at_any_rename_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    """Fail at the n-th file-system step of the second save; what is found is epoch 1 or 2."""
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, _checkpoint(1))
    left = [dies_after]

    def counted(original):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return original(*args, **kwargs)

        return call

    for name in ("rename", "mkdir", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    try:
        save_checkpoint(folder, _checkpoint(2))
        finished = True
    except KeyboardInterrupt:
        finished = False
    monkeypatch.undo()
    recover_checkpoint(folder)
    found = load_checkpoint(folder)
    assert found is not None
    assert torch.equal(found.model["weight"], torch.full((2, 2), float(found.epoch)))
    assert found.epoch == 2 or not finished
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint"]
