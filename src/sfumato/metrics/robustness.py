"""Numbers of altered images: consistency, scores relative to a baseline, many conditions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import by_convention, check_choice, check_class_indices, check_floating
from sfumato._core.statistics import bin_index
from sfumato.metrics.calibration import floor_of_confidences
from sfumato.metrics.evaluate import Draws, measure_resamples, sparse

Reference = Literal["previous", "first"]
_SMALLEST_PROBABILITY = 1e-12


@by_convention
def consistency(probs: Tensor, *, reference: Reference = "previous") -> Tensor:
    """Share of frames that keep the predicted class of the frame before.

    Consistency = 1/M sum_i 1(g(x_i) = g(x_{i+1})), g the most probable class.

    Args:
        probs: probabilities along the sequence, (N, M + 1, K) with at least two frames.
        reference: compare with the "previous" frame, or with the "first" one, as is usual for noise
            sequences, whose frames have no order (`is_ordered`).

    Example:
        >>> probs = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]])
        >>> consistency(probs), consistency(probs, reference="first")
        (tensor([0.3333]), tensor([0.6667]))

    Reference: Eq. (38).
    """
    _check_sequence(probs)
    check_choice("reference", reference, ("previous", "first"))
    classes = probs.argmax(dim=2)
    before = classes[:, :-1] if reference == "previous" else classes[:, :1]
    return (classes[:, 1:] == before).float().mean(dim=1)  # Eq. (38)


@by_convention
def flip_rate(probs: Tensor, *, reference: Reference = "previous") -> Tensor:
    """Share of frames that change the predicted class: 1 - consistency.

    Example:
        >>> flip_rate(torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]]))
        tensor([0.6667])
    """
    return 1.0 - consistency(probs, reference=reference)


@by_convention
def cross_entropy_consistency(
    probs: Tensor, *, form: Literal["paper", "released"] = "paper"
) -> Tensor:
    """Movement of the whole predictive distribution from frame to frame.

    CEC = -1/M sum_i f(x_i) . log f(x_{i+1}). Probabilities below 1e-12 count as 1e-12 in the
    logarithm.

    Args:
        probs: as in `consistency`.
        form: "paper", or "released": divided by the number of classes, frames exchanged.

    Example:
        >>> probs = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> cross_entropy_consistency(probs)
        tensor([0.6931])

    Reference: Eq. (39).

    Differs: the released code takes the mean over classes and -f(x_{i+1}) . log f(x_i). The values
    of table E.3 are of that form.
    """
    _check_sequence(probs)
    check_choice("form", form, ("paper", "released"))
    before, after = probs[:, :-1], probs[:, 1:]
    if form == "released":
        before, after = after, before
    cross_entropy = -(before * after.clamp_min(_SMALLEST_PROBABILITY).log()).sum(dim=2)
    if form == "released":
        cross_entropy = cross_entropy / probs.shape[2]
    return cross_entropy.mean(dim=1)  # Eq. (39)


@by_convention
def relative_confidence(probs: Tensor, target: Tensor) -> Tensor:
    """Probability of the true class over that of the predicted one: below 1 where wrong.

    Relative confidence = p(y_true | x) / max p(y | x).

    Args:
        probs: probabilities of any batch of images or frames, (..., K).
        target: true classes, (...) or, for sequences, (N,).

    Example:
        >>> relative_confidence(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0]))
        tensor([0.2500, 1.0000])

    Reference: Eq. (40).
    """
    check_floating("probs", probs, hint="Pass probabilities")
    # A sequence has one label for all its frames.
    if target.ndim == probs.ndim - 2 and probs.ndim == 3:
        target = target[:, None].expand(probs.shape[:2])
    if target.shape != probs.shape[:-1]:
        raise ValueError(
            f"target must have one class for each of {tuple(probs.shape[:-1])} predictions, "
            f"got shape {tuple(target.shape)}"
        )
    check_class_indices("target", target, probs.shape[-1])
    of_target = probs.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    return of_target / probs.amax(dim=-1)  # Eq. (40)


def _check_sequence(probs: Tensor) -> None:
    check_floating("probs", probs, hint="Pass probabilities, not classes")
    if probs.ndim != 3 or probs.shape[1] < 2:
        raise ValueError(
            f"probs must be (N, frames, classes) with at least two frames, got {tuple(probs.shape)}"
        )
    if probs.numel() and not bool(torch.isfinite(probs).all()):
        raise ValueError("probs must be finite, got nan or inf")


BaselineData = Literal["cifar10", "cifar100", "imagenet", "imagenet-hendrycks"]
BaselineMetric = Literal["error", "nll", "ece"]
_TYPES = 15  # of the benchmark, the first in the table; four extra ones follow
_SEVERITIES = ("1", "2", "3", "4", "5")

_ROWS: dict[BaselineData, str] = {
    "cifar10": "CIFAR-10-C",
    "cifar100": "CIFAR-100-C",
    "imagenet": "ImageNet-C",
    "imagenet-hendrycks": "ImageNet-C (Hendrycks)",
}


@by_convention
def corruption_ratio(scores: Any, baseline: Any) -> Tensor:
    """Sum over severities of a score, relative to the same sum of a baseline model.

    CE_c = sum_i E_{i,c} / sum_i E_{i,c}^baseline. Of errors it is the corruption error CE, of NLLs
    the corruption NLL (CNLL), of ECEs the corruption ECE (CECE); their means over the types c are
    mCE, mCNLL and mCECE.

    Args:
        scores: error, NLL or ECE of the model, any array (types, severities).
        baseline: the same of the baseline, `alexnet_scores` or a run of one's own.

    Example:
        >>> corruption_ratio([[0.1, 0.2], [0.3, 0.3]], [[0.2, 0.4], [0.2, 0.2]])
        tensor([0.5000, 1.5000], dtype=torch.float64)

    Reference: Eq. (35), (36), (37).
    """
    own = torch.as_tensor(scores, dtype=torch.float64)
    base = torch.as_tensor(baseline, dtype=torch.float64)
    if own.ndim != 2 or own.shape != base.shape:
        raise ValueError(
            "scores and baseline must both be (types, severities), got "
            f"{tuple(own.shape)} and {tuple(base.shape)}"
        )
    if bool((base.sum(dim=1) <= 0.0).any()):
        raise ValueError("baseline must be positive for every type, got a sum of 0 or less")
    return own.sum(dim=1) / base.sum(dim=1)  # Eq. (35)-(37)


def alexnet_scores(
    data: BaselineData, metric: BaselineMetric, *, names: Sequence[str] | None = None
) -> Tensor:
    """AlexNet's published score for each type and severity, (types, 5).

    Args:
        data: "cifar10", "cifar100", "imagenet", or "imagenet-hendrycks" for the usual ImageNet-C
            errors, which are known as means over the severities only and are given five times.
        metric: "error", "nll" or "ece".
        names: the types wanted, by default the benchmark's 15; the four extra ones are known for
            "cifar100" only.

    Example:
        >>> alexnet_scores("cifar10", "error", names=["gaussian_noise"])
        tensor([[0.1938, 0.2590, 0.3388, 0.3781, 0.4211]], dtype=torch.float64)

    Differs: the ECE was measured with 10 bins in which a confidence of exactly 1 counts as 0.
    """
    check_choice("data", data, _ROWS)
    check_choice("metric", metric, ("error", "nll", "ece"))
    table = _table()
    if names is None:
        names = list(dict.fromkeys(name for _, name, _ in table))[:_TYPES]
    rows = []
    for name in names:
        cells = [table.get((_ROWS[data], name, severity)) for severity in _SEVERITIES]
        cells = [cell or table.get((_ROWS[data], name, "mean")) for cell in cells]
        values = [cell[metric] if cell else "" for cell in cells]
        if "" in values:
            raise ValueError(f"no AlexNet {metric} of {name!r} is known for {data!r}")
        rows.append([float(value) for value in values])
    return torch.tensor(rows, dtype=torch.float64)


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str, str], dict[str, str]]:
    with files("sfumato.metrics").joinpath("alexnet.csv").open(encoding="utf-8") as lines:
        return {
            (row["dataset"], row["corruption"], row["severity"]): row
            for row in csv.DictReader(lines)
        }


_PERFECT_NETWORKS = 100


class ContextScores(NamedTuple):
    """On images without their object: accuracy, and mean confidence (low is honest)."""

    accuracy: float
    confidence: float


@by_convention
def context_scores(probs: Tensor, target: Tensor) -> ContextScores:
    """Accuracy and mean confidence on images without their object; NaN for an empty batch.

    `sfumato.augment.remove_objects` makes such images.

    Args:
        probs: probabilities, (N, K).
        target: the class of the object that was removed, (N,).

    Example:
        >>> context_scores(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
        ContextScores(accuracy=0.5, confidence=0.625)
    """
    check_floating("probs", probs, hint="Pass probabilities")
    if probs.ndim != 2 or target.shape != probs.shape[:1]:
        raise ValueError(
            f"probs must be (N, K) with target (N,), got {tuple(probs.shape)} and "
            f"{tuple(target.shape)}"
        )
    check_class_indices("target", target, probs.shape[1])
    confidence, predicted = probs.max(dim=1)
    right = (predicted == target).float()
    return ContextScores(accuracy=float(right.mean()), confidence=float(confidence.mean()))


class CellTable(NamedTuple):
    """Measures of each cell, (K, R) each."""

    error: Tensor
    nll: Tensor
    ece: Tensor
    squared_gap: Tensor  # unbiased, so negative by chance where the network is calibrated


class CellScores(NamedTuple):
    """Scores of each image in each cell; (K, U) each, images in the same order."""

    confidence: Tensor
    correct: Tensor
    log_likelihood: Tensor

    def table(self, num_bins: int = 15) -> CellTable:
        """Every cell measured on all images, (K,) each."""
        images = self.confidence.shape[1]
        weights = torch.ones(1, images, dtype=torch.float64)
        return CellTable(*(part[:, 0] for part in _CellSums(self, num_bins).measure(weights)))

    def measure(self, num_bins: int = 15) -> dict[str, float]:
        """Means over the cells: error, nll, ece; rmsce, free of the bias of few images.

        `ece_floor` and `rmsce_floor` are what a perfectly calibrated network with these
        confidences would show on average.
        """
        means = {name: part.mean(0) for name, part in self.table(num_bins)._asdict().items()}
        return {
            "error": float(means["error"]),
            "nll": float(means["nll"]),
            "ece": float(means["ece"]),
            "rmsce": float(_root(means["squared_gap"])),
            "ece_floor": float(floor_of_confidences(self.confidence, num_bins).mean()),
            "rmsce_floor": self._rmsce_floor(num_bins),
        }

    def resample(
        self, resamples: int, *, generator: torch.Generator, num_bins: int = 15
    ) -> dict[str, Tensor]:
        """error, nll, ece and rmsce of resamples of the images, (R,) each.

        An image is drawn with all its versions.
        """
        sums = _CellSums(self, num_bins)

        def means(weights: Tensor) -> Draws:
            return {key: each.mean(0) for key, each in sums.measure(weights)._asdict().items()}

        draws = measure_resamples(means, self.confidence.shape[1], resamples, generator=generator)
        squared = draws.pop("squared_gap")
        return {**draws, "rmsce": _root(squared)}

    def _rmsce_floor(self, num_bins: int) -> float:
        """Mean over calibrated networks; an image is easy or hard in all of its versions."""
        place = _places(self.confidence, num_bins)
        size = self.confidence.shape[0] * num_bins
        count = torch.bincount(place, minlength=size).double()
        generator = torch.Generator().manual_seed(0)
        values = []
        for _ in range(_PERFECT_NETWORKS):
            # One number for all versions of an image: their errors are correlated.
            ease = torch.rand(self.confidence.shape[1], generator=generator)
            gap = (self.confidence.double() - (ease < self.confidence).double()).flatten()
            total = torch.bincount(place, weights=gap, minlength=size)
            own = torch.bincount(place, weights=gap.square(), minlength=size)
            squared = ((total.square() - own) / (count - 1)).where(count > 1, 0.0)
            values.append(_root(squared.sum() / gap.numel()))
        return float(torch.stack(values).mean())


class _CellSums:
    """Sums over the bins of each cell, one sparse product away from those of any resample."""

    def __init__(self, scores: CellScores, num_bins: int) -> None:
        cells, images = scores.confidence.shape
        self.cells, self.num_bins = cells, num_bins
        place = _places(scores.confidence, num_bins)
        image = torch.arange(images).repeat(cells)
        gap = (scores.confidence.double() - scores.correct.double()).flatten()
        shape = (cells * num_bins, images)
        self.count = sparse(place, image, torch.ones_like(gap), shape)
        self.gap = sparse(place, image, gap, shape)
        self.square = sparse(place, image, gap.square(), shape)
        self.wrong = (~scores.correct).double()
        self.log_likelihood = scores.log_likelihood.double()

    def measure(self, weights: Tensor) -> CellTable:
        """Every cell of the resamples `weights` (R, U)."""
        drawn, total = weights.T.contiguous(), weights.sum(1)
        # An image that is drawn twice makes no pair with itself, so resamples stay unbiased too.
        twice = drawn.square()
        count, gap = self._sums(self.count, drawn), self._sums(self.gap, drawn)
        pairs = count.square() - self._sums(self.count, twice)
        squared = gap.square() - self._sums(self.square, twice)
        squared = (count * squared / pairs).where(pairs > 0, 0.0)
        return CellTable(
            self.wrong @ drawn / total,
            -(self.log_likelihood @ drawn) / total,
            gap.abs().sum(1) / total,
            squared.sum(1) / total,
        )

    def _sums(self, matrix: Tensor, drawn: Tensor) -> Tensor:
        """(K, B, R)."""
        return torch.sparse.mm(matrix, drawn).view(self.cells, self.num_bins, -1)


def _places(confidence: Tensor, num_bins: int) -> Tensor:
    """Number k B + b of the bin of each image in each cell, (K U,)."""
    offsets = torch.arange(len(confidence)).unsqueeze(1) * num_bins
    return (bin_index(confidence, num_bins) + offsets).flatten()


def _root(squared: Tensor) -> Tensor:
    return squared.clamp(min=0).sqrt()
