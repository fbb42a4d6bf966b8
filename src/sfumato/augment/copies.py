"""Several augmented copies of each image in one batch, for the marginal likelihood.

The likelihood of a label averaged over K augmentations of its image (appendix D) needs all K in
one batch. `repeat_samples` makes the batch, any augmentation then treats its rows as different
images, and `split_copies` brings what the network says about them into the form (K, N) that the
estimators of `sfumato.labels` average over (`jensen_log_likelihood` and its siblings).

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025, appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato.augment.protocol import BatchAugment, Sample, check_uniforms


@dataclass(frozen=True)
class CopiedSamples:
    """Several copies of each sample in place of one, each augmented by numbers of its own.

    Args:
        augment: what is done to each copy; None leaves the copies alike.
        copies: K, how many of each. Row k N + n of a batch is copy k of sample n.

    Example:
        >>> from sfumato.augment import Augment
        >>> sample = {"image": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}
        >>> copied = CopiedSamples(Augment(), 3)
        >>> copied.apply(sample, torch.rand(2, copied.draws))["image"].shape
        torch.Size([6, 3, 8, 8])
    """

    augment: BatchAugment | None
    copies: int

    def __post_init__(self) -> None:
        check_integer("copies", self.copies, low=1)

    @property
    def draws(self) -> int:
        return 0 if self.augment is None else self.copies * self.augment.draws

    def apply(self, sample: Sample, uniforms: Tensor, *, void: int | None = None) -> Sample:
        """The batch with K rows for each of the given ones, the whole batch K times in a row."""
        check_uniforms(uniforms, len(sample["image"]), self.draws)
        made = [
            sample if self.augment is None else self.augment.apply(sample, numbers, void=void)
            for numbers in uniforms.tensor_split(self.copies, dim=1)
        ]
        return {name: torch.cat([copy[name] for copy in made]) for name in made[0]}


def repeat_samples(images: Tensor, target: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """The whole batch `copies` times in a row: row k N + n is copy k of sample n.

    Args:
        images: (N, ...).
        target: (N, ...), class indices or soft targets.
        copies: K, how many of each.

    Returns:
        Images and target with K N rows.

    Example:
        >>> import torch
        >>> images, target = torch.zeros(2, 3, 8, 8), torch.tensor([4, 7])
        >>> repeat_samples(images, target, 3)[1]
        tensor([4, 7, 4, 7, 4, 7])

    Reference: mollification paper, Eq. (19) and (22).
    """
    check_integer("copies", copies, low=1)
    if len(images) != len(target):
        raise ValueError(f"target must hold {len(images)} entries, got {len(target)}")
    repeated = (tensor.repeat(copies, *(1,) * (tensor.ndim - 1)) for tensor in (images, target))
    return next(repeated), next(repeated)


def split_copies(values: Tensor, copies: int) -> Tensor:
    """Values of a batch of `repeat_samples` with the copies apart: (K N, ...) as (K, N, ...).

    Example:
        >>> import torch
        >>> split_copies(torch.tensor([0, 1, 10, 11, 20, 21]), 3)
        tensor([[ 0,  1],
                [10, 11],
                [20, 21]])
    """
    check_integer("copies", copies, low=1)
    if values.ndim == 0 or len(values) % copies:
        raise ValueError(
            f"values must have a multiple of {copies} rows (copies), got {tuple(values.shape)}"
        )
    return values.reshape(copies, len(values) // copies, *values.shape[1:])
