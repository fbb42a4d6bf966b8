"""Accuracy, likelihood and Brier score; risk against coverage; quality of prediction sets."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import (
    by_convention,
    check_choice,
    check_integer,
    check_number,
    to_labels,
    to_tensor,
)
from sfumato._core.statistics import row_weights
from sfumato.metrics.calibration import Reduction, class_bins
from sfumato.metrics.groups import (
    Groups,
    as_tensors,
    check_known,
    check_shapes,
    divisor,
    entries_that_count,
    flat_rows,
    group_by_value,
    mean_of,
    of_predictions,
    score,
)


@by_convention
def accuracy(
    probs: Tensor,
    target: Tensor,
    *,
    top_k: int = 1,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Share of samples whose label is among the `top_k` most probable classes.

    Equal probabilities rank in the order of their class index, as `argmax` has it.

    Args:
        top_k: how many classes may be named.
        probs, target, sample_weight, class_dim, ignore_index, validate: as in `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
        >>> accuracy(probs, torch.tensor([0, 2]))
        tensor(0.5000, dtype=torch.float64)
    """
    check_integer("top_k", top_k, low=1)
    rows, labels = flat_rows(probs, target, class_dim, ignore_index, validate)
    weight = row_weights(sample_weight, target, ignore_index)
    return mean_of(label_in_top(rows, labels, top_k), weight)


def label_in_top(rows: Tensor, labels: Tensor, top_k: int) -> Tensor:
    """True where fewer than `top_k` classes rank before the label, (M,)."""
    own = rows.gather(1, labels.unsqueeze(1))
    # Ties rank as argmax ranks them, or top-1 would differ from accuracy.
    earlier = torch.arange(rows.shape[1], device=rows.device) < labels.unsqueeze(1)
    before = (rows > own) | ((rows == own) & earlier)
    return before.sum(1) < top_k


