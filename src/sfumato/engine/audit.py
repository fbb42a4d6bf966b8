"""Can these predictions be trusted? A verdict on saved predictions, with how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from sfumato.engine.prediction_files import PredictionFile, PredictionFileError
from sfumato.metrics import compare_predictions, evaluate_predictions, reliability
from sfumato.predictions import TemperatureScaler

COMPARED = ("accuracy", "nll", "ece", "aece", "aurc", "accuracy_at_80")
NUM_BINS = 15


def audit(
    files: Sequence[PredictionFile],
    validation: Sequence[PredictionFile] = (),
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Judge each file, and compare the others with the first on the same samples.

    Args:
        files: the predictions to judge.
        validation: held-out predictions of the same models, in the same order; where given, each
            file is also shown after temperature scaling fitted on its validation file.
        resamples: bootstrap resamples of the intervals.
        seed: of the resamples.

    Returns:
        Plain data: `models`, a list of judgements, and `comparisons` with the first model.
    """
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
        judged = judge(file, resamples=resamples, generator=generator)
        if validation:
            judged["scaled"] = _after_scaling(file, validation[number], resamples, generator)
        models.append(judged)
    comparisons = [_compare(files[0], each, resamples, generator, COMPARED) for each in files[1:]]
    return {"models": models, "comparisons": comparisons}


def compare_files(
    files: Sequence[PredictionFile], *, resamples: int = 1000, seed: int = 0
) -> list[dict[str, Any]]:
    """Every metric of every later file against the first, by resamples that both share."""
    generator = torch.Generator().manual_seed(seed)
    return [_compare(files[0], other, resamples, generator, None) for other in files[1:]]


def judge(file: PredictionFile, *, resamples: int, generator: torch.Generator) -> dict[str, Any]:
    """One file's metrics, verdict, reliability bins, and breakdown by class and by group."""
    metrics = _evaluate(file, resamples, generator)
    probs = _probabilities(file)
    confidence, predicted = probs.max(1)
    excess = confidence.double() - (predicted == file.labels).double()
    bins = reliability(probs, file.labels, num_bins=NUM_BINS)
    overall = _slice("all", excess, tests=1)
    share = _share_of_honest_sets_with_larger_error(confidence, float(metrics["ece"]), generator)
    classes = file.classes or [str(number) for number in range(probs.shape[1])]
    by_class = {name: predicted == number for number, name in enumerate(classes)}
    names = sorted(set(file.groups or []))
    by_group = {name: torch.tensor([g == name for g in file.groups or []]) for name in names}
    return {
        "name": file.name,
        "samples": len(file.labels),
        "metrics": metrics,
        "gap": overall,
        "verdict": _verdict(overall, share),
        "honest_share": share,
        "worst_range": _worst_range(bins.edges, bins.counts, bins.confidences - bins.accuracies),
        "by_class": _slices(by_class, excess),
        "by_group": _slices(by_group, excess),
        "reliability": {
            "counts": bins.counts.tolist(),
            "confidence": bins.confidences.tolist(),
            "accuracy": bins.accuracies.tolist(),
        },
    }


def _evaluate(file: PredictionFile, resamples: int, generator: torch.Generator) -> dict[str, Any]:
    try:
        return evaluate_predictions(
            file.labels,
            logits=file.logits,
            probs=file.probs,
            num_bins=NUM_BINS,
            resamples=resamples,
            generator=generator,
        )
    except ValueError as error:
        raise PredictionFileError(f"{file.name}: {error}") from None


def _probabilities(file: PredictionFile) -> Tensor:
    return file.scores.double().softmax(1) if file.probs is None else file.probs.double()


def _slice(name: str, excess: Tensor, *, tests: int) -> dict[str, Any]:
    """Mean of confidence minus correctness, with a normal interval that allows for `tests`."""
    count = len(excess)
    gap = float(excess.mean()) if count else math.nan
    error = float(excess.std() / math.sqrt(count)) if count > 1 else math.nan
    width = NormalDist().inv_cdf(1 - 0.025 / tests) * error
    low, high = gap - width, gap + width
    direction = "overconfident" if low > 0 else "underconfident" if high < 0 else "can't tell"
    return {
        "name": name,
        "count": count,
        "gap": gap,
        "interval": [low, high],
        "direction": direction,
    }


