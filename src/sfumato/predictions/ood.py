"""Scores of how strange an input is to a classifier: higher means stranger, everywhere.

Four read the logits of a prediction. Two measure a distance in the features before the last layer.
`metrics.predictive_entropy` and `metrics.mutual_information` have the same direction.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato._core.checks import (
    by_convention,
    check_integer,
    check_number,
    to_float64,
    to_labels,
    to_tensor,
)
from sfumato.predictions.scalers import check_logits

_ENTRIES = 2**25  # of a block of distances, 128 MB


@by_convention
def maximum_probability_score(logits: Tensor) -> Tensor:
    """One minus the largest softmax probability.

        s = 1 - max_c p_c

    It is the sum of the other probabilities, so that confident predictions have no ties.

    Args:
        logits: (N, C) or (N, C, d1, ...), so here as in all scores of logits, which are float64.

    Example:
        >>> maximum_probability_score(torch.tensor([[0.0, 0.0], [50.0, 0.0]]))
        tensor([5.0000e-01, 1.9287e-22], dtype=torch.float64)

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples in Neural Networks, ICLR 2017.
    """
    values = _finite_logits(logits)
    top, predicted = values.max(1, keepdim=True)
    rest = (values - top).exp().scatter(1, predicted, 0.0).sum(1)
    return rest / (1 + rest)


@by_convention
def maximum_logit_score(logits: Tensor) -> Tensor:
    """The largest logit with its sign changed, s = -max_c z_c.

    Example:
        >>> maximum_logit_score(torch.tensor([[3.0, 1.0]]))
        tensor([-3.], dtype=torch.float64)

    Reference:
        Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022.
    """
    return -_finite_logits(logits).amax(1)


@by_convention
def energy_score(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The free energy of the logits.

        s = -T log sum_c exp(z_c / T)                                               (Eq. 4)

    Args:
        logits: as in `maximum_probability_score`.
        temperature: T, above 0.

    Example:
        >>> energy_score(torch.tensor([[3.0, 3.0]]), temperature=2.0)
        tensor([-4.3863], dtype=torch.float64)

    Reference:
        Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020, **Eq. (4)**.
    """
    check_number("temperature", temperature, low=0.0, open_low=True)
    return -temperature * (_finite_logits(logits) / temperature).logsumexp(1)  # Eq. (4)


@by_convention
def generalised_entropy_score(
    logits: Tensor, *, exponent: float = 0.1, largest: int = 100
) -> Tensor:
    """Generalised entropy of the largest probabilities.

        s = sum_{c among the M largest} p_c^gamma (1 - p_c)^gamma

    Args:
        logits: as in `maximum_probability_score`.
        exponent: gamma, in (0, 1); a small one weighs small deviations from a one-hot prediction.
        largest: M; all classes where there are fewer.

    Example:
        >>> generalised_entropy_score(torch.tensor([[0.0, 0.0]]), exponent=0.5)
        tensor([1.], dtype=torch.float64)

    Reference:
        Liu, Lochman and Zach, GEN: Pushing the Limits of Softmax-Based Out-of-Distribution
        Detection, CVPR 2023, Sec. 3.
    """
    check_number("exponent", exponent, low=0.0, high=1.0, open_low=True)
    check_integer("largest", largest, low=1)
    values = _finite_logits(logits)
    log_probs = values.log_softmax(1)
    # log(1 - p) of the top class from the sum of the others, where 1 - p would be rounded to 0.
    log_rest = (-log_probs.exp()).log1p()
    log_top_rest = maximum_probability_score(values).log().unsqueeze(1)
    log_rest = log_rest.scatter(1, log_probs.argmax(1, keepdim=True), log_top_rest)
    terms = (exponent * (log_probs + log_rest)).exp()
    kept = min(largest, values.shape[1])
    return terms.gather(1, log_probs.topk(kept, 1).indices).sum(1)


