"""Judge predictions: over- or underconfident, where, how sure that is, and from where to accept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from sfumato._core.statistics import bin_index, clopper_pearson_upper
from sfumato._core.text import Bar
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.compare import compare_with_first
from sfumato.auditing.files import AnyPredictions, ConfidenceFile, PredictionFile
from sfumato.auditing.totals import (
    NUM_BINS,
    By,
    Direction,
    Gap,
    ImageSample,
    Model,
    Outcomes,
    Period,
    Tallies,
    blocks_of_units,
    date_text,
    design_effect,
    evaluate_confidences,
    gap_of,
    gaps_of,
    model_in_memory,
    outcomes,
)
from sfumato.metrics import (
    class_coverage,
    compare_predictions,
    evaluate_predictions,
    mean_set_size,
    ood_metrics,
    predictive_entropy,
    set_coverage,
)
from sfumato.metrics.calibration import binomial_deviation, reliability_of_groups
from sfumato.metrics.detection import errors_of_detections
from sfumato.metrics.groups import (
    Groups,
    cell_edges,
    check_distribution,
    counts_of_sums,
    group_by_value,
    width_bins,
)
from sfumato.predictions import (
    CalibrationAlarm,
    ConformalPredictor,
    TemperatureScaler,
    UniformMixture,
    energy_score,
    generalised_entropy_score,
    maximum_logit_score,
    maximum_probability_score,
)
from sfumato.predictions.decisions import (
    MOST_PER_IMAGE,
    THRESHOLDS,
    RiskThreshold,
    risk_threshold_of_counts,
    risk_threshold_of_images,
)
from sfumato.predictions.monitoring import expected_accuracy_of_sums

Verdict = Literal[Direction, "right on average, wrong in places", "no miscalibration found"]
ScalingVerdict = Literal["better", "worse", "inconclusive", "not resampled"]


class Judgement(TypedDict, total=False):
    """Conclusions of an audit about one model: plain data, as audit.json holds it.

    Without labels there are `expected` and `counts` in place of metrics and verdict.
    """

    name: str
    samples: int
    images: int | None
    most_per_image: int | None
    is_histogram: bool
    images_sampled: int | None
    metrics: dict[str, Any]
    ece_floor: float
    gap: Gap
    verdict: Verdict
    honest_share: float  # of models whose every confidence is true, with such an ECE or more
    worst_range: Any  # a dict, or None
    by_class: list[Any]
    by_group: list[Any]
    by_time: list[Any]
    period: str | None
    is_dated: bool
    reliability: dict[str, list[float]]
    curve: dict[str, list[float]]
    thresholds: Any  # a dict, or None
    mistakes: list[dict[str, Any]]
    zero_labels: int
    skipped: dict[str, int]
    reachable_risk: float | None
    can_calibrate: bool
    sets: Any  # a dict, or None
    drift: Any  # a dict, or None
    strange: Any  # a dict, or None
    sampled: Any  # a dict, or None
    scaled: dict[str, Any]
    expected: dict[str, Any]
    counts: list[float]
    source: list[str]  # how the command named the model, and the options that read it
    reading: dict[str, str]
    layout: dict[str, str]


class Found(TypedDict, total=False):
    """An audit of several models, the later ones compared with the first."""

    models: list[Judgement]
    comparisons: list[dict[str, Any]]
    is_labelled: bool


@dataclass(frozen=True)
class Target:
    """The guarantee that a threshold must give."""

    risk: float  # error that what is accepted may have
    delta: float = 0.05  # how often, over draws of the data, all guarantees together may fail
    escalate_risk: float | None = None  # of what is not rejected; None for one threshold
    per_class: bool = False  # a threshold for each predicted class, too
    most_per_image: int = MOST_PER_IMAGE  # as which an image's accepted detections count at most

    def risks(self) -> list[float]:
        """Risks of one threshold or two; each has an equal share of delta."""
        return [self.risk] if self.escalate_risk is None else [self.risk, self.escalate_risk]


def thresholds_of(tallies: Tallies, target: Target) -> dict[str, Any]:
    """One threshold or two for all predictions, and one for each class where that is asked."""
    share = target.delta / len(target.risks())
    accept, *more = (_plain(_choose(tallies, risk, share, target)) for risk in target.risks())
    return {
        "delta": target.delta,
        "accept": accept,
        "escalate": more[0] if more else None,
        "classes": _class_thresholds(tallies, target) if target.per_class else None,
    }


def _choose(tallies: Tallies, risk: float, delta: float, target: Target) -> RiskThreshold:
    """Over images where several predictions are of one; else over cells, of rows in memory too."""
    if tallies.images.is_clustered:
        return _of_images(tallies.images, None, risk, delta, target)[0]
    # Cells are as fixed beforehand as thresholds are, so that the guarantee holds as well when
    # each is moved up to where the next cell begins. The moved one is reported: exactly what is
    # counted has at least that confidence.
    edges = cell_edges(tallies.cells, tallies.sums.device)
    cell = torch.searchsorted(edges, torch.tensor(THRESHOLDS, dtype=torch.float64))
    wrong, right = counts_of_sums(tallies.sums)
    kept, errors = (
        torch.cat([each.flip(0).cumsum(0).flip(0), each.new_zeros(1)]).long()[cell]
        for each in (wrong + right, wrong)
    )
    found = risk_threshold_of_counts(kept, errors, tallies.count, target_risk=risk, delta=delta)
    if found.confidence is None:
        return found
    place = THRESHOLDS.index(found.confidence)
    return replace(found, confidence=float(tallies.lowest()[cell[place]]))


def _of_images(
    sample: ImageSample, predicted: int | None, risk: float, delta: float, target: Target
) -> tuple[RiskThreshold, int]:
    """A threshold, and among how many predictions it was chosen."""
    most = sample.most(target.most_per_image)
    steps, total = sample.steps(predicted)
    found = risk_threshold_of_images(
        steps, total, target_risk=risk, delta=delta, most_per_image=most
    )
    return found, total


def _class_thresholds(tallies: Tallies, target: Target) -> list[dict[str, Any]] | None:
    """Choose one for each class that was predicted; all guarantees hold together."""
    sample, found = tallies.images, []
    if sample.is_clustered:
        seen = sample.parts[4].unique().tolist() if sample.classes else []
        for place in sorted(seen, key=lambda place: sample.classes[place]):
            share = target.delta / len(seen)
            chosen, total = _of_images(sample, place, target.risk, share, target)
            found.append({"name": sample.classes[place], "count": total, **_plain(chosen)})
        return found or None
    classes = tallies.class_counts.kept()
    for name, (kept, wrong) in classes.items():
        total, share = int(kept[-1]), target.delta / len(classes)
        chosen = risk_threshold_of_counts(kept, wrong, total, target_risk=target.risk, delta=share)
        found.append({"name": name, "count": total, **_plain(chosen)})
    return found or None


def _plain(threshold: RiskThreshold) -> dict[str, Any]:
    found = {key: value for key, value in asdict(threshold).items() if key != "delta"}
    return {**found, "risk": threshold.errors / threshold.accepted if threshold.accepted else None}


POINTS = 600  # of the risk-coverage curve
_COARSE = 960
_DRAWS = 500
LEVEL = 0.05  # of models whose every confidence is true, this many may be accused


def judge(
    model: Model, *, resamples: int, generator: torch.Generator, target: Target | None = None
) -> Judgement:
    """Metrics, verdict, reliability bins with what chance would show, curve, every breakdown."""
    tallies, file, images = model.tallies, model.file, model.tallies.images
    if not tallies.count and file is not None and file.strange is not None:
        raise PredictionFileError(
            f"{model.name}: 'in_distribution' is false in every row, and calibration is that of "
            "familiar inputs: add some, or leave the column out"
        )
    if not tallies.count:
        raise PredictionFileError(
            f"{model.name}: holds no prediction that counts: --ignore-index is the label of "
            "every one"
        )
    is_single = tallies.count < 2 or (images.is_clustered and images.size < 2)
    if is_single or (file is not None and len(file) < 2):
        resamples = 0  # one prediction, or one image, can't be drawn anew
    metrics = _metrics(model, resamples, generator)
    # Rows in memory are grouped by each confidence, sums by fine cells, which have a lowest one.
    rows = tallies.rows
    groups = tallies.groups() if rows is None else group_by_value(rows.samples())
    lowest = tallies.lowest_of_groups() if rows is None else None
    chosen = None if target is None else thresholds_of(tallies, target)
    shown = () if chosen is None else (chosen["accept"], chosen["escalate"])
    promised = [each["confidence"] for each in shown if each and each["confidence"] is not None]
    most = MOST_PER_IMAGE if target is None else target.most_per_image
    verdict, share, honest = verdict_of(tallies.whole(), groups, generator, _DRAWS)
    bins = reliability_of_groups(groups, NUM_BINS)
    low, high = honest.band()
    found: Judgement = {
        **_facts(model.name, tallies, gap_of),  # type: ignore[typeddict-item]
        # Bounds cap the predictions of an image: of detections, not of pixels.
        "most_per_image": most if images.is_clustered and not images.pixels else None,
        "is_histogram": not tallies.batches,
        "images_sampled": None if images.is_whole else images.size,
        "metrics": metrics,
        "ece_floor": _floor(groups),
        "gap": gap_of("all", tallies.whole()),
        "verdict": verdict,
        "honest_share": share,
        "worst_range": _worst_range(bins.edges, bins.counts, bins.confidences - bins.accuracies),
        "by_class": gaps_of(tallies.by_class.parts),
        "by_group": gaps_of(tallies.by_group.parts),
        "reliability": {
            "counts": bins.counts.tolist(),
            "confidence": bins.confidences.tolist(),
            "accuracy": bins.accuracies.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
        "curve": curve(groups, promised, tallies.images, most, lowest),
        "thresholds": chosen,
        "mistakes": [mistake._asdict() for mistake in tallies.mistakes],
        "zero_labels": tallies.zeros,
        "reachable_risk": _reachable_risk(tallies, target, chosen),
    }
    if file is not None and rows is not None and file.strange is not None:
        found["strange"] = strange_of(file, file.strange, rows.correct, chosen, resamples)
    return found | _of_rows(model, found, resamples, generator)


_WEIGHTS = 200_000_000  # that are drawn for the intervals of one score

Score = Callable[[Tensor], Tensor]
_OF_PROBABILITIES: dict[str, Score] = {
    "max_probability": maximum_probability_score,
    "entropy": lambda logits: predictive_entropy(logits.softmax(1)),
    "generalised_entropy": generalised_entropy_score,
}
_OF_LOGITS: dict[str, Score] = {"max_logit": maximum_logit_score, "energy": energy_score}


def strange_of(
    file: AnyPredictions,
    strange: Tensor,
    correct: Tensor,
    thresholds: Mapping[str, Any] | None,
    resamples: int,
) -> dict[str, Any] | None:
    """Measure how well each score tells strange inputs, and how many of them are accepted.

    None where the file names none. Scores are those that its columns give.
    """
    if not len(strange):
        return None
    scores: dict[str, Score] = {"max_probability": lambda confidence: 1 - confidence}
    if isinstance(file, ConfidenceFile):
        pair = (file.confidence, strange)
    else:
        scores = _OF_PROBABILITIES if file.logits is None else _OF_PROBABILITIES | _OF_LOGITS
        pair = (file.predictions.double(), strange.double())
        if file.logits is None:
            pair = (_logarithm(pair[0]), _logarithm(pair[1]))
    count = min(resamples, max(100, _WEIGHTS // (len(pair[0]) + len(strange))))
    draws = count if resamples and min(map(len, pair)) > 1 else 0
    measured = {
        name: ood_metrics(
            score(pair[0]),
            score(pair[1]),
            correct=correct,
            resamples=draws,
            generator=torch.Generator().manual_seed(0),
        )
        for name, score in scores.items()
    }
    accept = None if thresholds is None else thresholds["accept"]["confidence"]
    sure = strange if strange.ndim == 1 else pair[1].softmax(1).amax(1)
    accepted = None if accept is None else float((sure >= accept).double().mean())
    return {"samples": len(strange), "accepted": accepted, "scores": measured}


def _logarithm(probs: Tensor) -> Tensor:
    """Logits of probabilities, finite where one is 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def _facts(
    name: str, tallies: Tallies, judge_part: Callable[[str, Tensor, int], Mapping[str, Any]]
) -> dict[str, Any]:
    """State what holds with labels and without: counts, and each period of time."""
    periods = tallies.by_time.named()
    return {
        "name": name,
        "samples": tallies.count,
        "images": tallies.images.images if tallies.images.is_clustered else None,
        "by_time": [
            {**judge_part(each.name, each.sums, len(periods)), "start": each.start, "end": each.end}
            for each in periods
        ],
        "period": tallies.by_time.unit,
        "is_dated": tallies.by_time.is_dated,
        "skipped": dict(tallies.skipped),
    }


