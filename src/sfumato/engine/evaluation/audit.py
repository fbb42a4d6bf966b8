"""Can these predictions be trusted? A verdict on saved predictions, with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_comparisons import compare_with_first
from sfumato.engine.evaluation.audit_confidences import evaluate_confidences
from sfumato.engine.evaluation.audit_extras import detection_errors, drift_of
from sfumato.engine.evaluation.audit_judgement import honest_draws, judge
from sfumato.engine.evaluation.audit_outcomes import Outcomes, outcomes
from sfumato.engine.evaluation.audit_scaling import after_scaling
from sfumato.engine.evaluation.audit_sets import sets_of
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Summed, Tallies, Wanted
from sfumato.engine.evaluation.audit_thresholds import (
    Target,
    thresholds_of_classes,
    thresholds_of_images,
    thresholds_of_rows,
    thresholds_of_sums,
)
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import evaluate_predictions
from sfumato.metrics.histogram import group_by_value
from sfumato.metrics.scored_samples import Samples
from sfumato.predictions.risk_threshold import MOST_PER_IMAGE


def audit(
    files: Sequence[AnyPredictions | Summed],
    validation: Sequence[AnyPredictions | Summed] = (),
    *,
    resamples: int = 1000,
    seed: int = 0,
    target: Target | None = None,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Judge each file, and compare the others with the first on the same samples.

    Args:
        files: the predictions to judge: rows in memory, or the sums of larger ones.
        validation: held-out predictions of the same models, in the same order; where given, each
            file is also shown after temperature scaling fitted on its validation file.
        resamples: bootstrap resamples of the intervals; 0 leaves intervals and comparisons out, and
            a file of one prediction has none.
        seed: of the resamples.
        target: error that accepted predictions may have; adds thresholds.
        bar: moved by one for each file, `audit_steps` in all.

    Returns:
        Plain data: `models`, a list of judgements, and `comparisons` with the first model.
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
        settings: dict[str, Any] = {"resamples": resamples, "generator": generator}
        if isinstance(file, Summed):
            judged = judge_tallies(file.name, file.tallies, target=target, **settings)
        else:
            judged = judge_file(file, target=target, **settings)
        bar.advance(file.name)
        if validation:
            judged["scaled"] = after_scaling(
                _with_classes(file),
                _with_classes(validation[number]),
                num_bins=NUM_BINS,
                resamples=resamples if judged["samples"] > 1 else 0,
                generator=generator,
            )
            bar.advance(f"{file.name}, scaled")
        models.append(judged)
    others = files[1:] if resamples else ()
    compared = [compare_with_first(files[0], each, resamples, generator, bar) for each in others]
    return {"models": models, "comparisons": [each for each in compared if each is not None]}


def audit_steps(files: int, validation: int) -> int:
    """How often `audit` moves its bar."""
    return files + validation + files - 1


def judge_file(
    file: AnyPredictions,
    *,
    resamples: int,
    generator: torch.Generator,
    target: Target | None = None,
) -> dict[str, Any]:
    """One file's metrics, verdict, reliability bins, curve, and every breakdown."""
    found = outcomes(file)
    _check_count(file.name, len(found.confidence))
    if found.unit is not None and int(found.unit.max()) == 0:
        resamples = 0  # one image can't be resampled either
    metrics = _evaluate(file, found, _possible(file, resamples), generator)
    by_class = target is not None and target.per_class
    tallies = Tallies(Wanted(per_class=by_class, all_images=True))
    tallies.add(file)
    chosen = None
    if target is not None and tallies.images.is_clustered:
        chosen = thresholds_of_images(tallies.images, target)
    elif target is not None:
        chosen = thresholds_of_rows(found, file.classes, target)
    groups = group_by_value(found.samples())
    most = MOST_PER_IMAGE if target is None else target.most_per_image
    judged = judge(file.name, tallies, groups, metrics, generator, chosen, most)
    if isinstance(file, PredictionFile):
        judged["sets"] = sets_of(file)
    judged["metrics"] |= detection_errors(file, _possible(file, resamples))
    judged["drift"] = drift_of(file, found)
    return judged


def judge_tallies(
    name: str,
    tallies: Tallies,
    *,
    resamples: int,
    generator: torch.Generator,
    target: Target | None = None,
) -> dict[str, Any]:
    """The same of predictions that are known by their sums, and by a sample of their rows."""
    _check_count(name, tallies.count)
    if tallies.images.is_clustered and tallies.images.size < 2:
        resamples = 0
    metrics: dict[str, Any] = dict(tallies.measure())
    if resamples and tallies.count > 1:
        metrics |= tallies.intervals(resamples, generator)
    metrics |= tallies.detections.errors(resamples if tallies.count > 1 else 0)
    groups = tallies.groups()
    chosen = None if target is None else _thresholds(tallies, target)
    most = MOST_PER_IMAGE if target is None else target.most_per_image
    lowest = tallies.lowest_of_groups()
    judged = judge(name, tallies, groups, metrics, generator, chosen, most, lowest)
    sample = tallies.sample.rows(name)
    if sample is not None:
        found = _evaluate(sample, outcomes(sample), _possible(sample, resamples), generator)
        names = [key for key in found if key not in metrics]
        judged["metrics"] |= {key: found[key] for key in names}
        judged["sets"] = sets_of(sample)
        is_part = len(sample) < tallies.count
        judged["sampled"] = {"rows": len(sample), "metrics": names} if is_part else None
    return judged


def _thresholds(tallies: Tallies, target: Target) -> dict[str, Any]:
    if tallies.images.is_clustered:
        return thresholds_of_images(tallies.images, target)
    chosen = thresholds_of_sums(tallies, target)
    if target.per_class:
        chosen["classes"] = thresholds_of_classes(tallies.class_counts, target) or None
    return chosen


def honest_share(
    confidence: Tensor, error: float, generator: torch.Generator, draws: int = 200
) -> float:
    """How often a model whose every confidence is true would show this ECE or more, by chance."""
    known = confidence.double().clamp(0, 1)
    samples = Samples(known, torch.zeros_like(known, dtype=torch.bool), known)
    return honest_draws(group_by_value(samples), generator, draws).share(error)


def _evaluate(
    file: AnyPredictions, found: Outcomes, resamples: int, generator: torch.Generator
) -> dict[str, Any]:
    if isinstance(file, ConfidenceFile):
        return evaluate_confidences(
            found.samples(),
            num_bins=NUM_BINS,
            resamples=resamples,
            generator=generator,
            unit=found.unit,
        )
    try:
        return evaluate_predictions(
            file.labels,
            logits=file.logits,
            probs=file.probs,
            num_bins=NUM_BINS,
            resamples=resamples,
            ignore_index=file.void,
            generator=generator,
        )
    except ValueError as error:
        raise PredictionFileError(f"{file.name}: {error}") from None


def _with_classes(file: AnyPredictions | Summed) -> PredictionFile:
    rows = file.tallies.sample.rows(file.name) if isinstance(file, Summed) else file
    if rows is None or isinstance(rows, ConfidenceFile) or rows.predictions.ndim > 2:
        raise PredictionFileError(
            f"{file.name}: temperature scaling needs 'logits' or 'probs' (N, C) of all classes; "
            "leave --validation out"
        )
    return rows


def _check_count(name: str, count: int) -> None:
    if not count:
        raise PredictionFileError(
            f"{name}: holds no prediction that counts: --ignore-index is the label of every one"
        )


def _possible(file: AnyPredictions, resamples: int) -> int:
    """One prediction can't be resampled: it is measured without intervals."""
    return resamples if len(file) > 1 else 0
