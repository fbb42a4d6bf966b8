"""Scalers with a map for each class: logistic, beta, histogram, isotonic, Venn-Abers.

Each maps the probability of one class against the rest, as if the others were one class, and the
results are divided by their sum. Of two classes both maps say the same. A confidence with whether
the prediction was right is such a case, too: "right" is the second class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_number,
    like_input,
    meeting,
    to_float64,
)
from sfumato.predictions.scalers import Scaler, classes_of, minimise, stretches

Arrays = tuple[Tensor, ...]
_LARGEST_ODDS = 1e30  # stands for infinity, so that a slope of 0 gives no NaN


class ClasswiseScaler(Scaler):
    """Base: `fit_class` fits the numbers of one class, `map_classes` maps the scores of all.

    Scores are (C, M), in double precision: probabilities, or log p and log(1 - p) as (2, C, M)
    where `uses_odds`. The call gives log p, minus infinity where p is 0, which serves as logits.
    """

    arrays: tuple[str, ...]
    uses_odds = False

    def __init__(self) -> None:
        super().__init__()
        self.expect_arrays(*self.arrays)

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        scores = self._scores(rows.T).unbind(-2)
        fitted = [self.fit_class(each, labels == c, weight) for c, each in enumerate(scores)]
        # Classes have different numbers of points; repeating the last one changes no value.
        for name, values in zip(self.arrays, zip(*fitted, strict=True), strict=True):
            longest = max(len(each) for each in values)
            setattr(self, name, torch.stack([_padded(each, longest) for each in values]).to(rows))

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        """The arrays of one class, of its scores (M,), as often as they were of that class."""
        raise NotImplementedError

    def map_classes(self, scores: Tensor) -> Tensor:
        """Probabilities of each class against the rest, (C, M)."""
        raise NotImplementedError

    def forward(self, logits: Tensor) -> Tensor:
        self.check_fitted("map", getattr(self, self.arrays[0]), logits)
        rows = to_float64(logits.detach()).movedim(1, 0)  # (C, N, ...)
        mapped = self.map_classes(self._scores(rows.flatten(1)))
        total = mapped.sum(0)
        shares = torch.where(total > 0, mapped / total, 1 / len(mapped))
        return meeting(shares.log().view(rows.shape).movedim(0, 1), logits)

    def _scores(self, rows: Tensor) -> Tensor:
        return log_chances(rows) if self.uses_odds else rows.softmax(0).contiguous()

    def extra_repr(self) -> str:
        return classes_of(getattr(self, self.arrays[0]))


def log_chances(rows: Tensor) -> Tensor:
    """log p and log(1 - p) of logits (C, M), (2, C, M): exact also where p is next to 1.

    The rest is the sum of the classes before and behind, so that nothing cancels.
    """
    log_probs = rows.log_softmax(0)
    nothing = torch.full_like(rows[:1], -torch.inf)
    before = torch.cat([nothing, log_probs[:-1].logcumsumexp(0)])
    behind = torch.cat([log_probs[1:].flip(0).logcumsumexp(0).flip(0), nothing])
    both = torch.stack([log_probs, torch.logaddexp(before, behind)])
    return both.clamp(min=-_LARGEST_ODDS)


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values[-1:].expand(length - len(values))])


def targets_of_platt(positive: Tensor, weight: Tensor | None) -> Tensor:
    """(n + 1) / (n + 2) for the n positive samples, 1 / (m + 2) for the m others, (M,)."""
    counted = torch.ones_like(positive, dtype=torch.float64) if weight is None else weight
    hits = counted[positive].sum()
    return torch.where(positive, (hits + 1) / (hits + 2), 1 / (counted.sum() - hits + 2))


def logistic_regression(
    features: Tensor, target: Tensor, weight: Tensor | None, *, rising: int
) -> Tensor:
    """Coefficients of the features (M, K), then the bias, (K + 1,), of greatest likelihood.

    The first `rising` coefficients are not negative: the one that would be is left out.
    """
    share = torch.ones_like(target) if weight is None else weight
    share = share / share.sum()
    size = features.abs().amax(0).clamp(min=1.0)  # features of one size end in few steps
    columns = torch.cat([features / size, torch.ones_like(target)[:, None]], 1)
    used = torch.ones(columns.shape[1], dtype=torch.bool, device=features.device)
    while True:
        found = torch.cat([size, size.new_zeros(1)])  # the identity
        found[rising:] = 0
        found = found[used].requires_grad_()
        chosen = columns[:, used]

        def loss(found: Tensor = found, chosen: Tensor = chosen) -> Tensor:
            return F.binary_cross_entropy_with_logits(
                chosen @ found, target, share, reduction="sum"
            )

        minimise(loss, [found])
        whole = torch.zeros_like(columns[0])
        whole[used] = found.detach()
        falls = whole[:rising] < 0
        if not bool(falls.any()):
            return torch.cat([whole[:-1] / size, whole[-1:]])
        used[:rising] &= ~falls


class LogisticScaler(ClasswiseScaler):
    """Maps the log odds of each class by a rising line: Platt scaling.

        logit g_c = slope_c logit p_c + bias_c

    Two numbers for each class want tens of samples of each. With more `pieces` the line is bent at
    quantiles of the held-out log odds, and corrects any rising curve.

    Args:
        pieces: stretches of the line, each with its own slope; fewer where scores coincide.
        penalty: weight of the squared differences of neighbouring log slopes, over the number of
            samples; without more pieces than one it has no effect.
        platt: labels count as Platt's (n + 1) / (n + 2) and 1 / (m + 2), which keeps numbers finite
            where the scores separate the classes; False takes the plain likelihood.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]).repeat(250, 1)
        >>> target = torch.tensor([0, 0, 1, 1]).repeat(250)
        >>> scaler = LogisticScaler().fit(logits=logits, target=target)
        >>> scaler(logits).softmax(1)[0].round(decimals=2)
        tensor([0.6700, 0.3300])

    Reference:
        Platt 1999, "Probabilistic outputs for support vector machines". Differs: slopes are never
        negative, so that the order of the scores stays.
    """

    arrays = ("slopes", "knots", "bias")
    uses_odds = True
    slopes: Tensor  # (C, J)
    knots: Tensor  # (C, J - 1) where a stretch ends and the next begins
    bias: Tensor  # (C, 1)

    def __init__(self, *, pieces: int = 1, penalty: float = 1.0, platt: bool = True) -> None:
        super().__init__()
        check_integer("pieces", pieces, low=1)
        check_number("penalty", penalty, low=0.0)
        self.pieces, self.penalty, self.platt = pieces, penalty, platt

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        odds = scores[0] - scores[1]
        target = targets_of_platt(positive, weight) if self.platt else positive.double()
        knots = odds.new_zeros(self.pieces - 1)
        if self.pieces > 1:
            shares = torch.linspace(0, 1, self.pieces + 1, dtype=odds.dtype, device=odds.device)
            inner = odds.quantile(shares[1:-1]).unique()
            knots = _padded(inner, self.pieces - 1)
        features = stretches(odds, knots)
        line = logistic_regression(odds[:, None], target, weight, rising=1)
        if self.pieces == 1:
            return line[:1], knots, line[1:]
        slopes, bias = _fit_bends(features, target, weight, line, self.penalty)
        return slopes, knots, bias

    def map_classes(self, scores: Tensor) -> Tensor:
        odds = scores[0] - scores[1]
        parts = stretches(odds, self.knots.to(odds)[:, None])
        line = (parts @ self.slopes.to(odds).unsqueeze(-1)).squeeze(-1)
        return (line + self.bias.to(odds)).sigmoid()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pieces={self.pieces}"


def _fit_bends(
    features: Tensor, target: Tensor, weight: Tensor | None, line: Tensor, penalty: float
) -> tuple[Tensor, Tensor]:
    """Slopes and bias of least loss, from a straight line on."""
    share = torch.ones_like(target) if weight is None else weight
    count = float(share.sum())
    log_slopes = line[:1].clamp(min=1e-3).log().repeat(features.shape[1]).requires_grad_()
    bias = line[1:].clone().requires_grad_()

    def loss() -> Tensor:
        value = features @ log_slopes.exp() + bias
        fit = F.binary_cross_entropy_with_logits(value, target, share / count, reduction="sum")
        return fit + log_slopes.diff().square().sum() * penalty / count

    minimise(loss, [log_slopes, bias])
    return log_slopes.detach().exp(), bias.detach()


class BetaScaler(ClasswiseScaler):
    """Maps the probability of each class by beta calibration.

        logit g_c = a_c log p_c - b_c log(1 - p_c) + c_c,   a, b >= 0

    Three numbers for each class. Unlike a logistic map it has the identity among its curves and
    bends the two ends differently.

    Args:
        platt: as `LogisticScaler`.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]).repeat(250, 1)
        >>> target = torch.tensor([0, 0, 1, 1]).repeat(250)
        >>> scaler = BetaScaler().fit(logits=logits, target=target)
        >>> scaler(logits).softmax(1)[0].round(decimals=2)
        tensor([0.6700, 0.3300])

    Reference:
        Kull, Silva Filho and Flach 2017, Eq. (5). As there, a coefficient that would be negative
        is 0. Differs: `platt=True` is the default.
    """

    arrays = ("coefficients",)
    uses_odds = True
    coefficients: Tensor  # (C, 3): a, b, c

    def __init__(self, *, platt: bool = True) -> None:
        super().__init__()
        self.platt = platt

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        target = targets_of_platt(positive, weight) if self.platt else positive.double()
        features = torch.stack([scores[0], -scores[1]], 1)
        return (logistic_regression(features, target, weight, rising=2),)

    def map_classes(self, scores: Tensor) -> Tensor:
        a, b, c = self.coefficients.to(scores).T.unsqueeze(-1)
        return (a * scores[0] - b * scores[1] + c).sigmoid()


class HistogramScaler(ClasswiseScaler):
    """Gives each class the share that it had in the bin of its probability: histogram binning.

    A bin that was empty in the fit has its centre. Where no class has a share, all have the same.

    Args:
        num_bins: bins of each class.
        binning: bins of equal "width", or of equal "mass" (as many held-out samples in each).

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = HistogramScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> scaler(logits).softmax(1)[0]
        tensor([0.7500, 0.2500])

    Reference:
        Zadrozny and Elkan 2001, Sec. 3; Guo et al. 2017, Sec. 4.1.
    """

    arrays = ("edges", "found")
    edges: Tensor  # (C, B - 1) between the bins; a bin holds its upper edge
    found: Tensor  # (C, B)

    def __init__(self, *, num_bins: int = 10, binning: Literal["width", "mass"] = "width") -> None:
        super().__init__()
        check_integer("num_bins", num_bins, low=1)
        check_choice("binning", binning, ("width", "mass"))
        self.num_bins, self.binning = num_bins, binning

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        ends = torch.linspace(0, 1, self.num_bins + 1, dtype=scores.dtype, device=scores.device)
        if self.binning == "mass":
            ends[1:-1] = weighted_quantile(scores, ends[1:-1], weight)
        counted = torch.ones_like(scores) if weight is None else weight
        place = torch.searchsorted(ends[1:-1].contiguous(), scores.contiguous())
        count, hits = (
            scores.new_zeros(self.num_bins).index_add_(0, place, each)
            for each in (counted, counted * positive)
        )
        return ends[1:-1], torch.where(count > 0, hits / count, (ends[:-1] + ends[1:]) / 2)

    def map_classes(self, scores: Tensor) -> Tensor:
        place = torch.searchsorted(self.edges.to(scores).contiguous(), scores)
        return self.found.to(scores).gather(1, place)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_bins={self.num_bins}, binning={self.binning!r}"


def weighted_quantile(values: Tensor, shares: Tensor, weight: Tensor | None) -> Tensor:
    """Quantiles of values (M,), each as often as its weight says."""
    if weight is None:
        return values.quantile(shares)
    ordered, order = values.sort()
    reached = weight[order].cumsum(0) / weight.sum()
    return ordered[torch.searchsorted(reached, shares).clamp(max=len(values) - 1)]


class IsotonicScaler(ClasswiseScaler):
    """Maps the probability of each class by a monotone curve of its own, then normalises.

    p_c <- g_c(p_c) / sum_k g_k(p_k), g_c the non-decreasing curve nearest (least squares) to
    "is it class c?" over the held-out p_c. It fits any shape of miscalibration with hundreds of
    samples per class, and can change the predicted class. Where all g_c are 0 the classes share the
    probability equally. `fit` needs scikit-learn; a fitted or loaded scaler does not.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = IsotonicScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 4)
        0.75

    Reference:
        Zadrozny and Elkan 2002, Sec. 4; as compared with temperature scaling by Guo et al. 2017.
    """

    arrays = ("stated", "found")
    stated: Tensor  # (C, K) abscissae of the curves, each padded with its last point
    found: Tensor  # (C, K) ordinates

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        try:
            from sklearn.isotonic import IsotonicRegression
        except ImportError as error:
            raise ImportError(
                "IsotonicScaler.fit needs scikit-learn: install it (pip install scikit-learn), or "
                "use VectorScaler or EnsembleTemperatureScaler"
            ) from error
        curve = IsotonicRegression(y_min=0.0, y_max=1.0)
        weights = None if weight is None else weight.cpu().numpy()
        curve.fit(scores.cpu().numpy(), positive.double().cpu().numpy(), sample_weight=weights)
        return torch.as_tensor(curve.X_thresholds_), torch.as_tensor(curve.y_thresholds_)

    def map_classes(self, scores: Tensor) -> Tensor:
        return _interpolate(scores, *(each.to(scores) for each in (self.stated, self.found)))


def _interpolate(x: Tensor, stated: Tensor, found: Tensor) -> Tensor:
    """Piecewise linear curves (C, K) at x (C, M); constant beyond their ends."""
    right = torch.searchsorted(stated, x).clamp(max=stated.shape[1] - 1)
    left = (right - 1).clamp_min(0)
    x_left, x_right = stated.gather(1, left), stated.gather(1, right)
    y_left, y_right = found.gather(1, left), found.gather(1, right)
    width = x_right - x_left
    share = torch.where(width > 0, (x - x_left) / width, 1.0).clamp(0, 1)
    return y_left + share * (y_right - y_left)


class VennAbersScaler(ClasswiseScaler):
    """Gives each class two probabilities, one of which is calibrated, and their mean: Venn-Abers.

    p_0 and p_1 are the values of two isotonic regressions of the held-out samples with that score
    added, once as another class and once as this class. The probabilities of the one that the label
    agrees with are calibrated exactly, whatever the model and however few the samples.

        g_c = p_1 / (1 - p_0 + p_1)

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = VennAbersScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> scaler.predict_interval(logits=logits)[0]
        tensor([[0.6000, 0.8000],
                [0.2000, 0.4000]], dtype=torch.float64)

    Reference:
        Vovk, Petej and Fedorova 2015, inductive Venn-Abers predictors; g is that of least regret
        under the logarithmic loss there. Of more than two classes each is against the rest.
    """

    arrays = ("scores", "lower", "upper")
    scores: Tensor  # (C, K), rising
    lower: Tensor  # (C, K + 1): p_0 from the score k on is lower[k + 1], before the first lower[0]
    upper: Tensor  # (C, K + 1): p_1 up to the score k is upper[k], beyond the last upper[K]

    def fit_class(self, scores: Tensor, positive: Tensor, weight: Tensor | None) -> Arrays:
        counted = torch.ones_like(scores) if weight is None else weight
        known, place = scores.unique(return_inverse=True)
        count, hits = (
            scores.new_zeros(len(known)).index_add_(0, place, each).cpu()
            for each in (counted, counted * positive)
        )
        upper = torch.cat([_raised(count, hits), count.new_ones(1)])
        # Another class is this one seen from the other end.
        lower = 1 - torch.cat([_raised(count.flip(0), (count - hits).flip(0)), count.new_ones(1)])
        lower = lower.flip(0)
        changes = (lower.diff() != 0) | (upper.diff() != 0)
        changes[-1] = True
        kept = torch.cat([changes, changes.new_ones(1)])
        first = torch.cat([changes.new_ones(1), changes])
        return known.cpu()[changes], lower[first], upper[kept]

    def map_classes(self, scores: Tensor) -> Tensor:
        lower, upper = self._bounds(scores)
        return upper / (1 - lower + upper)

    def predict_interval(self, *, logits: Any = None, probs: Any = None) -> Any:
        """The two probabilities p_0 <= p_1 of each class, (N, C, 2), array for array."""
        rows, given = self.as_logits(logits, probs)
        self.check_fitted("map", self.scores, rows)
        scores = self._scores(to_float64(rows.detach()).T)
        return like_input(torch.stack([each.T for each in self._bounds(scores)], -1), given)

    def _bounds(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        known = self.scores.to(scores).contiguous()
        from_here = torch.searchsorted(known, scores, right=True)
        up_to = torch.searchsorted(known, scores)
        return self.lower.to(scores).gather(1, from_here), self.upper.to(scores).gather(1, up_to)


def _raised(count: Tensor, hits: Tensor) -> Tensor:
    """Isotonic regression at each score with one positive sample more at that score, (K,).

    It is the slope of the greatest convex minorant of the summed (count, hits), whose points left
    of the score lie one lower and one further left. A moved point that is below the line is the new
    corner from which the line goes on.
    """
    across, up = (torch.cat([each.new_zeros(1), each.cumsum(0)]).numpy() for each in (count, hits))
    corner, slope, found = (-1.0, -1.0), 0.0, []
    slope = float(((up[1:] + 1) / (across[1:] + 1)).min())
    for i in range(1, len(across)):
        found.append(slope)
        moved = (across[i] - 1, up[i] - 1)
        if moved[1] < corner[1] + slope * (moved[0] - corner[0]) and i + 1 < len(across):
            corner = moved
            slope = float(((up[i + 1 :] - moved[1]) / (across[i + 1 :] - moved[0])).min())
    return torch.tensor(found, dtype=torch.float64).clamp(max=1.0)


PLACE_FEATURES = ("x", "x^2", "y", "y^2", "w", "w^2", "h", "h^2")


def place_features(boxes: Tensor) -> Tensor:
    """Centre and size of boxes x1 y1 x2 y2 (N, 4), and their squares, (N, 8) float64."""
    first, second = boxes.double().split(2, 1)
    (x, y), (w, h) = ((first + second) / 2).unbind(1), (second - first).unbind(1)
    return torch.stack([each**power for each in (x, y, w, h) for power in (1, 2)], 1)


def fit_place(
    log_probs: Tensor, correct: Tensor, boxes: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Fit how much position and size of a box add to the log odds of its confidence, (8,).

        logit q = slope (logit p + place . features(box)) + bias

    is fitted by likelihood; slope and bias are left to the map that follows.

    Reference: Kueppers et al. 2020, logistic calibration with independent normal features, whose
        log-likelihood ratio is such a sum.
    """
    odds = (log_probs[:, 1] - log_probs[:, 0])[:, None]
    features = torch.cat([odds, place_features(boxes)], 1)
    found = logistic_regression(features, targets_of_platt(correct, weight), weight, rising=1)
    # Where the confidence tells nothing, the place can't be said in its terms.
    return found[1:-1] / found[0] if float(found[0]) > 0 else torch.zeros_like(found[1:-1])


def with_place(log_probs: Tensor, boxes: Tensor, place: Sequence[float] | Tensor) -> Tensor:
    """Log probabilities (N, 2) of which the second class has the log odds of its box added."""
    added = place_features(boxes) @ torch.as_tensor(place, dtype=torch.float64)
    return torch.stack([log_probs[:, 0], log_probs[:, 1] + added], 1).log_softmax(1)
