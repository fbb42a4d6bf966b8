"""Neighbour-aware calibration (NACL): label smoothing over space, for segmentation masks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.labels._entries import (
    LossModule,
    Reduction,
    arguments_of,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.cross_entropy import cross_entropy_fidelity


def neighbour_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Distance of the logits from the labels blurred over their neighbourhood.

        R = (1 / C) sum_k |z_k - t_k|

    with t_k the share of class k in the 3 x 3 neighbourhood of the entry: of the labels in it that
    are inside the map and not ignored. Where all of them agree t is their label.

    Args:
        logits: (N, C, H, W); in general (N, C, d1, ...), whose neighbourhood is 3 wide in each
            dimension. (N, C) has no neighbours.
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        class_dim, ignore_index, reduction: as in `cross_entropy_loss`; labels to skip count for no
            neighbour.

    Example:
        >>> import torch
        >>> logits = torch.zeros(1, 2, 1, 3)
        >>> neighbour_penalty(logits, torch.tensor([[[0, 0, 1]]]), reduction="none")
        tensor([[[0.5000, 0.5000, 0.5000]]])

    Reference:
        Murugesan et al., "Trust your neighbours: Penalty-based constraints for model calibration",
        MICCAI 2023; "Neighbor-aware calibration of segmentation networks with penalty-based
        constraints", Medical Image Analysis 2025.

    Differs:
        The released code counts what lies outside of the map as class 0 and has ignored pixels
        among the neighbours; here neither is one.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    softmax = entries.softmax(also="distance")
    return reduce_entries(softmax.distance / entries.num_classes, softmax, reduction)


def nacl_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: float = 0.1,
    class_weight: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy with a penalty on logits that are far from the labels around them.

    Confidence gets lowest at the borders of objects, where the annotation is least certain.

        L = -sum_k q_k log p_k + (weight / C) sum_k |z_k - t_k|

    Args:
        logits: (N, C, H, W); in general (N, C) or (N, C, d1, ...).
        weight: lambda, at least 0; 0.1 as released.
        class_weight: (C,), for the cross entropy only.
        target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> import torch
        >>> nacl_loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.2365)

    Reference:
        Murugesan et al. 2023 and 2025; t and `Differs:` in `neighbour_penalty`.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    is_hard = entries.soft_target is None
    fidelity = cross_entropy_fidelity(
        entries, class_weight=class_weight, also="distance" if is_hard else None
    )
    # Class weights are for the cross entropy: soft targets are blurred as they came.
    distance = fidelity.softmax.distance if is_hard else entries.plain().distance
    penalty = distance * (weight / entries.num_classes)
    return fidelity.plus(penalty, reduction)


class NACLLoss(LossModule):
    """Neighbour-aware calibration as a module; see `nacl_loss`."""

    # Of the logits it reads those of the entry alone; only labels come from around it.
    is_of_single_entries: ClassVar[bool] = True
    reads_neighbours: ClassVar[bool] = True
    is_shift_invariant: ClassVar[bool] = False

    @arguments_of(nacl_loss)
    def __init__(self) -> None: ...
