"""What makes several processes act as one: shared random numbers, and rows gathered from all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from sfumato.engine.fabric import Fabric


class SharedStream:
    """Random numbers that all processes draw alike, beside the global state, which is left alone.

    Args:
        seed: the same in every process.
        device: whose random state is shared besides the CPU's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(self._gpus):
            torch.manual_seed(seed)
            self._remember()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within, what draws from the global state draws from this stream."""
        with torch.random.fork_rng(self._gpus):
            torch.set_rng_state(self._state)
            for gpu, state in zip(self._gpus, self._gpu_states, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            yield
            self._remember()

    def _remember(self) -> None:
        self._state = torch.get_rng_state()
        self._gpu_states = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]


def gather_rows(part: Tensor, fabric: Fabric, lengths: Sequence[int] | None = None) -> Tensor:
    """Concatenate the rows of all processes, which may differ in number; without gradients.

    Args:
        part: the rows of this process.
        fabric: connects the processes.
        lengths: rows of each process where they are known, which saves asking.
    """
    if fabric.world_size == 1:
        return part
    if lengths is None:
        lengths = _all_gather(torch.tensor(len(part), device=part.device), fabric).tolist()
    padded = part.new_zeros((max(lengths), *part.shape[1:]))
    padded[: len(part)] = part
    parts = _all_gather(padded, fabric)
    return torch.cat([parts[rank, :length] for rank, length in enumerate(lengths)])


def gather_around(part: Tensor, fabric: Fabric, lengths: Sequence[int]) -> Tensor:
    """`gather_rows` in which the rows of this process keep their gradient.

    A loss of the result, times the number of processes, gives after DDP's mean over processes the
    gradient that one process would have with all rows.
    """
    rows = list(gather_rows(part.detach(), fabric, lengths).split(list(lengths)))
    rows[fabric.global_rank] = part
    return torch.cat(rows)


def _all_gather(part: Tensor, fabric: Fabric) -> Tensor:
    return cast(Tensor, fabric.all_gather(part))
