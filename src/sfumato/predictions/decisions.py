"""Decide with a guarantee: sets of classes that hold the label, thresholds that bound the error."""

from __future__ import annotations

import hashlib
import inspect
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_open_share,
    like_input,
    to_codes,
    to_labels,
    to_outcomes,
    to_scores,
    to_tensor,
)
from sfumato._core.seeds import fold_seed
from sfumato._core.statistics import binomial_tail, clopper_pearson_upper
from sfumato.predictions.ood import conformal_p_values, to_finite_scores
from sfumato.predictions.scalers import NOT_FITTED, check_probabilities

Method = Literal["thr", "lac", "aps", "raps"]


class ConformalPredictor:
    """Turns probabilities into sets of classes that hold the label with probability 1 - alpha.

        s(x, y) = 1 - p_y                                                    thr
        s(x, y) = sum of p above p_y + u p_y                                 aps
        s(x, y) = the same + penalty max(0, rank of y - free_ranks)          raps
        set(x) = {y: s(x, y) <= the k-th smallest s of the calibration set}
        k = ceil((n + 1)(1 - alpha))

    P(label in set) >= 1 - alpha for any model, over draws of calibration and new samples, if both
    are drawn alike. Given one calibration set, coverage is Beta(k, n + 1 - k): within about 1 % for
    n = 1,000. THR has the smallest sets on average. APS adapts most, with long tails of classes,
    which RAPS cuts. A temperature changes sizes and no guarantee.

    With `class_weight` (how much more frequent each class is in new data) class y is in the set
    where s(x, y) is at most

        the smallest s_i with  sum of w(y_j) over s_j <= s_i  >= (1 - alpha) (sum of all + w(y))

    Args:
        method: "thr" (also called "lac"), "aps" or "raps".
        alpha: probability that the label may be missing, in (0, 1).
        per_class: a quantile for each class (Mondrian): the guarantee holds for every class. A
            class with fewer than 1 / alpha - 1 calibration samples is in every set.
        per_group: quantiles for each group that `fit` and `predict` are told: the guarantee holds
            for every group. A group that is new, or too small, has every class in its sets.
        randomised: whether u is a hash of the row in [0, 1) (aps, raps), with which coverage is
            exact. False takes u = 0: no set is empty, and coverage is at least the guaranteed.
        penalty: of each rank behind the free ones, for raps.
        free_ranks: classes that cost no penalty, for raps.
        seed: of u, a hash of this seed and the row's probabilities in single precision: a row has
            the same set alone and in any batch, on every machine. The guarantee holds, because the
            score stays one fixed function of row and label.

    Example:
        >>> probs = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> predictor = ConformalPredictor("thr", alpha=0.25)
        >>> predictor = predictor.fit(probs, torch.tensor([0, 1, 2]))
        >>> predictor.predict(torch.tensor([[0.45, 0.45, 0.1]]))
        tensor([[ True,  True, False]])

    Differs:
        Ties of probabilities are ranked by class index. The released RAPS adds the most probable
        class to empty sets; here they stay empty, as the equations say.

    Reference:
        THR: Sadinle, Lei and Wasserman, JASA 2019. APS: Romano, Sesia and Candes, NeurIPS 2020.
        RAPS: Angelopoulos et al., ICLR 2021. Label shift: Podkopaev and Ramdas, UAI 2021, Eq. (13).
    """

    def __init__(
        self,
        method: Method = "thr",
        alpha: float = 0.1,
        per_class: bool = False,
        *,
        per_group: bool = False,
        randomised: bool = True,
        penalty: float = 0.01,
        free_ranks: int = 5,
        seed: int = 0,
    ) -> None:
        check_choice("method", method, get_args(Method))
        check_open_share("alpha", alpha)
        check_number("penalty", penalty, low=0.0)
        check_integer("free_ranks", free_ranks, low=0)
        self.method = "thr" if method == "lac" else method
        self.alpha, self.per_class, self.per_group = alpha, per_class, per_group
        self.randomised, self.penalty, self.free_ranks = randomised, penalty, free_ranks
        self.seed = seed
        self.groups: list[Any] = []
        self._quantile: Tensor | None = None

    @property
    def quantile(self) -> Tensor:
        """The largest score that stays in a set, (C,) or (G, C) of `groups`; infinite: all stay."""
        if self._quantile is None:
            raise ValueError("the quantile is not known yet: call fit(probs, target) first")
        return self._quantile

    def fit(
        self, probs: Any, target: Any, *, group: Any = None, class_weight: Any = None
    ) -> ConformalPredictor:
        """Find the quantiles on held-out predictions; returns itself.

        Args:
            probs: (N, C).
            target: labels, (N,).
            group: name or number of each sample's group, (N,); with `per_group`.
            class_weight: how many times as frequent each class is in new data, up to one factor,
                (C,). With `per_class` the guarantee holds without.
        """
        rows = _rows(probs)
        if not len(rows):
            raise ValueError("there is nothing to fit on: probs has no row")
        labels = to_labels("target", target, len(rows), rows.shape[1]).to(rows.device)
        own = self._scores(rows).gather(1, labels.unsqueeze(1)).squeeze(1)
        weight = self._weights(class_weight, rows.shape[1]).to(rows.device)
        if not self.per_group:
            self._check_group(group)
            self._quantile = self._quantiles(own, labels, weight)
            return self
        self.groups, place = self._named_groups(group, len(rows))
        parts = [torch.from_numpy(place == n).to(rows.device) for n in range(len(self.groups))]
        self._quantile = torch.stack(
            [self._quantiles(own[part], labels[part], weight) for part in parts]
        )
        return self

    def predict(self, probs: Any, *, group: Any = None) -> Any:
        """Mark the classes in the set of each row of `probs` (N, C), of these groups (N,)."""
        rows, quantile = _rows(probs), self.quantile
        if rows.shape[1] != quantile.shape[-1]:
            raise ValueError(
                f"probs must have the {quantile.shape[-1]} classes of the fit, got "
                f"{tuple(rows.shape)}"
            )
        if self.per_group:
            names, place = self._named_groups(group, len(rows))
            known = {name: number for number, name in enumerate(self.groups)}
            numbers = torch.tensor([known.get(name, len(known)) for name in names]).long()
            unknown = torch.full_like(quantile[:1], math.inf)
            quantile = torch.cat([quantile, unknown])[numbers[place].to(quantile.device)]
        else:
            self._check_group(group)
        return like_input(self._scores(rows) <= quantile.to(rows.device), probs)

    def _quantiles(self, scores: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        """The largest score that stays, of each class, (C,)."""
        if not self.per_class:
            return _conformal_quantile(scores, self.alpha, weight[labels], weight)
        parts = [scores[labels == number] for number in range(len(weight))]
        one = weight.new_ones(1)
        found = [_conformal_quantile(x, self.alpha, torch.ones_like(x), one) for x in parts]
        return torch.cat(found)

    def _weights(self, class_weight: Any, classes: int) -> Tensor:
        if class_weight is None:
            return torch.ones(classes, dtype=torch.float64)
        if self.per_class:
            raise ValueError(
                "class_weight must be None with per_class, which holds for any frequencies of the "
                "classes: leave one of the two out"
            )
        weight = to_tensor("class_weight", class_weight).double()
        if weight.shape != (classes,) or not bool((weight.isfinite() & (weight >= 0)).all()):
            raise ValueError(
                f"class_weight must be {classes} numbers of at least 0, one for each class, got "
                f"{class_weight!r}"
            )
        return weight

    def _check_group(self, group: Any) -> None:
        if group is not None:
            raise ValueError("group is only used with per_group=True: set it, or leave group out")

    def _named_groups(self, group: Any, count: int) -> tuple[list[Any], np.ndarray]:
        """The groups that occur, and the place of each sample's among them, (N,)."""
        if group is None:
            raise ValueError("group must name the group of each sample with per_group=True, (N,)")
        values = group.detach().cpu().numpy() if isinstance(group, Tensor) else np.asarray(group)
        if values.shape != (count,):
            raise ValueError(f"group must be ({count},), got {values.shape}")
        names, place = np.unique(values, return_inverse=True)
        return names.tolist(), place

    def _scores(self, rows: Tensor) -> Tensor:
        """s of every class, (N, C)."""
        if self.method == "thr":
            return 1 - rows
        ordered, order = rows.sort(dim=1, descending=True, stable=True)
        ranked = ordered.cumsum(1) - ordered + self._share(rows) * ordered
        if self.method == "raps":
            rank = torch.arange(1, rows.shape[1] + 1, device=rows.device)
            ranked = ranked + self.penalty * (rank - self.free_ranks).clamp(min=0)
        return torch.empty_like(rows).scatter_(1, order, ranked)

    def _share(self, rows: Tensor) -> Tensor:
        """u of each row, (N, 1); of one function for the fit and for new rows."""
        if not self.randomised:
            return rows.new_zeros(len(rows), 1)
        return _row_hash(rows, fold_seed(self.seed, "conformal")).to(rows.device)

    def __repr__(self) -> str:
        shown = [repr(self.method), f"alpha={self.alpha:g}"]
        for name, option in list(inspect.signature(ConformalPredictor).parameters.items())[2:]:
            value = getattr(self, name)
            shown += [f"{name}={value!r}"] if value != option.default else []
        if self._quantile is None:
            shown.append(NOT_FITTED)
        else:
            low, high = self._quantile.aminmax()
            shown.append(f"quantile={low:.4g}" + (f" to {high:.4g}" if high > low else ""))
        return f"ConformalPredictor({', '.join(shown)})"


def _conformal_quantile(scores: Tensor, alpha: float, weight: Tensor, own: Tensor) -> Tensor:
    """The weighted quantile of the scores for classes of these own weights, (C,).

    Infinite where too few scores give the guarantee. Of equal weights it is the
    ceil((n + 1)(1 - alpha))-th smallest.
    """
    ordered, order = scores.sort()
    mass = weight[order].cumsum(0)
    needed = (1 - alpha) * (weight.sum() + own)
    # In floating point 0.9 * 10 may be a little above 9; the slack keeps it from becoming 10.
    place = torch.searchsorted(mass, needed * (1 - 1e-12))
    return torch.cat([ordered, ordered.new_full((1,), math.inf)])[place]


def _row_hash(rows: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for each row (N, C), (N, 1) float64, from its single-precision bits.

    SplitMix64 mixes the bits of each entry with a key of its column, and their sum: whole numbers
    modulo 2^64, so neither order nor machine matters.
    """
    single = rows.detach().cpu().float().numpy() + np.float32(0)  # -0 becomes 0
    keys = _mix(np.arange(rows.shape[1], dtype=np.uint64) + np.uint64(seed % 2**64))
    mixed = _mix(single.view(np.uint32).astype(np.uint64) + keys).sum(1, dtype=np.uint64)
    return _share_of_bits(_mix(mixed))[:, None]


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _share_of_bits(bits: np.ndarray) -> Tensor:
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _rows(probs: Any) -> Tensor:
    rows = to_tensor("probs", probs)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ValueError(f"probs must be (N, C) with C >= 2 classes, got {tuple(rows.shape)}")
    rows = rows.double()
    check_probabilities(rows)
    return rows


# Shares of the capital that are risked on each image, each with an equal part of it: large ones for
# few images or a wide margin, small ones for many.
_BETS = (0.99, 0.5, 0.25, 0.1, 0.03)
_HALVINGS = 60
_RISKS = 96  # at which bounds of whole curves are looked up


class ImageSteps(NamedTuple):
    """Accepted predictions of each image while the threshold falls, one entry a step, (E,)."""

    place: Tensor  # of a descending list of thresholds, at which the step is taken
    is_first: Tensor  # whether it is the first of its image
    kept: Tensor  # accepted predictions of the image up to there
    wrong: Tensor  # wrong ones among them
    draw: Tensor  # a hash of the image's number in [0, 1), which decides on its side of the split


def mixed_numbers(values: Tensor) -> Tensor:
    """A number below 2^63 that is as good as random for each, (N,) int64: SplitMix64's output."""
    bits = _mix(values.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return torch.from_numpy((bits >> np.uint64(1)).astype(np.int64))


def name_code(name: str) -> int:
    """A number of 32 bits for a name, the same on every machine."""
    return zlib.crc32(name.encode(errors="surrogatepass"))


def image_numbers(images: Any, count: int) -> Tensor:
    """The number of the image of each of `count` predictions, as audits number them, (N,)."""
    values = _names_of_images(images, count)
    _, first, codes = np.unique(values, return_index=True, return_inverse=True)
    names = values[first]
    if names.dtype.kind not in "iu":
        names = np.array([name_code(str(name)) for name in names.tolist()])
    return mixed_numbers(torch.from_numpy(names.astype(np.int64)))[torch.from_numpy(codes)]


def _names_of_images(images: Any, count: int) -> np.ndarray:
    to_codes("images", images, count)
    return images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)


def image_steps(
    image: Tensor,
    confidence: Tensor,
    wrong: Tensor,
    thresholds: Tensor,
    count: Tensor | None = None,
) -> ImageSteps:
    """Steps of predictions of the images (N,), each of which stands for `count` equal ones.

    `thresholds` (T,) are descending; what reaches none of them is left out.
    """
    place = torch.searchsorted(-thresholds.double(), -confidence.double())
    inside = (place < len(thresholds)).nonzero().flatten()
    order = inside[place[inside].argsort(stable=True)]
    order = order[image[order].argsort(stable=True)]
    image, place = image[order], place[order]
    size = torch.ones(len(order)).double() if count is None else count[order].double()
    is_first = torch.ones_like(image, dtype=torch.bool)
    is_first[1:] = image[1:] != image[:-1]
    kept, errors = (_within(each, is_first) for each in (size, size * wrong[order]))
    draw = _share_of_bits(_mix(image.numpy().astype(np.uint64) + np.uint64(_SPLIT_KEY)))
    return ImageSteps(place, is_first, kept, errors, draw)


def _within(values: Tensor, is_first: Tensor) -> Tensor:
    """Return sums as far as each entry, anew with each image; of counts, so nothing is rounded."""
    sums = values.cumsum(0)
    start = is_first.nonzero().flatten()
    return sums - (sums - values)[start][is_first.cumsum(0) - 1]


def accepted_counts(steps: ImageSteps, thresholds: int) -> tuple[Tensor, Tensor]:
    """Accepted predictions at each threshold, and wrong ones among them, (T,) each."""
    each = torch.stack([steps.kept, steps.wrong], 1)
    kept, wrong = _by_threshold(each, steps, thresholds).long().unbind(1)
    return kept, wrong


def images_at(steps: ImageSteps, place: int) -> tuple[Tensor, Tensor]:
    """Accepted predictions at one threshold of each image that has any, and wrong ones."""
    reached = steps.place <= place
    follows = torch.zeros_like(reached)
    follows[:-1] = reached[1:] & ~steps.is_first[1:]
    last = reached & ~follows
    return steps.kept[last], steps.wrong[last]


def log_evidence(steps: ImageSteps, thresholds: int, risk: float, most: float) -> Tensor:
    """Logarithm of the evidence against "at least `risk` is wrong", at each threshold, (T,).

        evidence = mean_j prod_i (1 + s_j w_i (risk n_i - k_i) / ((1 - risk) most))

    with n_i accepted predictions of image i, k_i of them wrong, w_i = min(1, most / n_i), and the
    shares s_j of the capital. Under sum_i w_i k_i / sum_i w_i n_i >= risk in expectation no factor
    is expected to be above 1: evidence of 1 / delta or more has a probability of at most delta,
    for any number of images and any dependence inside.
    """
    sums = _log_capitals(steps, thresholds, risk, most)
    return sums.logsumexp(1) - math.log(len(_BETS))


def evidence_bound(kept: Tensor, wrong: Tensor, level: float, most: float) -> float:
    """The risk above which the evidence of images at one threshold against it reaches 1 / level.

    It is below the true risk with a probability of at most `level`; 1 where nothing can be said.
    """
    low, high = 0.0, 1.0
    # The evidence falls as the risk grows, so halving finds the border.
    for _ in range(_HALVINGS):
        risk = (low + high) / 2
        sums = _log_bets(kept, wrong, risk, most).sum(0)
        enough = float(sums.logsumexp(0)) - math.log(len(_BETS)) >= -math.log(level)
        low, high = (low, risk) if enough else (risk, high)
    return high


def evidence_bounds(steps: ImageSteps, thresholds: int, level: float, most: float) -> Tensor:
    """`evidence_bound` at each threshold, (T,), on straight lines between 96 risks."""
    found = torch.ones(thresholds, dtype=torch.float64)
    enough, before, last = -math.log(level), None, 1.0
    for number in range(_RISKS - 1, 0, -1):
        risk = (number / _RISKS) ** 2
        evidence = log_evidence(steps, thresholds, risk, most)
        if before is not None:  # evidence falls with the risk
            share = ((before - enough) / (before - evidence)).clamp(0, 1)
            crosses = (before >= enough) & (evidence < enough)
            found = (last - share * (last - risk)).where(crosses, found)
        found = torch.where(evidence >= enough, risk, found)
        before, last = evidence, risk
        if not bool((evidence >= enough).any()):
            break
    return found


def _log_bets(kept: Tensor, wrong: Tensor, risk: float, most: float) -> Tensor:
    """Growth of the capital by each entry with each bet, (E, J)."""
    weight = (most / kept).clamp(max=1)
    gain = weight * (risk * kept - wrong) / ((1 - risk) * most)
    return torch.log1p(gain[:, None] * torch.tensor(_BETS, dtype=torch.float64))


def _log_capitals(steps: ImageSteps, thresholds: int, risk: float, most: float) -> Tensor:
    """Growth of the capital by all images with each bet at each threshold, (T, J)."""
    values = _log_bets(steps.kept, steps.wrong, risk, most)
    return _by_threshold(values, steps, thresholds)


def _by_threshold(values: Tensor, steps: ImageSteps, thresholds: int) -> Tensor:
    """Sums over all images at each threshold, (T, ...), of values as far as each step."""
    before = torch.zeros_like(values)
    before[1:] = values[:-1]
    before[steps.is_first] = 0
    sums = values.new_zeros(thresholds, *values.shape[1:])
    return sums.index_add_(0, steps.place, values - before).cumsum(0)


# 1, and 1 - 10^(-d) for d = 7, 6.997, ... 0: as fine near 1, where networks crowd, as elsewhere.
_STEPS = 300
THRESHOLDS = (1.0, *(1 - 10 ** (-step / _STEPS) for step in range(7 * _STEPS, -1, -1)))
MOST_PER_IMAGE = 10

# Rows that choose where the sequence begins: a fifth of up to 2,000, and of more a share that falls
# with the root of their number; of images half of that.
_CHOOSERS, _FULL_SHARE = 0.2, 2000
_SPLIT_KEY = 0x5CA1AB1E
# As how many rows the fitted curve counts beside those that were seen above a threshold.
_CURVE_ROWS = 300.0
_SLOPE_PRIOR = 0.1


@dataclass(frozen=True)
class RiskThreshold:
    """From which confidence on predictions may be accepted, and what that keeps.

    Args:
        target_risk: the error of what is accepted that was asked for.
        delta: probability, over draws of the data, that the error is larger even so.
        confidence: accept where the confidence is at least this.
        coverage: share of the predictions that is accepted.
        risk_bound: upper bound on the error of the accepted ones (Clopper-Pearson, or by bets on
            images), from the rows that tested this threshold, at most `target_risk`. None, as are
            the two before, where no threshold is found.
        accepted, errors: number of accepted predictions, and of wrong ones among them.
        images: number of images with accepted predictions; None where predictions are independent.
        most_per_image: as how many accepted predictions an image counts at most; None likewise.
    """

    target_risk: float
    delta: float
    confidence: float | None = None
    coverage: float | None = None
    risk_bound: float | None = None
    accepted: int = 0
    errors: int = 0
    images: int | None = None
    most_per_image: int | None = None

    def accept(self, confidence: Any) -> Any:
        """True where a prediction of this confidence may be accepted; array in, array out."""
        values = to_tensor("confidence", confidence)
        if self.confidence is None:
            return like_input(torch.zeros_like(values, dtype=torch.bool), confidence)
        return like_input(values.double() >= self.confidence, confidence)


def risk_threshold(
    confidence: Any,
    correct: Any,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> RiskThreshold:
    """The lowest confidence from which on at most `target_risk` of what is accepted is wrong.

        P( P(wrong | confidence >= threshold) > target_risk ) <= delta

    over draws of the data, whatever the model and its confidences, also for small files. Data to
    come must be drawn as these were, independently; where several predictions are of one image,
    name the `images`, and only these need to be independent.

    A fifth of the rows (of more than 2,000 a smaller share, of images a tenth) choose where the
    others are most likely to pass. The others then test thresholds from there down a fixed list,
    each with the whole delta: with n of them at or above t and k of those wrong, t passes where
    P(Binomial(n, target_risk) <= k) is at most delta. The first test that fails ends it (fixed
    sequence), so the first threshold that is too low passes with probability delta at most. A
    threshold above which nothing was seen fails.

    Who chooses is drawn by a generator that is seeded with a hash of the counts of right and wrong
    rows between thresholds; of images by a hash of their number. So the order of rows does not
    matter, and arrays and running totals give the same.

    Args:
        confidence: of each prediction, in [0, 1]; (N,).
        correct: whether it was right; (N,).
        target_risk: the error that what is accepted may have, in (0, 1).
        delta: how often, over draws of the data, the guarantee may fail; in (0, 1).
        thresholds: candidates, chosen without a look at these data, descending; all rows then
            test, and every candidate starts with an equal share of delta, which it hands on where
            it passes. None takes 2,102 from 1 to 0.
        images: name or number of the image that each prediction is of, (N,), or of any other unit
            with several dependent predictions, such as a patient. Each threshold is then tested by
            bets on whole images (`log_evidence`).
        most_per_image: as how many accepted predictions an image counts at most, so that no crowded
            image spoils the guarantee. 1 guarantees the mean error of images.

    Returns:
        A `RiskThreshold`, whose `confidence` is None where no threshold reaches the target.

    Example:
        >>> confidence = torch.linspace(0.5, 1, 2000)
        >>> found = risk_threshold(confidence, confidence > 0.6, target_risk=0.05)
        >>> round(found.confidence, 3), round(found.coverage, 3), round(found.risk_bound, 3)
        (0.586, 0.827, 0.045)

    Reference:
        Angelopoulos et al., Learn then Test, 2021, Sec. 2.3.2; split fixed sequence testing in
        Laufer-Goldshtein et al., ICLR 2023; a list of one's own: Wiens, Pharmaceutical Statistics
        2003; classifiers that reject: Geifman and El-Yaniv, NIPS 2017.
    """
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores))
    grid = _check_thresholds(thresholds)
    if images is not None:
        places = torch.tensor(grid, dtype=torch.float64)
        return risk_threshold_of_images(
            image_steps(image_numbers(images, len(scores)), scores, ~right, places),
            len(scores),
            target_risk=target_risk,
            delta=delta,
            thresholds=thresholds,
            most_per_image=most_per_image,
        )
    ordered, order = scores.sort(descending=True)
    wrong = torch.cat([right.new_zeros(1).long(), (~right)[order].long().cumsum(0)])
    kept = torch.searchsorted(-ordered, -torch.tensor(grid, dtype=torch.float64), right=True)
    return risk_threshold_of_counts(
        kept,
        wrong[kept],
        len(scores),
        target_risk=target_risk,
        delta=delta,
        thresholds=thresholds,
    )


def risk_threshold_of_counts(
    kept: Tensor,
    wrong: Tensor,
    total: int,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
) -> RiskThreshold:
    """`risk_threshold` from counts, so that files of any size need one number per threshold.

    Args:
        kept, wrong: predictions with at least each confidence, and wrong ones among them, (T,).
        total: number of predictions.
        target_risk, delta: as in `risk_threshold`.
        thresholds: those of the counts, descending; None is `THRESHOLDS`.
    """
    check_open_share("target_risk", target_risk)
    check_open_share("delta", delta)
    grid = _check_thresholds(thresholds)
    if len(kept) != len(grid) or len(wrong) != len(grid):
        raise ValueError(
            f"kept and wrong must have one number for each of the {len(grid)} thresholds, got "
            f"{len(kept)} and {len(wrong)}"
        )
    if thresholds is None:
        chosen = _drawn_rows(kept, wrong)
        tested = (kept - chosen[0], wrong - chosen[1])
        starts = _start_of_counts(*chosen, tested[0], target_risk, delta)
    else:
        tested, starts = (kept, wrong), dict.fromkeys(range(len(grid)), delta / len(grid))
    # Few predictions leave most thresholds with the counts of their neighbours.
    different, place_of = torch.unique_consecutive(tested[0], return_inverse=True)
    errors = wrong.new_zeros(len(different)).scatter_(0, place_of, tested[1])
    tails = binomial_tail(errors, different, target_risk)[place_of]
    place, level = _fallback(tails, starts)
    if place is None:
        return RiskThreshold(target_risk, delta)
    return RiskThreshold(
        target_risk,
        delta,
        confidence=grid[place],
        coverage=int(kept[place]) / total,
        risk_bound=float(clopper_pearson_upper(tested[1][place], tested[0][place], level)),
        accepted=int(kept[place]),
        errors=int(wrong[place]),
    )


def risk_threshold_of_images(
    steps: ImageSteps,
    total: int,
    *,
    target_risk: float,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> RiskThreshold:
    """`risk_threshold` from what each image has above each threshold."""
    check_open_share("target_risk", target_risk)
    check_open_share("delta", delta)
    grid = _check_thresholds(thresholds)
    check_integer("most_per_image", most_per_image, low=1)
    if thresholds is None:
        tested, starts = _start_of_images(steps, len(grid), target_risk, delta, most_per_image)
    else:
        tested, starts = steps, dict.fromkeys(range(len(grid)), delta / len(grid))
    evidence = log_evidence(tested, len(grid), target_risk, most_per_image)
    place, level = _fallback((-evidence).exp(), starts)
    if place is None:
        return RiskThreshold(target_risk, delta, most_per_image=most_per_image)
    kept, wrong = accepted_counts(steps, len(grid))
    each = images_at(tested, place)
    return RiskThreshold(
        target_risk,
        delta,
        confidence=grid[place],
        coverage=int(kept[place]) / total,
        risk_bound=evidence_bound(*each, level, most_per_image),
        accepted=int(kept[place]),
        errors=int(wrong[place]),
        images=len(images_at(steps, place)[0]),
        most_per_image=most_per_image,
    )


def _fallback(probabilities: Tensor, starts: dict[int, float]) -> tuple[int | None, float]:
    """The last place that passes, and the level it was tested at."""
    level, found, found_level = 0.0, None, 0.0
    for place, probability in enumerate(probabilities.tolist()):
        level += starts.get(place, 0.0)
        # A passed test keeps its level for the next; a failed one has spent it.
        if level > 0 and probability <= level:
            found, found_level = place, level
        else:
            level = 0.0
    return found, found_level


def _choosing_share(units: int) -> float:
    return _CHOOSERS * min(1.0, math.sqrt(_FULL_SHARE / max(units, 1)))


def _drawn_rows(kept: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of the rows that choose, and of wrong ones among them, at each threshold, (T,) each.

    Each row is drawn on its own, which counts suffice for: of n equal ones a binomial number is.
    """
    zero = kept.new_zeros(1)
    errors = wrong.diff(prepend=zero).cpu().numpy().astype("<i8")
    rights = kept.diff(prepend=zero).cpu().numpy().astype("<i8") - errors
    digest = hashlib.sha256(errors.tobytes() + rights.tobytes()).digest()
    draw = np.random.default_rng(int.from_bytes(digest[:8], "big")).binomial
    share = _choosing_share(int(kept[-1]))
    drawn = torch.from_numpy(draw(errors, share)).to(wrong)
    return (drawn + torch.from_numpy(draw(rights, share)).to(wrong)).cumsum(0), drawn.cumsum(0)


def _start_of_counts(
    kept: Tensor, wrong: Tensor, others: Tensor, risk: float, delta: float
) -> dict[int, float]:
    """All of delta at the threshold where the other rows are most likely to pass.

    Their tail is about exp(-n KL(error, risk)), with the error that was seen, drawn towards a
    logistic curve of the threshold's place.
    """
    n, k = kept.double(), wrong.double()
    if not float(n[-1]):
        return {}
    expected = _fitted_errors(n.diff(prepend=n.new_zeros(1)), k.diff(prepend=k.new_zeros(1)))
    expected = expected.cumsum(0) / n.clamp(min=1)
    error = (k + _CURVE_ROWS * expected) / (n + _CURVE_ROWS)
    gain = torch.xlogy(error, error / risk) + torch.xlogy(1 - error, (1 - error) / (1 - risk))
    score = (n * float(others[-1]) / n[-1] * gain).where((error < risk) & (n > 0), -torch.inf)
    return {int(score.argmax()): delta} if bool(score.isfinite().any()) else {}


def _fitted_errors(count: Tensor, wrong: Tensor) -> Tensor:
    """Expected errors between thresholds by a logistic curve of their place, (T,)."""
    place = torch.arange(len(count), dtype=torch.float64) / _STEPS
    place = place - (place * count).sum() / count.sum()
    level = float(torch.logit((wrong.sum() + 0.5) / (count.sum() + 1)))
    slope = 0.0
    for _ in range(30):  # Newton's steps, at most 2 long; a slope is held by a weak prior
        rate = torch.sigmoid(level + slope * place)
        rest, weight = wrong - count * rate, count * rate * (1 - rate)
        first, second = float(rest.sum()), float((rest * place).sum()) - slope * _SLOPE_PRIOR
        a, b = float(weight.sum()) + 1e-6, float((weight * place).sum())
        c = float((weight * place.square()).sum()) + _SLOPE_PRIOR
        newton = (c * first - b * second, a * second - b * first)
        steps = [max(-2.0, min(2.0, step / (a * c - b * b))) for step in newton]
        level, slope = level + steps[0], slope + steps[1]
        if max(map(abs, steps)) < 1e-8:
            break
    return count * torch.sigmoid(level + slope * place)


def _start_of_images(
    steps: ImageSteps, thresholds: int, risk: float, delta: float, most: float
) -> tuple[ImageSteps, dict[int, float]]:
    """Steps of the images that test; all of delta where most evidence is expected of them."""
    units = int(steps.is_first.sum())
    chooses = steps.draw < _choosing_share(units) / 2  # an image tells more than a row
    chosen, tested = (ImageSteps(*(x[side] for x in steps)) for side in (chooses, ~chooses))
    number = int(chosen.is_first.sum())
    if not number:
        return tested, {}
    growth = _log_capitals(chosen, thresholds, risk, most) * (units / number - 1)
    return tested, {int(growth.logsumexp(1).argmax()): delta}


def _check_thresholds(thresholds: Sequence[float] | None) -> Sequence[float]:
    if thresholds is None:
        return THRESHOLDS
    grid = [float(value) for value in thresholds]
    for place, value in enumerate(grid):
        if not math.isfinite(value):
            raise ValueError(f"thresholds must be finite, got {value} at position {place}")
    if not grid or any(later >= first for first, later in pairwise(grid)):
        raise ValueError("thresholds must be descending, each once, and at least one")
    return grid


def class_risk_thresholds(
    confidence: Any,
    correct: Any,
    *,
    predicted: Any,
    target_risk: float,
    delta: float = 0.05,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> dict[int, RiskThreshold]:
    """A threshold for each predicted class; all guarantees hold together with 1 - delta.

    A class that is often confused needs a higher threshold. `delta` is divided among the classes
    that occur.

    Args:
        predicted: the class that was predicted, (N,).
        target_risk: the error of what is accepted, in every class.
        delta: how often any of the guarantees may fail.
        confidence, correct, images, most_per_image: as in `risk_threshold`.

    Returns:
        The `RiskThreshold` of each class that occurs; `coverage` is the share of the class.
    """
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores))
    classes = to_labels("predicted", predicted, len(scores), 2**62)
    named = None if images is None else _names_of_images(images, len(scores))
    seen = classes.unique().tolist()
    return {
        number: risk_threshold(
            scores[classes == number],
            right[classes == number],
            target_risk=target_risk,
            delta=delta / len(seen),
            images=None if named is None else named[(classes == number).numpy()],
            most_per_image=most_per_image,
        )
        for number in seen
    }


class DecisionThresholds(NamedTuple):
    """Two thresholds: accept from the upper one on, escalate between them, reject below."""

    accept: RiskThreshold
    escalate: RiskThreshold

    def decide(self, confidence: Any) -> Any:
        """0 accept, 1 escalate, 2 reject, for each confidence; array in, array out."""
        values = to_tensor("confidence", confidence)
        kept = self.escalate.accept(values)
        return like_input(2 - kept.long() - (kept & self.accept.accept(values)).long(), confidence)


def decision_thresholds(
    confidence: Any,
    correct: Any,
    *,
    accept_risk: float,
    escalate_risk: float,
    delta: float = 0.05,
    images: Any = None,
    most_per_image: int = MOST_PER_IMAGE,
) -> DecisionThresholds:
    """Accept, escalate or reject: two thresholds whose guarantees hold together.

    Each has half of `delta`.

    Args:
        accept_risk: error of what is accepted.
        escalate_risk: error of what is accepted or escalated, at least `accept_risk`.
        delta: how often either guarantee may fail.
        confidence, correct, images, most_per_image: as in `risk_threshold`.

    Example:
        >>> confidence = torch.linspace(0.5, 1, 2000)
        >>> found = decision_thresholds(
        ...     confidence, confidence > 0.6, accept_risk=0.01, escalate_risk=0.1
        ... )
        >>> found.decide(torch.tensor([0.9, 0.58, 0.5]))
        tensor([0, 1, 2])
    """
    check_open_share("accept_risk", accept_risk)
    if not accept_risk <= escalate_risk:
        raise ValueError(
            f"escalate_risk must be at least accept_risk {accept_risk:g}, got {escalate_risk!r}: "
            "what is escalated is less sure than what is accepted"
        )
    upper, lower = (
        risk_threshold(
            confidence,
            correct,
            target_risk=risk,
            delta=delta / 2,
            images=images,
            most_per_image=most_per_image,
        )
        for risk in (accept_risk, escalate_risk)
    )
    return DecisionThresholds(upper, lower)


@dataclass(frozen=True)
class RejectOrAnswer:
    """One rule for familiar and strange inputs: answer, ask a person, or turn the input away.

    An input is turned away where the conformal p-value of its strangeness is at most `turned_away`;
    else it is answered from the confidence of `answer` on.

    Args:
        answer: the threshold on the confidence of inputs that are not turned away.
        turned_away: bound on the share of familiar inputs that are turned away.
        known: scores of the held-out familiar inputs, (n,).
    """

    answer: RiskThreshold
    turned_away: float
    known: Tensor

    def decide(self, confidence: Any, strangeness: Any) -> Any:
        """0 answer, 1 ask a person, 2 not my kind of input; array in, array out."""
        values = to_tensor("confidence", confidence)
        p_values = conformal_p_values(self.known, to_tensor("strangeness", strangeness))
        if p_values.shape != values.shape:
            raise ValueError(
                f"strangeness must have a score for each of {tuple(values.shape)} confidences, "
                f"got {tuple(p_values.shape)}"
            )
        asked = 1 - self.answer.accept(values).long()
        is_strange = p_values.to(values.device) <= self.turned_away
        return like_input(asked.masked_fill(is_strange, 2), confidence)


def reject_or_answer(
    confidence: Any,
    correct: Any,
    strangeness: Any,
    *,
    answer_risk: float,
    turned_away: float = 0.05,
    delta: float = 0.05,
) -> RejectOrAnswer:
    """Fit one rule that answers, asks a person, or says that an input is not of its kind.

    Half of the held-out inputs say what is familiar; the rest, less what that turns away, sets the
    threshold. The answers to *familiar* inputs are wrong in at most `answer_risk`, with probability
    1 - `delta`. Nothing is guaranteed of strange inputs, of which none are needed.

    Args:
        confidence: of held-out predictions of familiar inputs, in random order, (N,).
        correct: whether they are right, (N,).
        strangeness: a score of these inputs that was not fitted on them, higher is stranger, (N,).
        answer_risk: error that answers may have, in (0, 1).
        turned_away: share of familiar inputs that may be turned away, in (0, 1).
        delta: how often, over draws of the data, the first guarantee may fail.

    Example:
        >>> confidence = torch.linspace(0.5, 1, 4000)[torch.randperm(4000)]
        >>> rule = reject_or_answer(
        ...     confidence, confidence > 0.6, 1 - confidence, answer_risk=0.05, turned_away=0.01
        ... )
        >>> rule.decide(torch.tensor([0.9, 0.51, 0.9]), torch.tensor([0.1, 0.3, 7.0]))
        tensor([0, 1, 2])
    """
    check_open_share("turned_away", turned_away)
    scores = to_scores("confidence", confidence)
    right = to_outcomes("correct", correct, len(scores))
    strange = to_finite_scores("strangeness", strangeness)
    if len(strange) != len(scores):
        raise ValueError(f"strangeness must be ({len(scores)},), got {tuple(strange.shape)}")
    known, rest = strange[::2], slice(1, None, 2)
    fewest = math.ceil(1 / turned_away) - 1
    if len(known) < fewest:
        raise ValueError(
            f"turned_away={turned_away:g} needs {2 * fewest} held-out inputs or more, got "
            f"{len(scores)}: with fewer no input can be turned away"
        )
    stays = conformal_p_values(known, strange[rest]) > turned_away
    answer = risk_threshold(
        scores[rest][stays], right[rest][stays], target_risk=answer_risk, delta=delta
    )
    return RejectOrAnswer(answer, turned_away, known)
