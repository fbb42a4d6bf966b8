"""Can these predictions be trusted? A verdict on saved predictions, with how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from sfumato._core.confidence_bins import bin_index
from sfumato.engine.evaluation.audit_scaling import after_scaling
from sfumato.engine.runs.prediction_files import PredictionFile, PredictionFileError
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import compare_predictions, evaluate_predictions, reliability
from sfumato.metrics.floor import floor_of_confidences
from sfumato.metrics.grouped_bootstrap import confidence_cells

COMPARED = ("accuracy", "nll", "ece", "aece", "aurc", "accuracy_at_80")
NUM_BINS = 15


def audit(
    files: Sequence[PredictionFile],
    validation: Sequence[PredictionFile] = (),
    *,
    resamples: int = 1000,
    seed: int = 0,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Judge each file, and compare the others with the first on the same samples.

    Args:
        files: the predictions to judge.
        validation: held-out predictions of the same models, in the same order; where given, each
            file is also shown after temperature scaling fitted on its validation file.
        resamples: bootstrap resamples of the intervals; 0 leaves intervals and comparisons out, and
            a file of one prediction has none.
        seed: of the resamples.
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
        judged = judge_file(file, resamples=resamples, generator=generator)
        bar.advance(file.name)
        if validation:
            judged["scaled"] = after_scaling(
                file,
                validation[number],
                num_bins=NUM_BINS,
                resamples=_possible(file, resamples),
                generator=generator,
            )
            bar.advance(f"{file.name}, scaled")
        models.append(judged)
    others = files[1:] if resamples else ()
    comparisons = [_compare(files[0], each, resamples, generator, COMPARED, bar) for each in others]
    return {"models": models, "comparisons": comparisons}


def audit_steps(files: int, validation: int) -> int:
    """How often `audit` moves its bar."""
    return files + validation + files - 1


def compare_files(
    files: Sequence[PredictionFile], *, resamples: int = 1000, seed: int = 0, bar: Bar | None = None
) -> list[dict[str, Any]]:
    """Every metric of every later file against the first, by resamples that both share."""
    generator, bar = torch.Generator().manual_seed(seed), bar or Bar()
    return [_compare(files[0], other, resamples, generator, None, bar) for other in files[1:]]


def judge_file(
    file: PredictionFile, *, resamples: int, generator: torch.Generator
) -> dict[str, Any]:
    """One file's metrics, verdict, reliability bins, and breakdown by class and by group."""
    metrics = _evaluate(file, _possible(file, resamples), generator)
    probs = file.probabilities
    confidence, predicted = probs.max(1)
    excess = confidence.double() - (predicted == file.labels).double()
    bins = reliability(probs, file.labels, num_bins=NUM_BINS)
    overall = _slice("all", excess, tests=1)
    share = honest_share(confidence, float(metrics["ece"]), generator)
    classes = file.classes or [str(number) for number in range(probs.shape[1])]
    groups = sorted(set(file.groups or []))
    places = {name: place for place, name in enumerate(groups)}
    by_group = torch.tensor([places[name] for name in file.groups or []])
    return {
        "name": file.name,
        "samples": len(file.labels),
        "metrics": metrics,
        "ece_floor": float(floor_of_confidences(confidence, NUM_BINS)),
        "gap": overall,
        "verdict": _verdict(overall, share),
        "honest_share": share,
        "worst_range": _worst_range(bins.edges, bins.counts, bins.confidences - bins.accuracies),
        "by_class": _slices(classes, predicted, excess),
        "by_group": _slices(groups, by_group, excess),
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


def _possible(file: PredictionFile, resamples: int) -> int:
    """One prediction can't be resampled: it is measured without intervals."""
    return resamples if len(file.labels) > 1 else 0


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


def _slices(names: Sequence[str], part: Tensor, excess: Tensor) -> list[dict[str, Any]]:
    """Each part of the data, largest gap first; intervals hold for all parts together (95 %).

    Args:
        names: of the parts.
        part: number of the part that each prediction belongs to; empty where there are none.
        excess: confidence minus correctness.
    """
    if not len(part):
        return []
    members = excess[part.argsort(stable=True)].split(
        torch.bincount(part, minlength=len(names)).tolist()
    )
    filled = [(name, each) for name, each in zip(names, members, strict=True) if len(each)]
    rows = [_slice(name, each, tests=len(filled)) for name, each in filled]
    return sorted(rows, key=lambda row: -abs(row["gap"]))


def honest_share(
    confidence: Tensor, error: float, generator: torch.Generator, draws: int = 200
) -> float:
    """How often a model whose every confidence is true would show this ECE or more, by chance.

    The number of right predictions in a fine cell of confidences is binomial with their mean.
    """
    cell, upper = confidence_cells(confidence.double().clamp(0, 1), NUM_BINS)
    count = torch.bincount(cell).double()
    sure = torch.bincount(cell, weights=confidence.double().clamp(0, 1)) / count
    right = torch.binomial(
        count.expand(draws, -1).contiguous(),
        sure.clamp(0, 1).expand(draws, -1).contiguous(),
        generator=generator,
    )
    gaps = count.new_zeros(draws, NUM_BINS)
    gaps.index_add_(1, bin_index(upper, NUM_BINS), count * sure - right)
    larger = int((gaps.abs().sum(1) / len(confidence) >= error).sum())
    return (1 + larger) / (1 + draws)


def _verdict(overall: Mapping[str, Any], honest_share: float) -> str:
    if overall["count"] < 2:
        return "can't tell"
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


def _compare(
    first: PredictionFile,
    second: PredictionFile,
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
    pair = (first.probabilities[ours], second.probabilities[theirs])
    found = compare_predictions(
        first.labels[ours],
        probs=pair,
        num_bins=NUM_BINS,
        resamples=resamples,
        generator=generator,
        validate=False,
    )
    bar.advance(f"{second.name} against {first.name}")
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