def _metrics(model: Model, resamples: int, generator: torch.Generator) -> dict[str, Any]:
    """Exact ones of rows in memory; else what the totals give."""
    tallies, file = model.tallies, model.file
    if file is None or tallies.rows is None:
        found: dict[str, Any] = dict(tallies.measure())
        found |= tallies.intervals(resamples, generator) if resamples else {}
        return found | tallies.detections.errors(resamples)
    found = _evaluate(file, tallies.rows, resamples, generator)
    return found | detection_errors(file, tallies.rows, resamples)


def _of_rows(
    model: Model, judged: Judgement, resamples: int, generator: torch.Generator
) -> Judgement:
    """Measure what totals can't on single rows: on all, or on those that the totals sampled."""
    rows = model.file if model.file is not None else model.tallies.sample.rows(model.name)
    found: Judgement = {"can_calibrate": _can_calibrate(model)}
    if isinstance(rows, PredictionFile):
        found["sets"] = sets_of(rows)
    if model.file is not None and model.tallies.rows is not None:
        found["drift"] = drift_of(model.file, model.tallies.rows, model.tallies.by_time.named())
    elif isinstance(rows, PredictionFile):
        measured = _evaluate(rows, outcomes(rows), resamples if len(rows) > 1 else 0, generator)
        names = [key for key in measured if key not in judged["metrics"]]
        judged["metrics"] |= {key: measured[key] for key in names}
        is_part = len(rows) < model.tallies.count
        found["sampled"] = {"rows": len(rows), "metrics": names} if is_part else None
    return found