@by_convention
def negative_log_likelihood(
    probs: Tensor,
    target: Tensor,
    *,
    floor: float = 0.0,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean of -log p_y; infinite where a label was given probability 0.

    Args:
        floor: smallest probability that is taken; 0 leaves the definition as it is.
        probs, target, sample_weight, class_dim, ignore_index, validate: as in `accuracy`.

    Example:
        >>> negative_log_likelihood(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        tensor(1.0397, dtype=torch.float64)
    """
    check_number("floor", floor, low=0.0, high=1.0)
    samples = score(probs, target, class_dim, ignore_index, validate, sample_weight=sample_weight)
    likelihood = samples.log_likelihood.double()
    if floor:
        likelihood = likelihood.clamp(min=math.log(floor))
    return -mean_of(likelihood, samples.weight)


@by_convention
def brier_score(
    probs: Tensor,
    target: Tensor,
    *,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean over samples of sum_c (p_c - 1[y = c])^2, in [0, 2]. Args as in `accuracy`.

    Example:
        >>> brier_score(torch.tensor([[0.5, 0.5], [0.75, 0.25]]), torch.tensor([0, 1]))
        tensor(0.8125, dtype=torch.float64)

    Differs: some libraries divide by the number of classes; the papers here don't.
    """
    rows, labels = flat_rows(probs, target, class_dim, ignore_index, validate)
    return mean_of(squared_errors(rows, labels), row_weights(sample_weight, target, ignore_index))


def squared_errors(rows: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of each row from the one-hot label, (M,), float64."""
    own = rows.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    return rows.double().square().sum(1) - 2 * own + 1


class BrierDecomposition(NamedTuple):
    """Parts of a Brier score: score = calibration + refinement + within_bins.

    Args:
        score: the Brier score itself.
        calibration: weighted squared gap between probability and frequency; 0 is calibrated.
        refinement: what remains for a calibrated model, = uncertainty - resolution.
        resolution: how far the frequencies of the bins are from the base rates.
        uncertainty: variance of the labels, the same for all models.
        within_bins: what the bins hide: the spread of probabilities inside a bin.
    """

    score: Tensor
    calibration: Tensor
    refinement: Tensor
    resolution: Tensor
    uncertainty: Tensor
    within_bins: Tensor


@by_convention
def brier_decomposition(
    probs: Tensor,
    target: Tensor,
    *,
    num_bins: int = 15,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> BrierDecomposition:
    """Brier score split into calibration and refinement, class by class over equal-width bins.

    With p_bc and f_bc the mean probability and the frequency of class c in bin b, n_bc its size:
    calibration = sum_bc n_bc/N (p_bc - f_bc)^2, refinement = sum_bc n_bc/N f_bc (1 - f_bc).

    Args as in `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2]]).repeat(10, 1)
        >>> parts = brier_decomposition(probs, torch.tensor([0] * 6 + [1] * 4))
        >>> [round(float(part), 4) for part in parts[:3]]
        [0.56, 0.08, 0.48]

    Reference: Murphy (1973); the within-bin term is that of Stephenson et al. (2008).
    """
    check_integer("num_bins", num_bins, low=1)
    rows, labels = flat_rows(probs, target, class_dim, ignore_index, validate)
    weight = row_weights(sample_weight, target, ignore_index)
    count, hits, mass = class_bins(rows, labels, num_bins, weight).unbind(-1)  # (C, B)
    # 0 predictions: every part is NaN, not an error.
    total, safe = float(count[0].sum()) or torch.nan, divisor(count)
    frequency = hits / safe
    rate = hits.sum(1, keepdim=True) / total
    brier = mean_of(squared_errors(rows, labels), weight)
    calibration = (count * ((mass - hits) / safe).square()).sum() / total
    refinement = (count * frequency * (1 - frequency)).sum() / total
    resolution = (count * (frequency - rate).square()).sum() / total
    uncertainty = (rate * (1 - rate)).sum()
    within = brier - calibration - refinement
    return BrierDecomposition(brier, calibration, refinement, resolution, uncertainty, within)


Score = Literal["nll", "brier"]
SCORES: tuple[Score, ...] = ("nll", "brier")

# 33 temperatures from 0.1 to 10, the middle one exactly 1.
LOG_TEMPERATURES = tuple(math.log(10) * step / 16 for step in range(-16, 17))
_NO_CHANGE = len(LOG_TEMPERATURES) // 2
_CHUNK = 32_000  # entries at a time: they stay in the cache
_LARGEST = 1e300


class ScoreSplit(NamedTuple):
    """Parts of a score: score = calibration + refinement.

    Args:
        score: the mean NLL or Brier score.
        calibration: what the best single temperature would take away, at least 0.
        refinement: what remains: how little the predictions tell right from wrong.
        temperature: that temperature, between 0.1 and 10.
    """

    score: Tensor
    calibration: Tensor
    refinement: Tensor
    temperature: Tensor


@by_convention
def score_split(
    probs: Tensor,
    target: Tensor,
    *,
    score: Score = "nll",
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> ScoreSplit:
    """Split a proper score into calibration and refinement by temperature scaling.

    refinement = min_T mean score(softmax(log p / T)), calibration = score - refinement. A proper
    score is the sum of both for the best of all recalibrations; one temperature corrects most and
    overfits nothing. Its minimum is that of a parabola through the best of 33 and its neighbours.

    Args:
        score: "nll" or "brier".
        probs, target, sample_weight, class_dim, ignore_index, validate: as in `accuracy`.

    Returns:
        Scalars in float64. Where a label has probability 0, NLL and its refinement are infinite and
        its calibration is NaN.

    Example:
        >>> probs = torch.tensor([[0.99, 0.01]]).repeat(100, 1)
        >>> parts = score_split(probs, torch.tensor([0] * 75 + [1] * 25))
        >>> [round(float(part), 2) for part in parts[:3]]
        [1.16, 0.6, 0.56]

    Reference: Berta et al., Rethinking Early Stopping: Refine, Then Calibrate (arXiv 2501.19195);
    Broecker, Reliability, Sufficiency, and the Decomposition of Proper Scores (2009).
    """
    check_choice("score", score, SCORES)
    rows, labels = flat_rows(probs, target, class_dim, ignore_index, validate)
    weight = row_weights(sample_weight, target, ignore_index)
    losses = sum_losses(rows, labels, weight=weight)[0, SCORES.index(score)]
    return split_of_losses(losses / (len(labels) if weight is None else weight.sum()))


def sum_losses(
    rows: Tensor,
    labels: Tensor,
    *,
    are_logits: bool = False,
    weight: Tensor | None = None,
    unit: Tensor | None = None,
    num_units: int = 1,
) -> Tensor:
    """NLL and Brier score after each temperature, summed up over units, (U, 2, 33), float64.

    Args:
        rows: probabilities or logits, (M, C).
        labels: class indices, (M,).
        are_logits: what the rows are.
        weight: how often each row counts, (M,); None where all count once.
        unit: what each row belongs to, (M,); None puts all into one.
        num_units: number of units U.

    Losses that are infinite count as 1e300, so that they can be left out of a resample.
    """
    shape = (num_units, 2, len(LOG_TEMPERATURES))
    sums = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        scores = rows[part] if are_logits else rows[part].log()
        losses = _losses(scores, labels[part]).clamp_(max=_LARGEST)  # (2, 33, m)
        if weight is not None:
            losses *= weight[part]
        if unit is None:
            sums[0] += losses.sum(2)
        else:
            sums.index_add_(0, unit[part], losses.permute(2, 0, 1))
    return sums


def _losses(scores: Tensor, labels: Tensor) -> Tensor:
    """NLL and Brier score of softmax(scores / T) for each temperature, (2, 33, m).

    Classes first, and one exponential for both scores: with p^b and its sum S, the NLL is
    log S - b log p_y and the sum of squares that of p^2b over S^2.
    """
    planes = scores.T.contiguous()
    # exp of the largest is then 1 at every temperature: nothing overflows.
    planes = planes - planes.amax(0)
    own = planes.gather(0, labels.unsqueeze(0)).double()  # (1, m)
    sums, squares = planes.new_empty(2, len(LOG_TEMPERATURES), len(labels))
    inverse = [math.exp(-each) for each in LOG_TEMPERATURES]
    for place, factor in enumerate(inverse):
        powers = torch.mul(planes, factor).exp_()
        torch.sum(powers, 0, out=sums[place])
        torch.sum(powers.square_(), 0, out=squares[place])
    sums, squares = sums.double(), squares.double()
    label = own * own.new_tensor(inverse).unsqueeze(1) - sums.log()
    return torch.stack([-label, squares / sums.square() - 2 * label.exp() + 1])


def split_of_losses(losses: Tensor) -> ScoreSplit:
    """The split of mean losses after each temperature, (..., 33)."""
    losses = losses.where(~(losses > _LARGEST / 1e30), torch.inf)
    total = losses[..., _NO_CHANGE]
    grid = torch.tensor(LOG_TEMPERATURES, dtype=torch.float64, device=losses.device)
    # Away from the ends, where the parabola has a neighbour on both sides.
    best = losses.nan_to_num(nan=torch.inf).argmin(-1).clamp(1, len(grid) - 2)
    low, middle, high = (
        losses.gather(-1, (best + shift).unsqueeze(-1)).squeeze(-1) for shift in (-1, 0, 1)
    )
    bend = low - 2 * middle + high
    move = ((low - high) / (2 * bend)).where(bend > 0, 0.0).clamp(-1, 1)
    lowest = middle + move * (high - low) / 2 + move.square() * bend / 2
    # The parabola may dip below 0, which no loss does.
    refinement = torch.minimum(lowest.where(lowest.isfinite(), middle).clamp(min=0.0), total)
    log_temperature = grid[best] + move * (grid[1] - grid[0])
    return ScoreSplit(total, total - refinement, refinement, log_temperature.exp())


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, from the highest threshold to the lowest."""

    coverage: Tensor  # (T,) share of predictions with confidence >= threshold
    risk: Tensor  # (T,) share of these that are wrong
    threshold: Tensor  # (T,)


@of_predictions(group_by_value)
def risk_coverage(groups: Groups) -> RiskCoverage:
    """Error rate of the predictions that are kept, for every threshold on the confidence.

    Args as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> risk_coverage(probs, torch.tensor([0, 0, 1, 1])).risk
        tensor([0.0000, 0.0000, 0.3333, 0.2500], dtype=torch.float64)

    Reference: Geifman & El-Yaniv, Selective Classification for Deep Neural Networks (NIPS 2017).
    """
    kept, wrong = groups.count.flip(-1).cumsum(-1), groups.wrong.flip(-1).cumsum(-1)
    total = groups.count.sum(-1, keepdim=True)
    return RiskCoverage(kept / total, wrong / kept, groups.upper.flip(-1))


@of_predictions(group_by_value)
def aurc(groups: Groups) -> Tensor:
    """Area under the risk-coverage curve: mean over k of the error of the k most confident.

    AURC = 1/N sum_{k=1}^N risk_k. Equal confidences count as their average over all orders.
    Args as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> aurc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.1458, dtype=torch.float64)

    Reference: Geifman et al., Bias-Reduced Uncertainty Estimation (ICLR 2019).
    """
    # m predictions with w wrong, after n0 more confident ones with w0 wrong, add
    # sum_{k = n0+1}^{n0+m} (w0 + (k - n0) w/m) / k = w + (w0 - n0 w/m) (H(n0+m) - H(n0)),
    # H the harmonic numbers.
    count, wrong = groups.count.flip(-1), groups.wrong.flip(-1)
    reached = count.cumsum(-1)
    before, wrong_before = reached - count, wrong.cumsum(-1) - wrong
    share = wrong / divisor(count)
    harmonic = torch.digamma(reached + 1) - torch.digamma(before + 1)
    areas = wrong + (wrong_before - before * share) * harmonic
    return areas.sum(-1) / groups.count.sum(-1)


@of_predictions(group_by_value)
def excess_aurc(groups: Groups) -> Tensor:
    """AURC less the least that any ranking of the same predictions could reach.

    Args as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> excess_aurc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.0833, dtype=torch.float64)

    Reference: Geifman et al., Bias-Reduced Uncertainty Estimation (ICLR 2019).

    Differs: the best area is the exact finite sum, not its limit r + (1 - r) ln(1 - r).
    """
    total, correct, wrong = (x.sum(-1) for x in (groups.count, groups.correct, groups.wrong))
    harmonic = torch.digamma(total + 1) - torch.digamma(correct + 1)
    return aurc.of_groups(groups) - (wrong - correct * harmonic) / total


@of_predictions(group_by_value)
def augrc(groups: Groups) -> Tensor:
    """Area under the generalised risk-coverage curve: the mean risk of a silent failure.

    The generalised risk of a threshold is the share of all predictions that is accepted and wrong;
    AUGRC is its mean over the coverage. In AURC the few most confident predictions weigh most; here
    every mistake weighs by how many predictions are less confident:
    AUGRC = (1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2, between 0 and 1/2. Equal confidences count
    as their average over all orders. Args as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> augrc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.0938, dtype=torch.float64)

    Reference: Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems (NeurIPS 2024, arXiv 2407.01032).
    """
    count, wrong = groups.count.flip(-1), groups.wrong.flip(-1)
    middle = wrong.cumsum(-1) - wrong / 2
    return (count * middle).sum(-1) / groups.count.sum(-1).square()


@by_convention
def accuracy_at_coverage(
    probs: Tensor,
    target: Tensor,
    *,
    coverage: float = 0.8,
    sample_weight: Any = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Accuracy of the most confident share of the predictions.

    Keeps ceil(coverage N) predictions, coverage in (0, 1]; of equal confidences at the border, a
    proportional share. Other Args as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> accuracy_at_coverage(probs, torch.tensor([0, 0, 1, 1]), coverage=0.5)
        tensor(1., dtype=torch.float64)
    """
    check_number("coverage", coverage, low=0.0, high=1.0, open_low=True)
    samples = score(probs, target, class_dim, ignore_index, validate, sample_weight=sample_weight)
    return accuracy_at_coverage_of_groups(group_by_value(samples), coverage)


def accuracy_at_coverage_of_groups(groups: Groups, coverage: float) -> Tensor:
    """`accuracy_at_coverage` of grouped predictions, (...)."""
    if not groups.count.shape[-1]:
        return groups.count.new_full(groups.count.shape[:-1], torch.nan)
    count, correct = groups.count.flip(-1), groups.correct.flip(-1)
    reached, hits = count.cumsum(-1), correct.cumsum(-1)
    total = reached[..., -1:]
    # In floating point 0.07 * 100 is a little above 7; the slack keeps it from becoming 8.
    kept = torch.ceil(total * (coverage - 1e-12)).minimum(total)
    place = torch.searchsorted(reached, kept).clamp(max=count.shape[-1] - 1)
    missing = kept - (reached - count).gather(-1, place)
    share = (correct / divisor(count)).gather(-1, place)
    accepted = (hits - correct).gather(-1, place) + missing * share
    return (accepted / kept).squeeze(-1).where(reached[..., -1] > 0, torch.nan)


@of_predictions(group_by_value)
def confidence_auroc(groups: Groups) -> Tensor:
    """Probability that a correct prediction is more confident than a wrong one.

    The area under the ROC curve of confidence as a detector of mistakes; ties count one half.
    0.5 is no better than chance. NaN where no prediction, or every one, is wrong. Args as in
    `risk_coverage`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> confidence_auroc(probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.6667, dtype=torch.float64)
    """
    below = groups.wrong.cumsum(-1) - groups.wrong / 2
    return (groups.correct * below).sum(-1) / (groups.correct.sum(-1) * groups.wrong.sum(-1))


@by_convention
def set_coverage(sets: Any, target: Any) -> Tensor:
    """Share of the samples whose set holds the label.

    Args:
        sets: whether each class is in the set of each sample; boolean, (N, C).
        target: class indices, (N,).

    Example:
        >>> sets = torch.tensor([[True, True, False], [False, False, True]])
        >>> set_coverage(sets, torch.tensor([0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    held, _ = _held(sets, target)
    return held.mean()


@by_convention
def class_coverage(sets: Any, target: Any) -> Tensor:
    """`set_coverage` of the samples of each class, (C,); NaN for a class without samples.

    Sets that hold 90 % of all labels can hold 60 % of those of a rare class. Args as in
    `set_coverage`.
    """
    held, labels = _held(sets, target)
    size = to_tensor("sets", sets).shape[1]
    sums = torch.bincount(labels, weights=held, minlength=size)
    return sums / torch.bincount(labels, minlength=size)


@by_convention
def mean_set_size(sets: Any) -> Tensor:
    """Mean number of classes in a set.

    Args:
        sets: whether each class is in the set of each sample; boolean, (N, C).

    Example:
        >>> mean_set_size(torch.tensor([[True, True, False], [False, False, True]]))
        tensor(1.5000, dtype=torch.float64)
    """
    return _check_sets(sets).double().sum(1).mean()


@by_convention
def set_size_counts(sets: Any) -> Tensor:
    """Number of sets with 0, 1, ... C classes, (C + 1,). Args as in `mean_set_size`."""
    members = _check_sets(sets)
    return torch.bincount(members.sum(1), minlength=members.shape[1] + 1)


def _held(sets: Any, target: Any) -> tuple[Tensor, Tensor]:
    members = _check_sets(sets)
    labels = to_labels("target", target, len(members), members.shape[1]).to(members.device)
    return members.gather(1, labels.unsqueeze(1)).squeeze(1).double(), labels


def _check_sets(sets: Any) -> Tensor:
    members = to_tensor("sets", sets)
    if members.ndim != 2 or members.dtype != torch.bool:
        raise ValueError(
            f"sets must be boolean (N, C), got {members.dtype} {tuple(members.shape)}. "
            "ConformalPredictor.predict gives them."
        )
    return members


@by_convention
def mean_iou(
    preds: Tensor,
    target: Tensor,
    *,
    reduction: Reduction = "mean",
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Mean over classes of intersection over union, TP / (TP + FP + FN).

    Classes that occur neither in the labels nor in the predictions are left out of the mean.

    Args:
        preds: logits or probabilities, (N, C, H, W) or (N, C); only the largest of each counts.
        target: class indices, (N, H, W) or (N,).
        reduction: "mean", or "none" for one value per class, (C,); NaN for absent classes.
        class_dim: dimension of the classes.
        ignore_index: label of pixels that count for nothing.
        validate: check that labels are in range and predictions hold no NaN.

    Example:
        >>> preds = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> mean_iou(preds, torch.tensor([0, 0, 1, 1]))
        tensor(0.5833, dtype=torch.float64)
    """
    check_choice("reduction", reduction, ("mean", "none"))
    matrix = confusion_matrix(
        preds, target, class_dim=class_dim, ignore_index=ignore_index, validate=validate
    )
    return iou_of_matrix(matrix, reduction)


@by_convention
def confusion_matrix(
    preds: Tensor,
    target: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> Tensor:
    """Counts of (label, predicted class), (C, C), int64. Args as in `mean_iou`.

    Example:
        >>> confusion_matrix(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
        tensor([[1, 0],
                [1, 0]])
    """
    preds, target = as_tensors(preds, target, class_dim)
    check_shapes("preds", preds, target)
    num_classes = preds.shape[1]
    valid = entries_that_count(target, num_classes, ignore_index=ignore_index, validate=validate)
    if validate:
        check_known("preds", preds, valid=valid)
    pairs = target.long() * num_classes + preds.argmax(1)
    pairs = pairs.flatten() if valid is None else pairs[valid]
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def iou_of_matrix(matrix: Tensor, reduction: Reduction) -> Tensor:
    counts = matrix.double()
    overlap = counts.diagonal()
    iou = overlap / (counts.sum(0) + counts.sum(1) - overlap)
    return iou.nanmean() if reduction == "mean" else iou


class ThresholdRates(NamedTuple):
    """Rates at a confidence threshold; for 0.9 these are Acc-90, Unc-90, Freq-90 and IoU-90.

    Args:
        accuracy: share of correct predictions among the confident ones.
        unconfident: share of unconfident predictions among the wrong ones.
        frequency: share of confident predictions.
        iou: mean intersection over union of the confident predictions.
    """

    accuracy: Tensor
    unconfident: Tensor
    frequency: Tensor
    iou: Tensor


@by_convention
def threshold_rates(
    probs: Tensor,
    target: Tensor,
    *,
    threshold: float = 0.9,
    class_dim: int = 1,
    ignore_index: int = -100,
    validate: bool = True,
) -> ThresholdRates:
    """Acc-90 = p(correct | p > 0.9), Unc-90 = p(p <= 0.9 | wrong), Freq-90 = p(p > 0.9).

    A share of nothing (no confident prediction, no wrong one) is NaN.

    Args:
        threshold: a prediction is confident above it.
        probs, target, class_dim, ignore_index, validate: as in `accuracy`.

    Example:
        >>> probs = torch.tensor([[0.95, 0.05], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> rates = threshold_rates(probs, torch.tensor([0, 0, 1, 1]))
        >>> [float(rate) for rate in rates[:3]]
        [1.0, 1.0, 0.25]

    Reference: the code released with Park & Kim, spatial smoothing (ICML 2022), reports them.

    Differs: its IoU leaves out classes that are predicted but are never a label; here they are 0.
    """
    check_number("threshold", threshold, low=0.0, high=1.0)
    probs, target = as_tensors(probs, target, class_dim)
    samples = score(probs, target, ignore_index=ignore_index, validate=validate)
    confident = samples.confidence > threshold
    correct, sure = samples.correct.double(), confident.double()
    kept = target.long().masked_fill(probs.amax(1) <= threshold, ignore_index)
    return ThresholdRates(
        accuracy=correct[confident].mean(),
        unconfident=1 - sure[~samples.correct].mean(),
        frequency=sure.mean(),
        iou=mean_iou(probs, kept, ignore_index=ignore_index, validate=False),
    )
