"""Reading perturbation sequences as CIFAR-10-P comes: `<type>.npy`, uint8 (N, T, H, W, C)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato.corruptions.reading import load_array, spread
from sfumato.corruptions.sequences import HARDER_PERTURBATIONS, PERTURBATIONS


def stored_perturbations(folder: Path | str) -> tuple[str, ...]:
    """The types of sequences found in a folder; none where its arrays are of single images."""
    folder = Path(folder)
    return tuple(
        name
        for name in (*PERTURBATIONS, *HARDER_PERTURBATIONS)
        if (folder / f"{name}.npy").is_file() and load_array(folder / f"{name}.npy").ndim == 5
    )


def count_sequences(folder: Path | str, name: str) -> int:
    """How many sequences of a type there are."""
    return len(load_array(Path(folder) / f"{name}.npy"))


def read_sequences(
    folder: Path | str, name: str, *, batch_size: int = 16, limit: int | None = None
) -> Iterator[Tensor]:
    """The sequences of one type, batch by batch, uint8 (N, T, C, H, W).

    Args:
        folder: the set, for example the unpacked CIFAR-10-P.
        name: type of perturbation.
        batch_size: sequences in a batch; the last may have fewer.
        limit: as many sequences, from all over the set; None for all.

    Raises:
        FileNotFoundError: the type is not there.
        ValueError: the file is not of the form above.
    """
    path = Path(folder) / f"{name}.npy"
    frames = load_array(path)
    if frames.ndim != 5 or frames.dtype != np.uint8 or frames.shape[1] < 2:
        raise ValueError(
            f"{path} must be uint8 (N, T, H, W, C) with two or more frames T, got {frames.dtype} "
            f"{tuple(frames.shape)}"
        )
    for rows in spread(len(frames), limit).split(batch_size):
        batch = torch.from_numpy(np.array(frames[rows.numpy()]))
        yield batch.permute(0, 1, 4, 2, 3).contiguous()
