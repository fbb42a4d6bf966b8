"""`Scaler`: what all post-hoc scalers share, and how they follow scikit-learn."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sfumato._core.arrays import like_input, to_labels, to_tensor
from sfumato.predictions.held_out import check_probabilities, held_out_rows
from sfumato.predictions.uniform_mixture import UniformMixture

if TYPE_CHECKING:
    from typing_extensions import Self

SMALLEST = 1e-12  # of a probability whose logarithm is taken, where none was 0 in the fit


class Scaler(nn.Module):
    """Base of the scalers: subclasses say in `fit_rows` how they fit, in `forward` what they do.

    Tensors are logits, as networks give them: `fit(logits, target)`, then the module is called on
    logits. Anything else (numpy arrays, lists) is probabilities, as `predict_proba` of scikit-learn
    gives them: `fit(probs, y)`, then `predict_proba(probs)`, numpy in, numpy out. Where any of
    these is exactly 0, a fitted share of the uniform distribution is mixed in first (`mixture`),
    because the logarithm of 0 would decide the whole fit.
    """

    mixture: UniformMixture | None

    def __init__(self) -> None:
        super().__init__()
        self.mixture = None
        self.register_load_state_dict_pre_hook(_expect_mixture)

    def fit(self, logits: Any, target: Any, *, ignore_index: int = -100) -> Self:
        """Fit on held-out logits (tensor) or probabilities (numpy) and labels; returns itself.

        Args:
            logits: tensor (N, C, ...); or an array of probabilities, (N, C).
            target: class indices, (N, ...).
            ignore_index: label of entries that count for nothing.
        """
        self.mixture = None
        if not isinstance(logits, Tensor):
            probs = _probabilities(logits)
            target = to_labels("target", target, len(probs), probs.shape[1])
            if not bool((probs > 0).all()):
                self.mixture = UniformMixture(free_temperature=True).fit(probs, target)
            logits = self._logarithm(probs)
        elif not isinstance(target, Tensor):
            target = to_tensor("target", target).to(logits.device)
        self.fit_rows(*held_out_rows(logits, target, ignore_index))
        return self

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Fit on logits (M, C) in double precision and labels (M,)."""
        raise NotImplementedError

    def predict_proba(self, probs: Any) -> Any:
        """Calibrated probabilities of probabilities (N, C); array in, array out."""
        logits = self(self._logarithm(_probabilities(probs)))
        return like_input(logits.softmax(1), probs)

    def _logarithm(self, probs: Tensor) -> Tensor:
        if self.mixture is not None:
            mixed: Tensor = self.mixture(probs)
            return mixed
        return probs.clamp(min=SMALLEST).log()


def _probabilities(probs: Any) -> Tensor:
    rows = to_tensor("probs", probs)
    if rows.ndim != 2:
        raise ValueError(f"probs must be (N, C), got {tuple(rows.shape)}")
    rows = rows.double()
    try:
        check_probabilities(rows)
    except ValueError as error:
        raise ValueError(
            f"{error}. Arrays are taken for probabilities; pass logits as a tensor to fit"
        ) from None
    return rows


def _expect_mixture(module: nn.Module, state_dict: Any, prefix: str, *_rest: Any) -> None:
    """Load hook: a scaler that was fitted on zeros is saved with its mixture."""
    has_one = any(key.startswith(f"{prefix}mixture.") for key in state_dict)
    mixture = UniformMixture(free_temperature=True) if has_one else None
    setattr(module, "mixture", mixture)  # noqa: B010 (a Module has no such attribute)


def fit_quietly(scaler: Scaler, logits: Tensor, target: Tensor) -> list[str]:
    """Fit, and return what the fit warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler.fit(logits, target)
    return [str(each.message) for each in caught]
