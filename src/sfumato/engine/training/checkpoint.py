"""Checkpoints: model weights as safetensors, the rest loadable with `weights_only`."""

from __future__ import annotations

import io
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sfumato._core.files import damaged, read_unless_damaged, sync

WEIGHTS = "model.safetensors"
STATE = "state.pt"
_RETRAIN = (
    "Delete metrics.json of the runs that need these weights and give 'sfumato run' again, which "
    "trains them anew."
)
_STATE_FIELDS = ("epoch", "optimizer", "loss", "precision", "beside")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after `epoch` finished epochs.

    `model` are the weights in training, after the last epoch those that predict; `beside` is the
    state of `WeightsBeside`.
    """

    epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    loss: dict[str, Tensor]
    precision: dict[str, Any]
    beside: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in `folder` as a whole: at any moment the old or the new one exists.

    A directory can't be renamed onto another one, so the new one is completed beside it, the old
    one moved away, the new one moved in; `recover_checkpoint` finishes what a crash in between
    left.
    """
    folder = Path(folder)
    new, old = _beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    _save_weights(checkpoint.model, new / WEIGHTS)
    state = {name: getattr(checkpoint, name) for name in _STATE_FIELDS}
    # Through a file of ours, because torch's own does not tell a full disk from other failures.
    with (new / STATE).open("wb") as file:
        torch.save(state, file)
    sync(new / WEIGHTS)
    sync(new / STATE)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _save_weights(weights: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(_apart(weights), path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def _apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With a copy of what shares memory, as tied layers do: the format has every tensor once."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in weights.items():
        tensor = value.contiguous().cpu()
        place = tensor.untyped_storage().data_ptr()
        apart[key] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The checkpoint in `folder`, or None where the run has none yet.

    Raises:
        DamagedFileError: one of its files is not whole.
    """
    folder = Path(folder)
    if not folder.exists():
        return None
    for name in (STATE, WEIGHTS):
        if not (folder / name).exists():
            raise damaged(folder / name, "it is missing")
    content = io.BytesIO((folder / STATE).read_bytes())  # a failing disk is no damaged file
    try:
        state = torch.load(content, weights_only=True, map_location="cpu")
        state.setdefault("beside", {})  # of runs from before there was such a thing
        fields = {name: state[name] for name in _STATE_FIELDS}
    except MemoryError:
        raise
    except Exception as error:  # of the archive, of pickle or of the content: torch lets all pass
        raise damaged(folder / STATE, " ".join(str(error).split())[:200]) from None
    return Checkpoint(model=load_weights(folder), **fields)


def load_weights(folder: str | Path) -> dict[str, Tensor]:
    """Only the model's weights."""
    folder = Path(folder)
    if not (folder / WEIGHTS).exists():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS}: has the run been trained?")
    try:
        return load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise damaged(folder / WEIGHTS, str(error), _RETRAIN) from None


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


def restore_checkpoint(folder: Path) -> None:
    """Make `folder` hold a whole checkpoint or none, before a training goes on from it.

    A damaged one is set aside: the training begins anew, to the same weights.
    """
    recover_checkpoint(folder)
    read_unless_damaged(folder, load_checkpoint, "training begins anew")


def recover_checkpoint(folder: Path) -> None:
    """Finish or undo a save that a crash cut short; call it once before loading."""
    new, old = _beside(folder)
    if old.exists():
        if not folder.exists():
            new.rename(folder)
        shutil.rmtree(old)
    shutil.rmtree(new, ignore_errors=True)
