"""What all post-hoc scalers share: held-out rows, a fit by likelihood, calibration error, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_class_indices, check_floating
from sfumato._core.confidence_bins import bin_index

LOWEST, HIGHEST = 1e-2, 1e2  # of a temperature


def check_logits(logits: Tensor) -> None:
    """Raise unless `logits` is floating point (N, C, ...)."""
    check_floating("logits", logits, hint="Pass logits, not probabilities")
    if logits.ndim < 2:
        raise ValueError(f"logits must be (N, C, ...), got {tuple(logits.shape)}")


def check_probabilities(probs: Tensor) -> None:
    """Raise unless `probs` is (N, C, ...), not negative, and sums to one over the classes."""
    check_floating("probs", probs)
    if probs.ndim < 2:
        raise ValueError(f"probs must be (N, C, ...), got {tuple(probs.shape)}")
    if bool((probs < 0).any()):
        raise ValueError(f"probs must not be negative, got {float(probs.min()):.6g}")
    off = (probs.sum(1) - 1).abs()
    if off.numel() and not float(off.max()) <= 1e-2:
        raise ValueError(
            "probs must sum to one over the classes (within 0.01) and hold no NaN; for raw scores "
            "call a scaler's fit with them"
        )


def held_out_rows(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Checked logits (M, C) in double precision and labels (M,) of the entries that count."""
    check_floating("logits", logits, hint="Pass logits, not probabilities")
    if logits.ndim < 2 or target.shape != logits.shape[:1] + logits.shape[2:]:
        raise ValueError(
            f"logits must be (N, C, ...) and target (N, ...), got {tuple(logits.shape)} and "
            f"{tuple(target.shape)}"
        )
    check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
    keep = target.reshape(-1) != ignore_index
    rows = logits.detach().movedim(1, -1).reshape(-1, logits.shape[1])[keep].double()
    if not len(rows):
        raise ValueError("there is no valid entry to fit on: target is empty or all ignored")
    if not bool(torch.isfinite(rows).all()):
        raise ValueError("logits must be finite to fit on; some are NaN or infinite")
    return rows, target.reshape(-1)[keep].long()


@torch.enable_grad()
def minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    """Bring `parameters` to the minimum of `loss` with L-BFGS."""
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=100,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def ece_of_confidences(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """ECE with bins of equal width, of confidences and correctness in float64."""
    member = bin_index(confidence, num_bins)
    gaps = confidence.new_zeros(num_bins).index_add_(0, member, correct - confidence)
    return gaps.abs().sum() / len(confidence)


def check_fitted(name: str, value: Tensor, logits: Tensor) -> None:
    """Raise unless the per-class buffer `value` (C, ...) is fitted and matches `logits`."""
    check_logits(logits)
    if not value.numel():
        raise ValueError(f"the {name} is not known yet: call fit(logits, target) first")
    if len(value) != logits.shape[1]:
        raise ValueError(
            f"logits must have the {len(value)} classes of the fit, got {tuple(logits.shape)}"
        )


def along_classes(values: Tensor, logits: Tensor) -> Tensor:
    """One value per class (C,) as (C, 1, ...), to meet logits (N, C, ...) in their own type."""
    return values.to(logits).view(-1, *[1] * (logits.ndim - 2))


def remember_fit(module: nn.Module, *_rest: Any) -> None:
    """Load hook: let a module look at the numbers that it was just given.

    What a call must know of a fit is kept as a plain value beside the buffers: export follows
    tensors without their values, so `float(buffer)` would end it.
    """
    module.note_fit()  # type: ignore[operator]


def adopt_shapes(
    module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_rest: Any
) -> None:
    """Load hook for buffers whose shape is known only from data: take the shape that was saved."""
    for name, buffer in list(module.named_buffers(recurse=False)):
        saved = state_dict.get(prefix + name)
        if saved is not None:
            setattr(module, name, torch.empty_like(saved, device=buffer.device))
