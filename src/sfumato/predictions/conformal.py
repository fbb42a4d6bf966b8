"""Conformal prediction: sets of classes that hold the label with a promised probability.

THR: Sadinle, Lei and Wasserman, Least Ambiguous Set-Valued Classifiers, JASA 2019. APS: Romano,
Sesia and Candes, Classification with Valid and Adaptive Coverage, NeurIPS 2020. RAPS: Angelopoulos
et al., Uncertainty Sets for Image Classifiers using Conformal Prediction, ICLR 2021.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from sfumato._core.arrays import like_input, to_labels, to_tensor
from sfumato._core.checks import check_choice, check_integer, check_number, check_open_share
from sfumato._core.seeds import fold_seed
from sfumato.predictions.held_out import check_probabilities

Method = Literal["thr", "aps", "raps"]


class ConformalPredictor:
    """Turns probabilities into sets of classes that hold the label with probability 1 - alpha.

        s(x, y) = 1 - p_y                                                    thr
        s(x, y) = sum of p above p_y + u p_y                                 aps
        s(x, y) = the same + penalty max(0, rank of y - free_ranks)          raps
        set(x) = {y: s(x, y) <= the k-th smallest s of the calibration set}
        k = ceil((n + 1)(1 - alpha))

    P(label in set) >= 1 - alpha for any model, if calibration and new samples are drawn alike; the
    probability is over both. Given one calibration set of n samples the coverage scatters around it
    as Beta(k, n + 1 - k): by about 1 % for n = 1,000. THR has the smallest sets on average, and
    sets that grow little where the model is unsure; APS adapts most, at the price of long tails of
    classes, which RAPS cuts. Scaling by a temperature changes no promise, but sizes: a temperature
    above 1 lengthens the tails and so enlarges the sets of APS.

    Args:
        method: "thr", "aps" or "raps".
        alpha: probability that the label may be missing, in (0, 1).
        per_class: one quantile for each class (Mondrian), so that the promise holds for the samples
            of every class. A class with fewer than 1 / alpha - 1 calibration samples is in every
            set: nothing less would be sure.
        randomised: whether u is drawn from [0, 1] (aps, raps), with which coverage is exact. False
            takes u = 0: no set is empty, and coverage is at least the promised.
        penalty: of each rank behind the free ones, for raps.
        free_ranks: classes that cost no penalty, for raps.
        seed: of u. A predictor gives the same sets each time.

    Raises:
        ValueError: used before `fit`, or values that are no probabilities.

    Example:
        >>> probs = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> predictor = ConformalPredictor("thr", alpha=0.25).fit(probs, torch.tensor([0, 1, 2]))
        >>> predictor.predict(torch.tensor([[0.45, 0.45, 0.1]]))
        tensor([[ True,  True, False]])

    Differs:
        Ties of probabilities are ranked by class index. The released RAPS adds the most probable
        class to empty sets; here they stay empty, as the equations say.
    """

    def __init__(
        self,
        method: Method = "thr",
        alpha: float = 0.1,
        per_class: bool = False,
        *,
        randomised: bool = True,
        penalty: float = 0.01,
        free_ranks: int = 5,
        seed: int = 0,
    ) -> None:
        check_choice("method", method, ("thr", "aps", "raps"))
        check_open_share("alpha", alpha)
        check_number("penalty", penalty, low=0.0)
        check_integer("free_ranks", free_ranks, low=0)
        self.method, self.alpha, self.per_class = method, alpha, per_class
        self.randomised, self.penalty, self.free_ranks = randomised, penalty, free_ranks
        self.seed = seed
        self._quantile: Tensor | None = None

    @property
    def quantile(self) -> Tensor:
        """The largest score that stays in a set, (C,); infinite where all stay."""
        if self._quantile is None:
            raise ValueError("the quantile is not known yet: call fit(probs, labels) first")
        return self._quantile

    def fit(self, probs: Any, labels: Any) -> ConformalPredictor:
        """Find the quantile on held-out probabilities (N, C) and labels (N,); returns itself."""
        rows = _rows(probs)
        if not len(rows):
            raise ValueError("there is nothing to fit on: probs has no row")
        target = to_labels("labels", labels, len(rows), rows.shape[1]).to(rows.device)
        own = self._scores(rows, "fit").gather(1, target.unsqueeze(1)).squeeze(1)
        if self.per_class:
            parts = [own[target == number] for number in range(rows.shape[1])]
            self._quantile = torch.stack([_conformal_quantile(part, self.alpha) for part in parts])
        else:
            self._quantile = _conformal_quantile(own, self.alpha).expand(rows.shape[1])
        return self

    def predict(self, probs: Any) -> Any:
        """Which classes are in the set of each row of `probs` (N, C); boolean, (N, C)."""
        rows, quantile = _rows(probs), self.quantile
        if rows.shape[1] != len(quantile):
            raise ValueError(
                f"probs must have the {len(quantile)} classes of the fit, got {tuple(rows.shape)}"
            )
        return like_input(self._scores(rows, "predict") <= quantile.to(rows.device), probs)

    def _scores(self, rows: Tensor, use: str) -> Tensor:
        """s of every class, (N, C)."""
        if self.method == "thr":
            return 1 - rows
        ordered, order = rows.sort(dim=1, descending=True, stable=True)
        ranked = ordered.cumsum(1) - ordered + self._share(len(rows), use).to(rows) * ordered
        if self.method == "raps":
            rank = torch.arange(1, rows.shape[1] + 1, device=rows.device)
            ranked = ranked + self.penalty * (rank - self.free_ranks).clamp(min=0)
        return torch.empty_like(rows).scatter_(1, order, ranked)

    def _share(self, count: int, use: str) -> Tensor:
        """u of each sample, (N, 1); of another stream for new samples than for the fit."""
        if not self.randomised:
            return torch.zeros(count, 1)
        generator = torch.Generator().manual_seed(fold_seed(self.seed, "conformal", use))
        return torch.rand(count, 1, generator=generator, dtype=torch.float64)

    def __repr__(self) -> str:
        state = "not fitted" if self._quantile is None else "fitted"
        return f"ConformalPredictor({self.method!r}, alpha={self.alpha:g}, {state})"


def _conformal_quantile(scores: Tensor, alpha: float) -> Tensor:
    """The ceil((n + 1)(1 - alpha))-th smallest score; infinite where there are too few."""
    # In floating point 0.9 * 10 may be a little above 9; the slack keeps it from becoming 10.
    place = math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9)
    if place > len(scores):
        return scores.new_tensor(math.inf)
    return scores.sort().values[max(place, 1) - 1]


def _rows(probs: Any) -> Tensor:
    rows = to_tensor("probs", probs)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ValueError(f"probs must be (N, C) with C >= 2 classes, got {tuple(rows.shape)}")
    rows = rows.double()
    check_probabilities(rows)
    return rows
