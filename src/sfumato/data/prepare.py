"""From samples as a set holds them to what a network takes: the one place that knows both kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato._core.tokens import PADDING
from sfumato.data.dataset import ArrayDataset
from sfumato.data.normalise import Normalise
from sfumato.data.statistics import channel_statistics
from sfumato.data.text.vocabulary import Vocabulary

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class CutPadding(nn.Module):
    """Tokens as int64 for an embedding, without the columns that are padding in every row.

    Example:
        >>> CutPadding()(torch.tensor([[5, 0, 0], [7, 2, 0]], dtype=torch.int32)).tolist()
        [[5, 0], [7, 2]]
    """

    def forward(
        self, tokens: Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        """The tokens as a network takes them; `memory_format` is one of images and changes none."""
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ValueError(
                f"tokens must be integers (N, T), got {tokens.dtype} {tuple(tokens.shape)}"
            )
        used = int((tokens != PADDING).any(0).sum())
        return tokens[:, : max(1, used)].long()


def preparation(
    vocabulary: Vocabulary | None,
    channels: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> nn.Module:
    """What a batch goes through before the network: tokens are cut, images are standardised."""
    return CutPadding() if vocabulary is not None else Normalise(channels, mean, std)


def image_shape(dataset: ArrayDataset) -> tuple[int, tuple[int, int]]:
    """Channels, and height and width, of a set's images; zeros of texts, which have none."""
    if dataset.vocabulary is not None:
        return 0, (0, 0)
    channels, height, width = dataset.images.shape[1:]
    return channels, (height, width)


def input_statistics(train: ArrayDataset) -> Statistics:
    """Mean and spread of each channel of images; nothing of texts, whose tokens stay numbers."""
    return ((), ()) if train.vocabulary is not None else channel_statistics(train.images)