class NeighbourDistance:
    """Distance to the k-th nearest training image, between features of length 1.

        s(x) = || f(x) / ||f(x)|| - z_(k) ||_2                                       (Sec. 3)

    with z_(k) the k-th nearest of the normalised training features. The search is exact.

    Args:
        neighbours: k.

    Example:
        >>> distance = NeighbourDistance(neighbours=1).fit(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
        >>> distance.score(torch.tensor([[5.0, 0.0], [0.0, 1.0]]))
        tensor([0.0000, 1.4142])

    Reference:
        Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022.
    """

    def __init__(self, neighbours: int = 50) -> None:
        check_integer("neighbours", neighbours, low=1)
        self.neighbours = neighbours
        self._bank: Tensor | None = None

    def fit(self, features: Any) -> NeighbourDistance:
        """Keep the features (N, D) of training images; returns itself."""
        values = _finite_features(features)
        if len(values) < self.neighbours:
            raise ValueError(
                f"features must hold at least neighbours={self.neighbours} training images, got "
                f"{len(values)}: pass more, or fewer neighbours"
            )
        self._bank = F.normalize(values)
        return self

    @torch.no_grad()
    def score(self, features: Any) -> Tensor:
        """Distance of each image's features (N, D), (N,)."""
        bank = _fitted(self._bank)
        values = F.normalize(_same_width(features, bank).to(bank))
        found = []
        for part in values.split(max(1, _ENTRIES // len(bank))):
            # Of unit vectors |a - b|^2 = 2 - 2 ab: the k-th largest product is the k-th nearest.
            nearest = (part @ bank.T).topk(self.neighbours, 1, sorted=False).values.amin(1)
            found.append((2 - 2 * nearest).clamp_min(0).sqrt())
        return torch.cat(found) if found else values.new_empty(0)


class MahalanobisDistance:
    """Squared distance to the nearest class mean, in units of the covariance within classes.

        s(x) = min_c (f(x) - mu_c)^T Sigma^-1 (f(x) - mu_c)                          (Eq. 2)
        Sigma = 1/N sum_c sum_{i in c} (f_i - mu_c)(f_i - mu_c)^T                    (Eq. 1)

    Where a class has no more samples than there are features, Sigma is shrunk towards a multiple
    of the identity, (1 - rho) Sigma + rho tr(Sigma)/D I (`shrinkage`), and a warning says so.
    Directions without variance count for nothing. `update` adds features batch by batch.

    Args:
        num_classes: C.

    Example:
        >>> features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
        >>> distance = MahalanobisDistance(1).fit(features, torch.zeros(4, dtype=torch.long))
        >>> distance.score(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).round(decimals=3)
        tensor([0., 8.], dtype=torch.float64)

    Reference:
        Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks, NeurIPS 2018, **Eq. (1), (2)** (there -s); shrinkage: Chen et al.,
        Shrinkage Algorithms for MMSE Covariance Estimation, IEEE TSP 2010, **Eq. (23)**.

    Differs: classes without samples are left out; the last features alone, without the authors'
        perturbed inputs and combination over layers.
    """

    def __init__(self, num_classes: int) -> None:
        check_integer("num_classes", num_classes, low=1)
        self.num_classes = num_classes
        self.shrinkage = 0.0
        self._counts = torch.zeros(num_classes, dtype=torch.float64)
        self._sums: Tensor | None = None
        self._moments: Tensor | None = None
        self._whitened: tuple[Tensor, Tensor] | None = None

    def fit(self, features: Any, target: Any) -> MahalanobisDistance:
        """Estimate means and covariance from features (N, D) and classes (N,); returns itself."""
        self._sums = None
        self._counts.zero_()
        self.update(features, target)
        if not float(self._counts.sum()):
            raise ValueError("features must hold at least one training image, got none")
        self._whiten()
        return self

    def update(self, features: Any, target: Any) -> None:
        """Add a batch of training features (N, D) and classes (N,)."""
        values = _finite_features(features).double().cpu()
        labels = to_labels("target", target, len(values), self.num_classes).cpu()
        if self._sums is None or self._moments is None:
            self._sums = values.new_zeros(self.num_classes, values.shape[1])
            self._moments = values.new_zeros(values.shape[1], values.shape[1])
        _same_width(values, self._sums)
        self._counts += labels.bincount(minlength=self.num_classes)
        self._sums.index_add_(0, labels, values)
        self._moments += values.T @ values
        self._whitened = None

    @torch.no_grad()
    def score(self, features: Any) -> Tensor:
        """Squared distance of each image's features (N, D), (N,) float64."""
        whitener, means = self._whiten() if self._whitened is None else self._whitened
        values = _same_width(features, whitener.T).double().cpu()
        return torch.cdist(values @ whitener, means).amin(1).square()

    def _whiten(self) -> tuple[Tensor, Tensor]:
        """Matrix that makes Sigma the identity, and the means behind it."""
        sums, moments = _fitted(self._sums), _fitted(self._moments)
        seen = self._counts > 0
        means = sums[seen] / self._counts[seen, None]
        total, width = float(self._counts.sum()), sums.shape[1]
        covariance = (moments - means.T @ (self._counts[seen, None] * means)) / total  # Eq. (1)
        fewest = int(self._counts[seen].min())
        self.shrinkage = 0.0
        if fewest <= width:
            self.shrinkage = _shrinkage(covariance, total - float(seen.sum()))
            identity = torch.eye(width, dtype=torch.float64) * covariance.diagonal().mean()
            covariance = (1 - self.shrinkage) * covariance + self.shrinkage * identity
            warnings.warn(
                f"a class has {fewest} samples for {width} features: the covariance is shrunk by "
                f"{self.shrinkage:.2f}. Fit on more training images",
                stacklevel=3,
            )
        variances, directions = torch.linalg.eigh(covariance)
        kept = variances > variances[-1] * width * torch.finfo(torch.float64).eps
        whitener = directions[:, kept] / variances[kept].sqrt()
        self._whitened = whitener, means @ whitener
        return self._whitened


@by_convention
def conformal_p_values(known: Tensor, scores: Tensor) -> Tensor:
    """Share of familiar inputs that are at least as strange, the input itself counted.

        p(x) = (1 + #{i: s_i >= s(x)}) / (n + 1)

    If x is drawn as the n known inputs were, P(p(x) <= alpha) <= alpha over draws of both.

    Args:
        known: scores, not fitted on them, of held-out familiar inputs, (n,).
        scores: of the inputs in question, (N,).

    Example:
        >>> conformal_p_values(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.9]))
        tensor([0.5000, 0.2500], dtype=torch.float64)

    Reference:
        Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; for strange inputs
        Bates et al., Testing for Outliers with Conformal p-values, Annals of Statistics 2023.
    """
    ordered = to_finite_scores("known", known).sort().values
    asked = to_finite_scores("scores", scores)
    if not len(ordered):
        raise ValueError("known must hold the score of at least one familiar input, got none")
    below = torch.searchsorted(ordered, asked.to(ordered.device).contiguous())
    return (1 + len(ordered) - below).double() / (len(ordered) + 1)


def to_finite_scores(name: str, values: Any) -> Tensor:
    """Scores as float64 (N,), none of them NaN."""
    scores = to_tensor(name, values).double()
    if scores.ndim != 1 or bool(scores.isnan().any()):
        raise ValueError(
            f"{name} must be scores (N,) without NaN, got {tuple(scores.shape)} with "
            f"{int(scores.isnan().sum())} NaN"
        )
    return scores


def _shrinkage(covariance: Tensor, freedom: float) -> float:
    """The oracle approximating shrinkage of a covariance of `freedom` independent samples."""
    width = len(covariance)
    square, trace = float(covariance.square().sum()), float(covariance.trace())
    spread = square - trace**2 / width
    if spread <= 0 or freedom <= 0:
        return 1.0
    share = ((1 - 2 / width) * square + trace**2) / ((freedom + 1 - 2 / width) * spread)
    return min(1.0, share)  # Eq. (23)


def _finite_logits(logits: Tensor) -> Tensor:
    check_logits(logits)
    rows = logits.isfinite().all(1)
    if not bool(rows.all()):
        raise ValueError(
            f"logits must be finite, got NaN or infinity in {int((~rows).sum())} of {rows.numel()} "
            "rows: leave these inputs out, or find what made them"
        )
    return to_float64(logits)


def _finite_features(features: Any) -> Tensor:
    values = to_tensor("features", features)
    if values.ndim != 2 or not values.is_floating_point():
        raise ValueError(
            f"features must be (N, D) in floating point, got {values.dtype} {tuple(values.shape)}: "
            "pool maps over their pixels first"
        )
    if not bool(values.isfinite().all()):
        raise ValueError("features must be finite, got NaN or infinity: leave these inputs out")
    return values.detach()


def _same_width(features: Any, known: Tensor) -> Tensor:
    values = _finite_features(features)
    if values.shape[1] != known.shape[1]:
        raise ValueError(
            f"features must have the {known.shape[1]} columns of the fit, got {values.shape[1]}"
        )
    return values


def _fitted(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("there are no training features yet: call fit first")
    return value
