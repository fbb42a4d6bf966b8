"""Per-class bias: moves the shares of the classes where they were seen to be.

Adjusting the Outputs of a Classifier to New a Priori Probabilities, Saerens et al., Neural
Computation 2002; a bias on the logits is a factor on the class priors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.predictions.held_out import (
    adopt_shapes,
    along_classes,
    check_fitted,
    minimise,
)
from sfumato.predictions.scaler import Scaler


class BiasScaler(Scaler):
    """Shifts the logits of each class: z_c <- z_c + bias_c.

    For data whose classes are more or less frequent than in training: after the fit the mean
    probability of each class is its share of the held-out labels (up to the penalty). The biases
    sum to zero; the predicted class can change.

    Args:
        penalty: weight of ||bias||^2 / 2 beside the mean negative log-likelihood. Without it (0) a
            class that the held-out set lacks would get the bias minus infinity.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, nothing to fit on, or another number of classes.

    Example:
        >>> logits = torch.zeros(4, 2)
        >>> scaler = BiasScaler().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> scaler(logits).softmax(1)[0].round(decimals=2)
        tensor([0.7500, 0.2500])
    """

    bias: Tensor

    def __init__(self, *, penalty: float = 1e-4) -> None:
        super().__init__()
        check_number("penalty", penalty, low=0.0)
        self.penalty = penalty
        self.register_buffer("bias", torch.empty(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find the biases on held-out logits."""
        bias = torch.zeros_like(rows[0]).requires_grad_()

        def loss() -> Tensor:
            return F.cross_entropy(rows + bias, labels) + self.penalty / 2 * bias.square().sum()

        minimise(loss, [bias])
        self.bias = bias.detach()

    def forward(self, logits: Tensor) -> Tensor:
        check_fitted("bias", self.bias, logits)
        return logits + along_classes(self.bias, logits)

    def extra_repr(self) -> str:
        return f"classes={len(self.bias)}, penalty={self.penalty:g}"
