"""Predictors that average probabilities, made to look like networks that give logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.predictions import DeepEnsemble, MCDropout


class LogProbabilities(nn.Module):
    """Logarithm of the mean probabilities: softmax gives them back, so they serve as logits."""

    def __init__(self, predictor: MCDropout | DeepEnsemble) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, images: Tensor) -> Tensor:
        return log_probabilities(self.predictor(images))


def log_probabilities(probs: Tensor) -> Tensor:
    """log p, finite where p is 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