def _slices(masks: Mapping[str, Tensor], excess: Tensor) -> list[dict[str, Any]]:
    """Each part of the data, largest gap first; intervals hold for all parts together (95 %)."""
    filled = {name: mask for name, mask in masks.items() if bool(mask.any())}
    rows = [_slice(name, excess[mask], tests=len(filled)) for name, mask in filled.items()]
    return sorted(rows, key=lambda row: -abs(row["gap"]))


def _share_of_honest_sets_with_larger_error(
    confidence: Tensor, error: float, generator: torch.Generator, draws: int = 200
) -> float:
    """How often a model whose every confidence is true would show this ECE or more, by chance."""
    sure = confidence.double().clamp(0, 1)
    bins = (sure * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1  # right-closed, as in the ECE
    larger = 0
    for _ in range(draws):
        right = torch.rand(sure.shape, generator=generator, dtype=sure.dtype) < sure
        gaps = sure.new_zeros(NUM_BINS).index_add_(0, bins, sure - right.double())
        larger += float(gaps.abs().sum() / len(sure)) >= error
    return (1 + larger) / (1 + draws)


def _verdict(overall: Mapping[str, Any], honest_share: float) -> str:
    if overall["direction"] != "can't tell":
        return str(overall["direction"])
    if honest_share < 0.05:
        return "right on average, wrong in places"
    return "no miscalibration found"


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


def _after_scaling(
    file: PredictionFile, held_out: PredictionFile, resamples: int, generator: torch.Generator
) -> dict[str, Any]:
    if file.scores.shape[1] != held_out.scores.shape[1]:
        raise PredictionFileError(
            f"{held_out.name} has {held_out.scores.shape[1]} classes, {file.name} has "
            f"{file.scores.shape[1]}: is it the validation file of another model?"
        )
    scaler = TemperatureScaler().fit(held_out.scores, held_out.labels)
    metrics = evaluate_predictions(
        file.labels,
        logits=scaler(file.scores),
        num_bins=NUM_BINS,
        resamples=resamples,
        generator=generator,
    )
    return {"temperature": scaler.temperature, "metrics": metrics}


def _compare(
    first: PredictionFile,
    second: PredictionFile,
    resamples: int,
    generator: torch.Generator,
    names: Sequence[str] | None,
) -> dict[str, Any]:
    ours, theirs = _aligned(first, second)
    pair = (_probabilities(first)[ours], _probabilities(second)[theirs])
    found = compare_predictions(
        first.labels[ours],
        probs=pair,
        num_bins=NUM_BINS,
        resamples=resamples,
        generator=generator,
        validate=False,
    )
    return {
        "first": first.name,
        "second": second.name,
        "samples": len(ours),
        "metrics": {name: found[name]._asdict() for name in names or found},
    }


def _aligned(first: PredictionFile, second: PredictionFile) -> tuple[Tensor, Tensor]:
    """Positions of the common samples: by index where both have one, else by order."""
    if first.index is not None and second.index is not None:
        common = torch.tensor(sorted(set(first.index.tolist()) & set(second.index.tolist())))
        places = []
        for file in (first, second):
            found = {value: place for place, value in enumerate(file.index.tolist())}  # type: ignore[union-attr]
            places.append(torch.tensor([found[int(i)] for i in common], dtype=torch.int64))
        ours, theirs = places
    else:
        ours = theirs = torch.arange(len(first.labels))
    same = len(ours) and (first.index is not None or len(first.labels) == len(second.labels))
    if not same or not torch.equal(first.labels[ours], second.labels[theirs]):
        raise PredictionFileError(
            f"{first.name} and {second.name} can't be compared: their labels differ. Save both on "
            "the same samples, in the same order or with an 'index'."
        )
    return ours, theirs
