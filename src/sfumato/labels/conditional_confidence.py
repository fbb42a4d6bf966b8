"""The smoothing of CRL under the condition of ACLS: confidence is lowered beyond a margin.

Reference: Park et al. 2023 (ACLS), Table 6, second row; Eq. (11) and supplement Eq. (20).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.labels._entries import Reduction, check_reduction, prepare_entries, reduce_entries


def conditional_confidence_penalty(
    logits: Tensor,
    target: Tensor | None = None,
    *,
    margin: float = 10.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """The confidence of entries whose logits are further apart than a margin.

    CRL smooths by the gradient of the confidence p_t, Eq. (20) of the supplement, where two samples
    are in the wrong order. Here the condition is that of ACLS, class by class: with t the
    predicted class, z_j takes part where z_t - z_j > M, and z_t where z_t - min_k z_k > M.

        R = 1[z_t - min_k z_k > M] p_t,   the logits that take no part held constant

        dR/dz_t = p_t (1 - p_t) 1[z_t - min_k z_k > M]
        dR/dz_j = -p_t p_j 1[z_t - z_j > M]                              (Eq. 11 and Eq. 20)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: only says which entries are ignored; None for none.
        margin: M, at least 0.
        ignore_index: class index of entries to skip.
        reduction: "mean" over the entries, "sum" or "none".

    Returns:
        A scalar, or (N, d1, ...) for "none". Add it to a fidelity term.

    Raises:
        TypeError, ValueError: bad logits, target or parameters.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.5, 0.0]])
        >>> conditional_confidence_penalty(logits, margin=1.0, reduction="none")
        tensor([0.8808, 0.0000])

    Reference:
        ACLS, Table 6 ("CRL" with the margin condition), which names no equation of its own.
    """
    check_number("margin", margin, low=0.0)
    check_reduction(reduction)
    entries = prepare_entries(logits, target, ignore_index=ignore_index)
    plain = entries.plain()
    scores = plain.logits
    top, predicted = scores.max(1, keepdim=True)
    stands_out = top - scores.amin(1, keepdim=True) > margin  # Eq. (11), j = t
    acts = (top - scores > margin).scatter(1, predicted, stands_out)  # Eq. (11)
    held = torch.where(acts, scores, scores.detach())
    confidence = held.log_softmax(1).gather(1, predicted).exp()
    values = torch.where(stands_out, confidence, 0.0).squeeze(1)  # its gradient is Eq. (20)
    return reduce_entries(values, plain, reduction)
