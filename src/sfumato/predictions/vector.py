"""Vector scaling: a scale and a bias for each class.

On Calibration of Modern Neural Networks, Guo et al., ICML 2017, Sec. 4.2.
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


class VectorScaler(Scaler):
    """Scales and shifts the logits of each class: z_c <- scale_c z_c + bias_c.

    For networks that are overconfident in some classes and too modest in others. 2 C numbers are
    fitted by negative log-likelihood, so the held-out set should have tens of samples per class;
    unlike temperature scaling it can change the predicted class.

    Args:
        penalty: weight of ||scale - 1||^2 / 2 + ||bias||^2 / 2 beside the mean likelihood. Without
            it (0) a class that the held-out set lacks would get the bias minus infinity.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, nothing to fit on, or another number of classes.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]] * 4 + [[0.0, 2.0]] * 4)
        >>> target = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> scaler = VectorScaler().fit(logits, target)
        >>> scaler(logits).softmax(1)[::4].round(decimals=2)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    Reference:
        Guo et al. 2017, Sec. 4.2. Differs: the paper has no penalty.
    """

    scale: Tensor
    bias: Tensor

    def __init__(self, *, penalty: float = 1e-4) -> None:
        super().__init__()
        check_number("penalty", penalty, low=0.0)
        self.penalty = penalty
        self.register_buffer("scale", torch.empty(0, dtype=torch.float64))
        self.register_buffer("bias", torch.empty(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find scale and bias on held-out logits."""
        scale = torch.ones_like(rows[0]).requires_grad_()
        bias = torch.zeros_like(rows[0]).requires_grad_()

        def loss() -> Tensor:
            distance = (scale - 1).square().sum() + bias.square().sum()
            return F.cross_entropy(rows * scale + bias, labels) + self.penalty / 2 * distance

        minimise(loss, [scale, bias])
        self.scale, self.bias = scale.detach(), bias.detach()

    def forward(self, logits: Tensor) -> Tensor:
        check_fitted("scale", self.scale, logits)
        return logits * along_classes(self.scale, logits) + along_classes(self.bias, logits)

    def extra_repr(self) -> str:
        return f"classes={len(self.scale)}, penalty={self.penalty:g}"
