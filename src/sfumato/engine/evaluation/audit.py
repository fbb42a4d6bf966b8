"""Can these predictions be trusted? A verdict on saved predictions, with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato.engine.evaluation.audit_confidences import compare_confidences, evaluate_confidences
from sfumato.engine.evaluation.audit_extras import detection_errors, drift_of
from sfumato.engine.evaluation.audit_judgement import honest_draws, judge
from sfumato.engine.evaluation.audit_outcomes import outcomes
from sfumato.engine.evaluation.audit_scaling import after_scaling
from sfumato.engine.evaluation.audit_sets import sets_of
from sfumato.engine.evaluation.audit_tallies import NUM_BINS, Tallies
from sfumato.engine.evaluation.audit_thresholds import (
    Target,
    thresholds_of_groups,
    thresholds_of_rows,
)
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import compare_predictions, evaluate_predictions
from sfumato.metrics.histogram import group_by_value
from sfumato.metrics.scored_samples import Samples

COMPARED = ("accuracy", "nll", "ece", "aece", "aurc", "accuracy_at_80")


class Summed(NamedTuple):
    """A model that is known by the sums over its predictions."""

    name: str
    tallies: Tallies


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
    rows = [file for file in files if not isinstance(file, Summed)]
    others = rows[1:] if resamples and len(rows) == len(files) else ()
    comparisons = [_compare(rows[0], each, resamples, generator, COMPARED, bar) for each in others]
    return {"models": models, "comparisons": comparisons}


def audit_steps(files: int, validation: int) -> int:
    """How often `audit` moves its bar."""
    return files + validation + files - 1


def compare_files(
    files: Sequence[AnyPredictions], *, resamples: int = 1000, seed: int = 0, bar: Bar | None = None
) -> list[dict[str, Any]]:
    """Every metric of every later file against the first, by resamples that both share."""
    generator, bar = torch.Generator().manual_seed(seed), bar or Bar()
    return [_compare(files[0], other, resamples, generator, None, bar) for other in files[1:]]


def judge_file(
    file: AnyPredictions,
    *,
    resamples: int,
    generator: torch.Generator,
    target: Target | None = None,
) -> dict[str, Any]:
    """One file's metrics, verdict, reliability bins, curve, and every breakdown."""
    metrics = _evaluate(file, _possible(file, resamples), generator)
    tallies = Tallies()
    tallies.add(file)
    found = outcomes(file)
    chosen = None if target is None else thresholds_of_rows(found, file.classes, target)
    groups = group_by_value(found.samples())
    judged = judge(file.name, tallies, groups, metrics, generator, chosen)
    if isinstance(file, PredictionFile):
        judged["sets"] = sets_of(file)
    judged["metrics"] |= detection_errors(file)
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
    """The same of predictions that are known by their sums only."""
    metrics: dict[str, Any] = dict(tallies.measure())
    if resamples and tallies.count > 1:
        metrics |= tallies.intervals(resamples, generator)
    if target is not None and target.per_class:
        raise PredictionFileError(
            f"{name}: --per-class needs the rows in memory, and these are only summed up; leave it "
            "out, or give a sample of the rows"
        )
    groups = tallies.groups()
    chosen = None if target is None else thresholds_of_groups(groups, target)
    return judge(name, tallies, groups, metrics, generator, chosen)


def honest_share(
    confidence: Tensor, error: float, generator: torch.Generator, draws: int = 200
) -> float:
    """How often a model whose every confidence is true would show this ECE or more, by chance."""
    known = confidence.double().clamp(0, 1)
    samples = Samples(known, torch.zeros_like(known, dtype=torch.bool), known)
    return honest_draws(group_by_value(samples), generator, draws).share(error)


def _evaluate(file: AnyPredictions, resamples: int, generator: torch.Generator) -> dict[str, Any]:
    if isinstance(file, ConfidenceFile):
        return evaluate_confidences(
            outcomes(file).samples(), num_bins=NUM_BINS, resamples=resamples, generator=generator
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
    if isinstance(file, Summed):
        raise PredictionFileError(
            f"{file.name}: temperature scaling needs the rows in memory, and these are only summed "
            "up; leave --validation out, or give a sample of the rows"
        )
    if isinstance(file, ConfidenceFile) or file.predictions.ndim > 2:
        raise PredictionFileError(
            f"{file.name}: temperature scaling needs 'logits' or 'probs' (N, C) of all classes; "
            "leave --validation out"
        )
    return file


def _possible(file: AnyPredictions, resamples: int) -> int:
    """One prediction can't be resampled: it is measured without intervals."""
    return resamples if len(file) > 1 else 0


def _compare(
    first: AnyPredictions,
    second: AnyPredictions,
    resamples: int,
    generator: torch.Generator,
    names: Sequence[str] | None,
    bar: Bar,
) -> dict[str, Any]:
    ours, theirs = _aligned(first, second)
    if len(ours) < 2:
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: they share one sample, and an "
            "interval needs at least two"
        )
    settings: dict[str, Any] = {
        "num_bins": NUM_BINS,
        "resamples": resamples,
        "generator": generator,
    }
    if isinstance(first, PredictionFile) and isinstance(second, PredictionFile):
        pair = (first.probabilities[ours], second.probabilities[theirs])
        found = compare_predictions(first.labels[ours], probs=pair, validate=False, **settings)
    else:
        samples = [
            Samples(*(part[chosen] for part in outcomes(file).samples()))
            for file, chosen in ((first, ours), (second, theirs))
        ]
        found = compare_confidences(*samples, **settings)
    bar.advance(f"{second.name} against {first.name}")
    return {
        "first": first.name,
        "second": second.name,
        "samples": len(ours),
        "metrics": {name: found[name]._asdict() for name in names or found if name in found},
    }


def _aligned(first: AnyPredictions, second: AnyPredictions) -> tuple[Tensor, Tensor]:
    """Positions of the common samples: by index where both have one, else by order."""
    if first.index is not None and second.index is not None:
        common = torch.tensor(sorted(set(first.index.tolist()) & set(second.index.tolist())))
        places = []
        for index in (first.index, second.index):
            found = {value: place for place, value in enumerate(index.tolist())}
            places.append(torch.tensor([found[int(i)] for i in common], dtype=torch.int64))
        ours, theirs = places
    else:
        ours = theirs = torch.arange(len(first))
    same = len(ours) and (first.index is not None or len(first) == len(second))
    if not same or not _same_labels(first, second, ours, theirs):
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: their labels differ. Save both on "
            "the same samples, in the same order or with an 'index'."
        )
    return ours, theirs


def _same_labels(
    first: AnyPredictions, second: AnyPredictions, ours: Tensor, theirs: Tensor
) -> bool:
    """Whether the common samples have one label; where a file doesn't name them, it is trusted."""
    known = []
    for file, chosen in ((first, ours), (second, theirs)):
        if isinstance(file, PredictionFile):
            known.append([str(label) for label in file.labels[chosen].tolist()])
        elif file.truth is not None:
            known.append([file.truth[place] for place in chosen.tolist()])
    return len(known) < 2 or known[0] == known[1]
