"""The memory of each training sample between epochs, the same on every process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from sfumato._core.checks import check_integer


class CorrectnessHistory(nn.Module):
    """Counts of how often each training sample was classified correctly, for `crl_loss`.

    Under torch.distributed every process adds what all processes saw; each must then call `update`
    equally often.

    The correctness of a sample with count h, relative to the hardest sample of the whole set, is

        (h - min h) / (max(1, completed epochs) - min h)

    and 0 for every sample while all of them have always been right, which leaves nothing to rank.

    Args:
        num_samples: size of the training set. Samples that are never trained on, as a random split
            leaves them, keep the minimum at 0.

    Example:
        >>> history = CorrectnessHistory(3)
        >>> history.update(torch.tensor([0, 1, 2]), torch.tensor([True, False, True]))
        >>> history.end_epoch()
        >>> history.correctness(torch.tensor([0, 1]))
        tensor([1., 0.])

    Reference:
        Moon et al. 2020; normalisation as released.

    Differs:
        The released code divides 0 by 0 where every sample has always been right. A sample met
        twice in one batch counts twice here and once there.
    """

    counts: Tensor
    completed_epochs: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        check_integer("num_samples", num_samples, low=1)
        self.gathers = True  # False where each process is handed the samples of all
        self.register_buffer("counts", torch.zeros(num_samples, dtype=torch.int64))
        self.register_buffer("completed_epochs", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, index: Tensor, correct: Tensor) -> None:
        """Add one batch: data set indices and whether each was right, of the same shape."""
        check_index(index, len(self.counts))
        if correct.shape != index.shape:
            raise ValueError(
                f"correct must have the shape of index {tuple(index.shape)}, "
                f"got {tuple(correct.shape)}"
            )
        batch = torch.stack([index.flatten(), correct.flatten()]).to(self.counts)
        index, correct = gather_columns(batch) if self.gathers else batch
        self.counts.index_add_(0, index, correct)

    def record(self, logits: Tensor, target: Tensor, index: Tensor, *, ignore_index: int) -> None:
        """Add one batch of logits (N, C, ...), class indices (N, ...) and data set indices."""
        if target.is_floating_point():
            raise TypeError(
                f"target must hold class indices where correctness counts, got {target.dtype}. "
                "Leave out what softens the labels."
            )
        right = (logits.argmax(1) == target) & (target != ignore_index)
        self.update(index.to(right.device), right)

    def correctness(self, index: Tensor) -> Tensor:
        """Correctness of the samples `index`, float32 of the same shape, in [0, 1].

        In the middle of an epoch a sample that has already been met can exceed 1.
        """
        check_index(index, len(self.counts))
        least = self.counts.min()
        span = self.completed_epochs.clamp(min=1) - least
        counts = self.counts[index.to(self.counts.device, torch.long)]  # uint8 would be a mask
        relative = (counts - least) / span.clamp(min=1)
        return torch.where(span > 0, relative, torch.zeros_like(relative))

    def end_epoch(self) -> None:
        """Count one more completed epoch; call it once after each."""
        self.completed_epochs += 1


def check_index(index: Tensor, num_samples: int) -> None:
    """Raise unless `index` holds positions in a data set of `num_samples`."""
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be a tensor of data set indices (integers), got {kind}")
    # On an accelerator looking at values would wait for it.
    if index.device.type != "cpu" or index.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= num_samples:
        raise ValueError(
            f"index must be in [0, {num_samples}), got values from {low} to {high}. "
            "num_samples is the size of the training set."
        )


def check_one_index_each(index: Tensor, shape: Sequence[int]) -> None:
    """Raise unless there is a data set index for each entry, as a history of samples needs."""
    if index.shape != torch.Size(shape):
        raise ValueError(
            f"index must have one data set index per entry, shape {tuple(shape)}, got "
            f"{tuple(index.shape)}: a loss with a history takes one entry per sample, logits "
            "(N, C). For segmentation masks choose a loss without"
        )


def bin_means(values: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Cut values into bins of equal size: mean of each bin, 0 where it is empty; bin of each."""
    bins = torch.arange(len(values), device=values.device) * num_bins // max(1, len(values))
    total = values.new_zeros(num_bins).index_add(0, bins, values)
    return total / torch.bincount(bins, minlength=num_bins).clamp(min=1), bins


def are_many_processes() -> bool:
    """True where torch.distributed has been set up."""
    return distributed.is_available() and distributed.is_initialized()


def gather_columns(batch: Tensor) -> Tensor:
    """Concatenate the columns of every process, which may hold different numbers of them."""
    if not are_many_processes():
        return batch
    # all_gather takes equal shapes only: pad to the longest, and cut what was padded.
    width = torch.tensor(batch.shape[1], device=batch.device)
    widths = [torch.empty_like(width) for _ in range(distributed.get_world_size())]
    distributed.all_gather(widths, width)
    longest = int(max(widths))
    padded = F.pad(batch, (0, longest - batch.shape[1]))
    parts = [torch.empty_like(padded) for _ in widths]
    distributed.all_gather(parts, padded)
    return torch.cat([part[:, : int(size)] for part, size in zip(parts, widths, strict=True)], 1)