def _can_calibrate(model: Model) -> bool:
    """True where there are single rows: of all classes, or confidences; no masks, no histogram."""
    if model.file is not None:
        return isinstance(model.file, ConfidenceFile) or _is_flat(model.file)
    return bool(model.tallies.batches) and not model.tallies.images.pixels


def _is_flat(file: AnyPredictions | None) -> bool:
    """True if it holds (N, C): a calibrator is for single labels, not for segmentation masks."""
    return isinstance(file, PredictionFile) and file.predictions.ndim == 2


def verdict_of(
    whole: Tensor, groups: Groups, generator: torch.Generator, draws: int
) -> tuple[Verdict, float, Honest]:
    """Conclude from the tests of gap and ECE; together they accuse 5 % of honest models.

    Holm's procedure: one of the two has to reach 2.5 %; the other one then has 5 %. Gives also how
    often a model whose every confidence is true would show such an ECE, and its draws.
    """
    honest = honest_draws(groups, generator, draws)
    # Images that err together scatter more than independent predictions.
    error = honest.error(groups) / math.sqrt(design_effect(whole))
    share = honest.share(error)
    is_off = share <= LEVEL / 2
    gap = gap_of("all", whole, tests=1 if is_off else 2)
    if any(math.isnan(end) for end in gap["interval"]):  # one prediction, or one image
        return "inconclusive", share, honest
    if gap["direction"] != "inconclusive":
        return gap["direction"], share, honest
    if is_off:
        return "right on average, wrong in places", share, honest
    return "no miscalibration found", share, honest


