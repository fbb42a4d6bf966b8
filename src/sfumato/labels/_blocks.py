"""Cutting logits into blocks that fit in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sfumato._native.softmax import can_pass_over, has_layout_of
from sfumato.labels._block import Block
from sfumato.labels._native_block import NativeBlock

# Per thread. A few float32 tensors of this many elements stay in the caches of a core, while each
# operation is still long enough to be worth waking its threads.
BLOCK_ELEMENTS = 1 << 18
# A block is at most this part of the logits, so that its buffers together are smaller than they.
LARGEST_SHARE = 9
# Counts of up to this many elements are exact in float32.
LARGEST_BLOCK = 1 << 23
# Of a block that is read twice by a compiled kernel and needs no buffers.
NATIVE_ELEMENTS = 1 << 20
# Kernel launches, not caches, set the pace of an accelerator.
ACCELERATOR_BLOCK = 1 << 24


def block_slices(logits: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices over (N, S) that cut (N, C, S) logits into blocks; samples first, then positions."""
    limit = ACCELERATOR_BLOCK
    if logits.device.type == "cpu":
        share = max(BLOCK_ELEMENTS, logits.numel() // LARGEST_SHARE)
        limit = min(BLOCK_ELEMENTS * torch.get_num_threads(), share, LARGEST_BLOCK)
    return _slices(logits, limit)


def _slices(logits: Tensor, limit: int) -> Iterator[tuple[slice, slice]]:
    samples, classes, positions = logits.shape
    sample_step = max(1, limit // max(1, classes * positions))
    cuts = -(-classes * positions // limit) if sample_step == 1 else 1
    position_step = max(1, -(-positions // max(1, cuts)))
    for sample in range(0, samples, sample_step):
        for position in range(0, positions, position_step):
            yield (
                slice(sample, min(sample + sample_step, samples)),
                slice(position, min(position + position_step, positions)),
            )


def blocks(
    logits: Tensor, target: Tensor | None, gradient: Tensor | None, *, only_totals: bool = False
) -> Iterator[tuple[Block, tuple[slice, slice]]]:
    """Cut (N, C, S) logits into blocks, each with its place: the slices over N and S.

    Args:
        logits: (N, C, S), see `as_maps`.
        target: (N, 1, S) class indices, (N, C, S) soft targets, or None.
        gradient: (N, C, S) to be written, or None.
        only_totals: whether values will only be summed up.
    """
    # The first block is the largest.
    buffers: list[Tensor] = []
    for samples, positions in block_slices(logits):
        block = Block(
            cut(logits, samples, positions),
            None if target is None else cut(target, samples, positions),
            None if gradient is None else cut(gradient, samples, positions),
            buffers,
            only_totals=only_totals,
        )
        yield block, (samples, positions)
        block.close()


def native_slices(logits: Tensor) -> Iterator[tuple[slice, slice]]:
    """Like `block_slices`, for the kernels."""
    return _slices(logits, NATIVE_ELEMENTS * torch.get_num_threads())


def native_blocks(
    logits: Tensor,
    target: Tensor,
    gradient: Tensor | None,
    *,
    margin: float | None = None,
    wants_predicted: bool = False,
) -> Iterator[tuple[NativeBlock, tuple[slice, slice]]]:
    """Like `blocks`, for terms that need only numbers of each entry, by compiled kernels."""
    for samples, positions in native_slices(logits):
        block = NativeBlock(
            cut(logits, samples, positions),
            cut(target, samples, positions),
            None if gradient is None else cut(gradient, samples, positions),
            margin=margin,
            wants_predicted=wants_predicted,
        )
        yield block, (samples, positions)
        block.close()


def has_kernels(logits: Tensor, target: Tensor | None, gradient: Tensor | None = None) -> bool:
    """Whether `native_blocks` can be used."""
    if target is None or not can_pass_over(logits, target):
        return False
    return gradient is None or has_layout_of(gradient, logits)


def cut(tensor: Tensor, samples: slice, positions: slice) -> Tensor:
    """tensor[samples, :, positions], faster; a single number is for all."""
    if tensor.numel() == 1:
        return tensor
    if samples.stop - samples.start < tensor.shape[0]:
        tensor = tensor.narrow(0, samples.start, samples.stop - samples.start)
    if positions.stop - positions.start < tensor.shape[2]:
        tensor = tensor.narrow(2, positions.start, positions.stop - positions.start)
    return tensor
