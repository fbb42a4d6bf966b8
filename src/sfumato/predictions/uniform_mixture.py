"""Logits of probabilities that may be exactly 0: a fitted share of the uniform distribution first.

Every scaler takes logits. Where only probabilities were saved, their logarithm serves as logits,
but that of 0 is minus infinity: one label of probability 0 among thousands then decides every fit.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.predictions.held_out import (
    HIGHEST,
    LOWEST,
    check_probabilities,
    held_out_rows,
    minimise,
    remember_fit,
)

SMALLEST, LARGEST = 1e-6, 0.99
_START = 0.1


class UniformMixture(nn.Module):
    """Mixes probabilities with the uniform distribution and takes the logarithm.

    log((1 - a) p + a / C): finite also where p is 0, so that any scaler can go on from there. The
    amount a is the one with which held-out labels are most likely; the order of the classes stays.
    `fit` warns where labels had probability 0: no scaling repairs a model that rules out what
    happens, it only learns how often that is.

    Args:
        free_temperature: whether the likelihood is that after the best single temperature. True
            is better, often by far, where a scaler with a temperature or a scale comes next; False
            suits any use.

    Shape:
        probs: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, nothing to fit on, or no probabilities.

    Example:
        >>> probs, target = torch.tensor([[0.99, 0.01]] * 20), torch.tensor([0] * 16 + [1] * 4)
        >>> mixture = UniformMixture().fit(probs, target)
        >>> mixture(torch.tensor([[1.0, 0.0]])).isfinite().all()
        tensor(True)

    Differs: ensemble temperature scaling (Zhang et al. 2020) mixes after the temperature, whose own
    fit the zeros have spoilt by then.
    """

    _amount: Tensor
    _is_fitted = False

    def __init__(self, *, free_temperature: bool = False) -> None:
        super().__init__()
        self.free_temperature = free_temperature
        self.register_buffer("_amount", torch.tensor(math.nan, dtype=torch.float64))
        self.register_load_state_dict_post_hook(remember_fit)

    @property
    def amount(self) -> float:
        """The fitted share a of the uniform distribution, in [1e-6, 0.99]."""
        return float(self._fitted())

    def fit(self, probs: Tensor, target: Tensor, *, ignore_index: int = -100) -> UniformMixture:
        """Find the amount on held-out probabilities; returns itself."""
        check_probabilities(probs)
        rows, labels = held_out_rows(probs, target, ignore_index)
        impossible = int((rows.gather(1, labels.unsqueeze(1)) == 0).sum())
        if impossible:
            warnings.warn(
                f"{impossible:,} of {len(labels):,} held-out labels had probability 0: the model "
                "rules out what happens, and its likelihood is 0. Scaling mixes its probabilities "
                "with the uniform distribution first.",
                stacklevel=2,
            )
        amount = _fit_amount(rows, labels, self.free_temperature)
        if not SMALLEST < amount < LARGEST:
            warnings.warn(
                f"the share of the uniform distribution ended at its bound {amount:g}: the fit has "
                "not found a best value; don't rely on it",
                stacklevel=2,
            )
        self._amount.fill_(amount)
        self.note_fit()
        return self

    def forward(self, probs: Tensor) -> Tensor:
        """Log probabilities, which serve as logits."""
        return mixed_logarithm(probs, self._fitted())

    def note_fit(self) -> None:
        """Look whether the amount is known; called where it may have changed."""
        self._is_fitted = not bool(self._amount.isnan())

    def _fitted(self) -> Tensor:
        if not self._is_fitted:
            raise ValueError("the amount is not known yet: call fit(probs, target) first")
        return self._amount

    def extra_repr(self) -> str:
        return f"amount={float(self._amount):.4g}, free_temperature={self.free_temperature}"


def mixed_logarithm(probs: Tensor, amount: Tensor) -> Tensor:
    """log((1 - a) p + a / C)."""
    return ((1 - amount) * probs + amount / probs.shape[1]).log()


def _fit_amount(rows: Tensor, labels: Tensor, free_temperature: bool) -> float:
    """The amount of greatest likelihood, at temperature 1 or at the best one."""
    bounds = [math.log(end / (1 - end)) for end in (SMALLEST, LARGEST)]
    odds = rows.new_tensor(math.log(_START / (1 - _START))).requires_grad_()
    log_temperature = rows.new_zeros(()).requires_grad_(free_temperature)

    def loss() -> Tensor:
        logits = mixed_logarithm(rows, odds.clamp(*bounds).sigmoid())
        scale = (-log_temperature.clamp(math.log(LOWEST), math.log(HIGHEST))).exp()
        return F.cross_entropy(logits * scale, labels)

    minimise(loss, [odds, log_temperature] if free_temperature else [odds])
    return min(max(float(odds.detach().sigmoid()), SMALLEST), LARGEST)