@dataclass(frozen=True)
class Honest:
    """Draws of a perfectly calibrated model: what it shows by chance."""

    right: Tensor  # (R, B), correct predictions in each bin
    mass: Tensor  # (B,), summed confidence
    size: Tensor  # (B,), predictions

    def error(self, groups: Groups) -> float:
        """The ECE that the model itself shows."""
        right = width_bins(groups, NUM_BINS).correct
        return float((self.mass - right).abs().sum() / self.size.sum())

    def share(self, error: float) -> float:
        """Share of calibrated models that would show this ECE or more."""
        errors = (self.mass - self.right).abs().sum(1) / self.size.sum()
        return (1 + int((errors >= error).sum())) / (1 + len(errors))

    def band(self) -> tuple[Tensor, Tensor]:
        """Between which accuracies 95 % of its bins would lie, (B,) each; NaN where empty."""
        accuracy = self.right / self.size
        ends = torch.quantile(accuracy.nan_to_num(), torch.tensor([0.025, 0.975]).double(), dim=0)
        low, high = (end.where(self.size > 0, torch.nan) for end in ends)
        return low, high


def honest_draws(groups: Groups, generator: torch.Generator, draws: int) -> Honest:
    """Labels drawn anew from the confidences themselves.

    The number of right predictions in a narrow cell of confidences is binomial with their mean.
    """
    cell = bin_index(groups.upper, _COARSE) if len(groups.upper) > 2 * _COARSE else None
    count, mass = (
        each if cell is None else each.new_zeros(_COARSE).index_add_(0, cell, each)
        for each in (groups.count, groups.confidence)
    )
    edges = (torch.arange(_COARSE, dtype=torch.float64) + 1) / _COARSE
    upper = groups.upper if cell is None else edges
    sure = (mass / count.clamp(min=1)).clamp(0, 1)
    right = torch.binomial(
        count.expand(draws, -1).contiguous(),
        sure.expand(draws, -1).contiguous(),
        generator=generator,
    )
    place = bin_index(upper, NUM_BINS)
    bins = width_bins(groups, NUM_BINS)
    drawn = right.new_zeros(draws, NUM_BINS).index_add_(1, place, right)
    return Honest(drawn, bins.confidence, bins.count)


