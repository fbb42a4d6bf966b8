"""Structured matrix scaling: a full matrix on the logits, each part of it held back by its size.

Structured Matrix Scaling for Multi-Class Calibration, Berta, Holzmueller, Jordan and Bach, AISTATS
2026 (arXiv 2511.03685).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.predictions.held_out import adopt_shapes, check_fitted, minimise
from sfumato.predictions.scaler import Scaler
from sfumato.predictions.temperature import fit_likelihood


class StructuredMatrixScaler(Scaler):
    """softmax((I + diag(v) + off(M)) log p_T + b), p_T the probabilities after a temperature.

    Matrix scaling can repair which classes are confused with which, but has C^2 numbers to learn
    from few samples. Here the temperature is fitted freely and the rest with a ridge on each part:

        NLL + penalty C / n (|b|^2 + |v|^2) + penalty C (C - 1) / n |M|^2

    so that few samples give temperature scaling, many a full matrix. The predicted class can
    change.

    Args:
        penalty: of all parts; 1 as in the paper.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, nothing to fit on, or another number of classes.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]] * 4 + [[0.0, 2.0]] * 4).repeat(50, 1)
        >>> target = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0]).repeat(50)
        >>> scaler = StructuredMatrixScaler().fit(logits, target)
        >>> scaler(logits).softmax(1)[:8:4].round(decimals=2)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    Reference:
        Berta et al. 2026 and the defaults of the authors' package probmetrics (ridge, rho = tau =
        1), with which a test compares the numbers. Differs: that package mixes a share 1 / (n + 1)
        of the uniform distribution in after the temperature, whatever the data; here one is mixed
        in before, fitted by likelihood, where a probability is exactly 0.
    """

    temperature: Tensor  # (1,)
    weight: Tensor  # (C, C)
    bias: Tensor  # (C,)

    def __init__(self, *, penalty: float = 1.0) -> None:
        super().__init__()
        check_number("penalty", penalty, low=0.0)
        self.penalty = penalty
        for name in ("temperature", "weight", "bias"):
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find temperature, matrix and bias on held-out logits."""
        count, classes = rows.shape
        temperature = rows.new_tensor([fit_likelihood(rows, labels)])
        scaled = (rows / temperature).log_softmax(1)
        change = rows.new_zeros(classes, classes).requires_grad_()
        bias = rows.new_zeros(classes).requires_grad_()
        near = self.penalty * classes / count
        far = self.penalty * classes * (classes - 1) / count

        def loss() -> Tensor:
            diagonal = change.diagonal().square().sum()
            ridge = near * (bias.square().sum() + diagonal)
            ridge = ridge + far * (change.square().sum() - diagonal)
            return F.cross_entropy(scaled + F.linear(scaled, change, bias), labels) + ridge

        minimise(loss, [change, bias])
        self.temperature = temperature
        self.weight = torch.eye(classes).to(rows) + change.detach()
        self.bias = bias.detach()

    def forward(self, logits: Tensor) -> Tensor:
        check_fitted("matrix", self.weight, logits)
        scaled = (logits / self.temperature.to(logits)).log_softmax(1).movedim(1, -1)
        return F.linear(scaled, self.weight.to(logits), self.bias.to(logits)).movedim(-1, 1)

    def extra_repr(self) -> str:
        return f"classes={len(self.weight)}, penalty={self.penalty:g}"
