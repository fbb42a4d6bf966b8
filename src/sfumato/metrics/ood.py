"""How well a score tells strange inputs from familiar ones, and the risk of answering both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato._core.checks import by_convention, check_integer, to_outcomes, to_tensor
from sfumato._core.seeds import draw_seed
from sfumato.metrics.evaluate import check_resampling, draw_weights, intervals_of
from sfumato.metrics.groups import Groups
from sfumato.metrics.scores import augrc, aurc, confidence_auroc

_AT_A_TIME = 1_000_000  # weights
_RATE = 0.95


@by_convention
def ood_metrics(
    familiar: Any,
    strange: Any,
    *,
    correct: Any = None,
    resamples: int = 0,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Measure how well a score separates strange inputs from familiar ones; strange is positive.

    auroc: probability that a strange input has a higher score than a familiar one, ties one half.
    fpr95: share of familiar inputs at or above the highest threshold that at least 95 % of the
    strange ones reach. aupr_out, aupr_in: average precision for strange and for familiar inputs.
    With `correct`, aurc and augrc: risk against coverage over both sets, where the lowest scores
    are answered first, and every strange input that is answered is a mistake. The average
    precisions, aurc and augrc depend on how many inputs each set has.

    Args:
        familiar: scores of inputs of the training distribution, higher for stranger; (N,).
        strange: scores of others, (M,).
        correct: whether the prediction of each familiar input is right, (N,).
        resamples: bootstrap resamples, of both sets, for `<key>_interval`; 0 leaves them out.
        level: probability that the intervals are to cover.
        generator: source of randomness of the resamples.

    Example:
        >>> found = ood_metrics(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9]))
        >>> round(found["auroc"], 3)
        0.833

    Reference:
        Hendrycks and Gimpel, ICLR 2017 (auroc, aupr); Liang et al., ICLR 2018 (fpr95, there with
        familiar inputs as positive; here as OpenOOD has it); Jaeger et al., A Call to Reflect on
        Evaluation Practices for Failure Detection, ICLR 2023 (aurc over both sets).
    """
    check_integer("resamples", resamples, low=0)
    evaluation = OODEvaluation(familiar, strange, correct)
    values = evaluation.measure()
    if not resamples:
        return values
    check_resampling(min(evaluation.sizes), resamples, level)
    seed = draw_seed(generator)
    sources = tuple(torch.Generator().manual_seed(seed + number) for number in range(2))
    draws = evaluation.resample(resamples, (sources[0], sources[1]))
    return values | intervals_of(values, draws, units=sum(evaluation.sizes), level=level)


class OODEvaluation:
    """Scores of familiar and of strange inputs, ready to be measured, whole or resampled."""

    def __init__(self, familiar: Any, strange: Any, correct: Any = None) -> None:
        sets = [_scores(*each) for each in (("familiar", familiar), ("strange", strange))]
        self.sizes = (len(sets[0]), len(sets[1]))
        self.has_outcomes = correct is not None
        right = torch.ones(self.sizes[0], dtype=torch.bool)
        if correct is not None:
            right = to_outcomes("correct", correct, self.sizes[0]).cpu()
        # Ascending confidence, as all groups have it: the strangest first.
        ordered, order = (-torch.cat(sets)).sort(stable=True)
        last = torch.cat([ordered.diff() > 0, torch.ones(1, dtype=torch.bool)])
        self._ends = last.nonzero().flatten()  # of groups of equal scores
        self._upper = ordered[self._ends]
        self._order = order
        self._right = right.double()

    def measure(self) -> dict[str, float]:
        """Every metric of the whole sets."""
        ones = [torch.ones(1, size, dtype=torch.float64) for size in self.sizes]
        return {name: float(value) for name, value in self._measure(*ones).items()}

    def resample(
        self, resamples: int, generators: tuple[torch.Generator, torch.Generator]
    ) -> dict[str, Tensor]:
        """Every metric of every resample, (R,) each; both sets are drawn by themselves."""
        step = max(1, _AT_A_TIME // sum(self.sizes))
        parts = []
        for start in range(0, resamples, step):
            count = min(step, resamples - start)
            weights = [
                draw_weights(size, count, generator=source, device=torch.device("cpu"))
                for size, source in zip(self.sizes, generators, strict=True)
            ]
            parts.append(self._measure(*weights))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _measure(self, familiar: Tensor, strange: Tensor) -> dict[str, Tensor]:
        """Every metric for weights (R, N) and (R, M) of the inputs, (R,) each."""
        known = self._sum(familiar, torch.zeros_like(strange))
        unknown = self._sum(torch.zeros_like(familiar), strange)
        separated = self._groups(known + unknown, known)
        found = {
            "auroc": confidence_auroc.of_groups(separated),
            "fpr95": _false_positives(unknown, known),
            "aupr_out": _average_precision(unknown, known),
            "aupr_in": _average_precision(known.flip(1), unknown.flip(1)),
        }
        if self.has_outcomes:
            right = self._sum(familiar * self._right, torch.zeros_like(strange))
            mixed = self._groups(known + unknown, right)
            found |= {"aurc": aurc.of_groups(mixed), "augrc": augrc.of_groups(mixed)}
        return found

    def _sum(self, familiar: Tensor, strange: Tensor) -> Tensor:
        """Weights of each group of equal scores, (R, G)."""
        sums = torch.cat([familiar, strange], 1)[:, self._order].cumsum(1)[:, self._ends]
        return sums.diff(dim=1, prepend=sums.new_zeros(len(sums), 1))

    def _groups(self, count: Tensor, correct: Tensor) -> Groups:
        return Groups(count, correct, count, correct, self._upper)


def _false_positives(positive: Tensor, negative: Tensor) -> Tensor:
    """Share of the negative at the first group where 95 % of the positive are reached, (R,)."""
    reached = positive.cumsum(1) / positive.sum(1, keepdim=True)
    place = (reached >= _RATE).double().argmax(1, keepdim=True)
    return (negative.cumsum(1).gather(1, place) / negative.sum(1, keepdim=True)).squeeze(1)


def _average_precision(positive: Tensor, negative: Tensor) -> Tensor:
    """Mean precision over the positive, groups in the order in which they are found, (R,)."""
    hits, misses = positive.cumsum(1), negative.cumsum(1)
    precision = hits / (hits + misses).clamp_min(1)
    return (positive * precision).sum(1) / hits[:, -1]


def _scores(name: str, values: Any) -> Tensor:
    scores = to_tensor(name, values).double().cpu()
    if scores.ndim != 1 or not len(scores):
        raise ValueError(
            f"{name} must be the scores of at least one input, (N,), got {tuple(scores.shape)}"
        )
    if bool(scores.isnan().any()):
        raise ValueError(
            f"{name} must have no NaN, got {int(scores.isnan().sum())}: leave these inputs out of "
            "both sets, or find what made them"
        )
    return scores