def curve(
    groups: Groups,
    also: Sequence[float] = (),
    images: ImageSample | None = None,
    most_per_image: int = MOST_PER_IMAGE,
    lowest: Tensor | None = None,
) -> dict[str, list[float]]:
    """Risk against coverage at up to 600 thresholds and those of `also`, from all kept to few.

    `kept` and `wrong` count the predictions with at least the confidence `threshold`; `bound` is
    the largest error of theirs that 19 of 20 test sets leave possible, for one threshold that was
    chosen beforehand: over images where several predictions are of one. `lowest` is the smallest
    confidence of each group, where a group has several.
    """
    kept, wrong = (x.flip(0).cumsum(0).flip(0) for x in (groups.count, groups.wrong))
    places = torch.arange(len(kept))
    if len(places) > POINTS:
        steps = torch.linspace(0, 1, POINTS // 2, dtype=torch.float64)
        by_mass = torch.searchsorted(groups.count.cumsum(0), steps * groups.count.sum())
        by_place = (steps * (len(kept) - 1)).long()
        places = torch.cat([by_mass.clamp(max=len(kept) - 1), by_place]).unique()
    threshold = groups.upper.double() if lowest is None else lowest
    promised = torch.tensor(also, dtype=torch.float64)
    more = torch.searchsorted(threshold, promised).clamp(max=len(kept) - 1)
    # A promised threshold lies between confidences: it keeps what the next one above it keeps.
    threshold = threshold.scatter(0, more, torch.minimum(promised, threshold[more]))
    places = torch.cat([places, more]).unique()
    kept, wrong, threshold = kept[places], wrong[places], threshold[places]
    if images is not None and images.is_clustered:
        bound = images.bounds(threshold, 0.05, most_per_image)
    else:
        bound = clopper_pearson_upper(wrong, kept, 0.05)
    columns = {"threshold": threshold, "kept": kept, "wrong": wrong, "bound": bound}
    return {name: column.tolist() for name, column in columns.items()}


def _floor(groups: Groups) -> float:
    """The ECE that these confidences would have on average if every one of them were true."""
    bins = width_bins(groups, NUM_BINS)
    deviation = binomial_deviation(bins.count, bins.confidence / bins.count.clamp(min=1))
    return float(deviation.sum() / bins.count.sum())


def _worst_range(edges: Tensor, counts: Tensor, gaps: Tensor) -> dict[str, float] | None:
    """The bin that contributes most to the calibration error."""
    weight = (gaps.nan_to_num() * counts).abs()
    if not float(weight.sum()):
        return None
    place = int(weight.argmax())
    return {
        "low": float(edges[place]),
        "high": float(edges[place + 1]),
        "gap": float(gaps[place]),
        "share": float(counts[place] / counts.sum()),
    }


ALARM_LEVEL = 0.05
TOLERANCE = 0.02
_FEWEST = 100  # predictions of the first periods, whose gap is the level


def drift_of(
    file: AnyPredictions, found: Outcomes, periods: Sequence[Period]
) -> dict[str, Any] | None:
    """When alarms on the gap between confidence and accuracy would have gone off.

    One is for a change: the gap leaves that of the first periods, which hold a fifth of the
    predictions and 100 of them at least. The other is for a gap of any cause; where the first
    periods have it already, it is there from the start. Each has its share of `level`, so that 5 %
    of all calibrated models, and of all steady ones, raise a false alarm of any kind.

    None where the file has no times, or several predictions are of one image: alarms keep their
    guarantee for independent ones.
    """
    if file.times is None or found.unit is not None:
        return None
    order = file.times.argsort(stable=True)
    sure, right = found.confidence[order], found.correct[order]
    any_gap = CalibrationAlarm(ALARM_LEVEL / 3, tolerance=TOLERANCE).update(sure, right)
    ends = torch.tensor([float(each.sums[0]) for each in periods]).cumsum(0)
    enough = min(max(len(sure) / 5, _FEWEST), len(sure))
    last = int((ends < enough).sum())
    size = int(ends[last])
    change = CalibrationAlarm(
        2 * ALARM_LEVEL / 3, tolerance=TOLERANCE, reference=(sure[:size], right[:size])
    ).update(sure[size:], right[size:])
    low, high = change.reference_interval

    def at(count: int | None) -> str | float | None:
        time = None if count is None else float(file.times[order[count - 1]])  # type: ignore[index]
        return date_text(time) if time is not None and file.is_dated else time

    after = None if change.raised_at is None else size + change.raised_at
    return {
        "alarm": at(after),
        "after": after,
        "reference": {
            "name": periods[0].name,
            "until": periods[last].name,
            "count": size,
            "gap": float((sure[:size].double() - right[:size].double()).mean()),
            "interval": [low, high],
        },
        "miscalibration": {"alarm": at(any_gap.raised_at), "after": any_gap.raised_at},
        "from_start": low > TOLERANCE or high < -TOLERANCE,
        "level": ALARM_LEVEL,
        "tolerance": TOLERANCE,
    }


def detection_errors(file: AnyPredictions, found: Outcomes, resamples: int) -> dict[str, Any]:
    """D-ECE by confidence with 20 bins, and by confidence, position and size; of boxes only.

    Whole images are resampled where the file says which detection is of which; else detections,
    beyond 2,000 in random blocks.
    """
    if not isinstance(file, ConfidenceFile) or file.boxes is None:
        return {}
    block, blocks = blocks_of_units(len(file), found.unit)
    errors = errors_of_detections(
        file.confidence, file.correct, file.boxes, block, blocks, resamples
    )
    return {name: value for name, value in errors.items() if value is not None}


JUDGED = ("ece", "nll")


def after_scaling(
    file: PredictionFile,
    held_out: PredictionFile,
    *,
    resamples: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Metrics after a temperature fitted on `held_out`, whether that helps, and warnings."""
    ours, theirs = file.predictions.shape[1], held_out.predictions.shape[1]
    if ours != theirs:
        raise PredictionFileError(
            f"{held_out.name} has {theirs} classes, {file.name} has {ours}: is it the validation "
            "file of another model?"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if held_out.probs is not None:
                check_distribution("probs", held_out.probs)
            logits, held_out_logits, uniform = shared_logits(file, held_out)
            scaler = TemperatureScaler().fit(
                logits=held_out_logits, target=held_out.labels, any_logits=True
            )
        except ValueError as error:
            raise PredictionFileError(f"{held_out.name}: {error}") from None
    messages = [str(each.message) for each in caught]
    if torch.equal(held_out.predictions, file.predictions):
        messages.append(
            "the validation file holds the audited predictions themselves: what scaling shows "
            "on them is better than it will be on new ones"
        )
    settings: dict[str, Any] = {
        "num_bins": NUM_BINS,
        "resamples": resamples,
        "generator": generator,
        "validate": False,
    }
    scaled = scaler(logits)
    metrics = evaluate_predictions(logits=scaled, target=file.labels, **settings)
    differences = {}
    if resamples:
        pair = (file.probabilities, scaled.double().softmax(1))
        found = compare_predictions(probs=pair, target=file.labels, **settings)
        differences = {name: found[name]._asdict() for name in JUDGED}
    return {
        "temperature": scaler.temperature,
        "uniform": uniform,
        "metrics": metrics,
        "differences": differences,
        "verdict": _scaling_verdict(differences),
        "warnings": messages,
    }


def shared_logits(
    file: PredictionFile, held_out: PredictionFile
) -> tuple[Tensor, Tensor, float | None]:
    """Logits of both files, or logarithms of probabilities, mixed with uniform ones where any is 0.

    A share that is fitted where nothing is 0 would only take the temperature's work.
    """
    if file.logits is not None and held_out.logits is not None:
        return file.logits, held_out.logits, None
    ours, theirs = file.probabilities, held_out.probabilities
    if bool((ours > 0).all()) and bool((theirs > 0).all()):
        return ours.log(), theirs.log(), None
    mixture = UniformMixture(free_temperature=True).fit(probs=theirs, target=held_out.labels)
    return mixture(ours), mixture(theirs), mixture.amount


def _scaling_verdict(differences: dict[str, dict[str, float]]) -> ScalingVerdict:
    found = differences.values()
    if not found:
        return "not resampled"
    if any(each["low"] > 0 for each in found):
        return "worse"
    return "better" if any(each["high"] < 0 for each in found) else "inconclusive"


_ENTRIES = 4_000_000  # that are sorted; beyond, rows are drawn
_FEWEST_ROWS = 200
_LONGEST = 12  # sizes that have a bar of their own
_METHODS: tuple[tuple[str, str, bool], ...] = (
    ("THR", "thr", False),
    ("THR per class", "thr", True),
    ("APS", "aps", False),
    ("RAPS", "raps", False),
)


def sets_of(file: PredictionFile, *, alpha: float = 0.1, seed: int = 0) -> dict[str, Any] | None:
    """Coverage and sizes of THR, APS and RAPS sets, as the model is and after a temperature.

    None for masks, and for fewer than 200 predictions, of which a half says too little.
    """
    count = len(file)
    if file.predictions.ndim != 2 or count < _FEWEST_ROWS:
        return None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = order[: max(_FEWEST_ROWS, _ENTRIES // file.predictions.shape[1])]
    fitted, shown = (file.chosen(half) for half in order.tensor_split(2))
    temperature, before, after = _scaled(fitted, shown)
    rows, by_class = [], []
    for form, (ours, theirs) in (("", before), (", scaled", after)):
        for name, method, per_class in _METHODS:
            predictor = ConformalPredictor(method, alpha, per_class)  # type: ignore[arg-type]
            sets = predictor.fit(probs=ours, target=fitted.labels).predict(theirs)
            rows.append({"name": f"{name}{form}", **_measured(sets, shown.labels)})
            if method == "thr" and not form:
                by_class.append({"name": name, **_by_class(sets, shown.labels, file.classes)})
    return {"alpha": alpha, "temperature": temperature, "rows": rows, "by_class": by_class}


Pair = tuple[Tensor, Tensor]


def _scaled(fitted: PredictionFile, shown: PredictionFile) -> tuple[float, Pair, Pair]:
    """The temperature of the first half; probabilities of both halves, without and with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the fit warns of is said where scaling is advised
        theirs, ours, _ = shared_logits(shown, fitted)
        scaler = TemperatureScaler().fit(logits=ours, target=fitted.labels, any_logits=True)
    plain = (fitted.probabilities, shown.probabilities)
    warm = (scaler(ours).double().softmax(1), scaler(theirs).double().softmax(1))
    return scaler.temperature, plain, warm


def _measured(sets: Tensor, labels: Tensor) -> dict[str, Any]:
    sizes = sets.sum(1)
    shares = torch.bincount(sizes.clamp(max=_LONGEST), minlength=_LONGEST + 1) / len(sizes)
    by_class = class_coverage(sets, labels)
    return {
        "coverage": float(set_coverage(sets, labels)),
        "mean_size": float(mean_set_size(sets)),
        "worst_class": float(by_class[~by_class.isnan()].min()),
        "single": float((sizes == 1).double().mean()),
        "empty": float((sizes == 0).double().mean()),
        "sizes": shares[: int(sizes.max().clamp(max=_LONGEST)) + 1].tolist(),
    }


def _by_class(sets: Tensor, labels: Tensor, classes: Sequence[str] | None) -> dict[str, Any]:
    """Measure how often sets hold the label of each class that occurs, with a 95 % interval."""
    count = torch.bincount(labels, minlength=sets.shape[1])
    held = torch.bincount(labels[sets[torch.arange(len(labels)), labels]], minlength=len(count))
    seen = count.nonzero().flatten()
    count, held = count[seen], held[seen]
    columns = {
        "coverage": held / count,
        "low": 1 - clopper_pearson_upper(count - held, count, 0.025),
        "high": clopper_pearson_upper(held, count, 0.025),
    }
    names = [classes[number] if classes else str(number) for number in seen.tolist()]
    rounded = {name: column.double().round(decimals=4) for name, column in columns.items()}
    return {"classes": names, **{name: column.tolist() for name, column in rounded.items()}}


_LEVEL = 0.95


def expect(models: Sequence[Model], by: By | None = None) -> Found:
    """The accuracy to expect of each model, if its confidences are right; plain data."""
    for model in models:
        model.tallies.by_time.by = by
    found = [_expected(model.name, model.tallies) for model in models]
    return {"models": found, "comparisons": [], "is_labelled": False}


def _expected(name: str, tallies: Tallies) -> Judgement:
    groups = tallies.groups()
    # The least accurate part first; intervals hold for all parts together (95 %).
    named = {"by_class": tallies.by_class.parts, "by_group": tallies.by_group.parts}
    rows = {
        key: [_part(each, sums, len(parts)) for each, sums in parts.items()]
        for key, parts in named.items()
    }
    return {
        **_facts(name, tallies, _part),  # type: ignore[typeddict-item]
        "expected": _part("all", tallies.overall, 1),
        "counts": width_bins(groups, NUM_BINS).count.tolist(),
        "curve": _expected_curve(groups, tallies.lowest_of_groups()),
        **{key: sorted(parts, key=lambda part: part["accuracy"]) for key, parts in rows.items()},
    }


def _part(name: str, sums: Tensor, tests: int) -> dict[str, Any]:
    # Nothing counts as right, so that the squared excess of confidence is its square.
    count, _, total, squares, *_ = sums.tolist()
    found = expected_accuracy_of_sums(count, total, squares, level=1 - (1 - _LEVEL) / tests)
    return {
        "name": name,
        "count": int(count),
        "accuracy": found.accuracy,
        "interval": [found.low, found.high],
    }


def _expected_curve(groups: Groups, lowest: Tensor) -> dict[str, list[float]]:
    """Kept and expected wrong ones at up to 600 thresholds, and the error that 95 % stay below."""
    found = curve(groups, lowest=lowest)
    mean = (groups.confidence / groups.count).clamp(0, 1)
    doubt, spread = groups.count * (1 - mean), groups.count * mean * (1 - mean)
    wrong, variance = (each.flip(0).cumsum(0).flip(0) for each in (doubt, spread))
    total = groups.count.flip(0).cumsum(0).flip(0)
    kept = torch.tensor(found["kept"], dtype=torch.float64)
    place = torch.searchsorted(-total, -kept)  # totals fall with the threshold
    half = NormalDist().inv_cdf(_LEVEL) * variance[place].sqrt()
    bound = ((wrong[place] + half) / kept).clamp(max=1)
    return {**found, "wrong": wrong[place].tolist(), "bound": bound.tolist()}


_RISKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # that are advised


def audit(
    files: Sequence[AnyPredictions | Model],
    validation: Sequence[AnyPredictions | Model] = (),
    *,
    resamples: int = 1000,
    seed: int = 0,
    target: Target | None = None,
    bar: Bar | None = None,
    by: By | None = None,
) -> Found:
    """Judge each model, and compare the others with the first on the same samples.

    Where held-out predictions of the same models are given, in the same order, each model is also
    shown after temperature scaling fitted on them. No resamples: no intervals, no comparisons.
    Periods of time are days, weeks or months where `by` says so.
    """
    bar = bar or Bar()
    if not files:
        raise ValueError("files must hold at least one file of predictions")
    if validation and len(validation) != len(files):
        raise PredictionFileError(
            f"{len(validation)} validation files for {len(files)} files of predictions: "
            "give one for each, in the same order, or none"
        )
    generator = torch.Generator().manual_seed(seed)
    models = []
    for number, file in enumerate(files):
        per_class = target is not None and target.per_class
        model = file if isinstance(file, Model) else model_in_memory(file, per_class=per_class)
        model.tallies.by_time.by = by
        judged = judge(model, resamples=resamples, generator=generator, target=target)
        bar.advance(file.name)
        if validation:
            judged["scaled"] = after_scaling(
                _with_classes(file),
                _with_classes(validation[number]),
                resamples=resamples if judged["samples"] > 1 else 0,
                generator=generator,
            )
            bar.advance(f"{file.name}, scaled")
        models.append(judged)
    others = files[1:] if resamples else ()
    compared = [compare_with_first(files[0], each, resamples, generator, bar) for each in others]
    return {"models": models, "comparisons": [each for each in compared if each is not None]}


def audit_steps(files: int, validation: int) -> int:
    """Number of times that `audit` moves its bar."""
    return files + validation + files - 1


def _reachable_risk(
    tallies: Tallies, target: Target | None, chosen: Mapping[str, Any] | None
) -> float | None:
    """The least usual error that a threshold keeps, to be advised where none was found yet."""
    if chosen is not None and chosen["accept"]["confidence"] is not None:
        return None
    wanted = target or Target(0.0)
    larger = (risk for risk in _RISKS if risk > wanted.risk)
    return next(
        (
            risk
            for risk in larger
            if _choose(tallies, risk, wanted.delta, wanted).confidence is not None
        ),
        None,
    )


def _evaluate(
    file: AnyPredictions, found: Outcomes, resamples: int, generator: torch.Generator
) -> dict[str, Any]:
    """Exact metrics of rows in memory."""
    settings: dict[str, Any] = {"resamples": resamples, "generator": generator}
    if isinstance(file, ConfidenceFile):
        return evaluate_confidences(found.samples(), unit=found.unit, **settings)
    settings |= {"num_bins": NUM_BINS, "ignore_index": file.void}
    try:  # the file was read, and its logits looked at
        return evaluate_predictions(
            logits=file.logits, target=file.labels, probs=file.probs, any_logits=True, **settings
        )
    except ValueError as error:
        raise PredictionFileError(f"{file.name}: {error}") from None


def _with_classes(file: AnyPredictions | Model) -> PredictionFile:
    rows = file.tallies.sample.rows(file.name) if isinstance(file, Model) else file
    if not isinstance(rows, PredictionFile) or not _is_flat(rows):
        raise PredictionFileError(
            f"{file.name}: temperature scaling needs 'logits' or 'probs' (N, C) of all classes; "
            "leave --validation out"
        )
    return rows
