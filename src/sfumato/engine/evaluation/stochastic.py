"""Predictors that average probabilities, made to look like networks that give logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.metrics import evaluate_predictions
from sfumato.predictions import DeepEnsemble, MCDropout


class LogProbabilities(nn.Module):
    """Logarithm of the mean probabilities: softmax gives them back, so they serve as logits."""

    def __init__(self, predictor: nn.Module) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, images: Tensor) -> Tensor:
        return log_probabilities(self.predictor(images))


class SampleCurve(nn.Module):
    """`LogProbabilities` of all samples; keeps those of smaller ensembles, from the same passes.

    Args:
        sampler: gives the samples, one for each dropout mask or each network.
        sizes: of the ensembles, none larger than the sampler's.
    """

    def __init__(self, sampler: MCDropout | DeepEnsemble, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sampler = sampler
        self.sizes = list(sizes)
        self._seen: dict[int, list[Tensor]] = {size: [] for size in sizes}

    def forward(self, images: Tensor) -> Tensor:
        means = self._means(images)
        for size, seen in self._seen.items():
            seen.append(log_probabilities(means[size]).cpu())
        return log_probabilities(means[max(means)])

    def _means(self, images: Tensor) -> dict[int, Tensor]:
        """Mean probabilities by the number of samples."""
        if isinstance(self.sampler, DeepEnsemble):
            return self.sampler.curve(images)
        return self.sampler.curve(images, [*self.sizes, self.sampler.samples])

    def measure(self, labels: Tensor) -> dict[str, Any]:
        """NLL, accuracy and ECE against the number of samples, of all images seen."""
        found = [
            evaluate_predictions(labels, logits=torch.cat(self._seen[size]), splits=False)
            for size in self.sizes
        ]
        names = ("nll", "accuracy", "ece")
        return {"sizes": self.sizes, **{name: [each[name] for each in found] for name in names}}


def log_probabilities(probs: Tensor) -> Tensor:
    """log p, finite where p is 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
