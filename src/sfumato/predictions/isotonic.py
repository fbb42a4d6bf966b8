"""Isotonic regression, one class against the rest: any monotone map from stated to true shares.

Transforming Classifier Scores into Accurate Multiclass Probability Estimates, Zadrozny and Elkan,
KDD 2002.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.predictions.held_out import adopt_shapes, check_fitted
from sfumato.predictions.scaler import Scaler


class IsotonicScaler(Scaler):
    """Maps the probability of each class by a monotone curve of its own, then normalises.

    p_c <- g_c(p_c) / sum_k g_k(p_k), g_c the non-decreasing curve nearest (least squares) to
    "is it class c?" over the held-out p_c. It fits any shape of miscalibration but needs hundreds
    of samples per class, and it can change the predicted class. Where all g_c are 0 the classes
    share the probability equally.

    `fit` needs scikit-learn; a fitted or loaded scaler does not. The call gives log p (minus
    infinity where p is 0), which serves as logits: softmax gives p back.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: used before `fit`, nothing to fit on, or another number of classes.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = IsotonicScaler().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 4)
        0.75

    Reference:
        Zadrozny and Elkan 2002, Sec. 4; as compared with temperature scaling by Guo et al. 2017.
    """

    stated: Tensor  # (C, K) abscissae of the curves, each padded with its last point
    found: Tensor  # (C, K) ordinates

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stated", torch.empty(0, dtype=torch.float64))
        self.register_buffer("found", torch.empty(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find the curves on held-out logits."""
        probs = rows.softmax(1)
        curves = [_isotonic_curve(probs[:, c], labels == c) for c in range(probs.shape[1])]
        points = max(len(stated) for stated, _ in curves)
        self.stated = torch.stack([_padded(stated, points) for stated, _ in curves]).to(rows)
        self.found = torch.stack([_padded(found, points) for _, found in curves]).to(rows)

    def forward(self, logits: Tensor) -> Tensor:
        check_fitted("isotonic map", self.stated, logits)
        probs = logits.detach().double().softmax(1).movedim(1, 0)  # (C, N, ...)
        flat = probs.reshape(len(probs), -1)
        mapped = _interpolate(flat.contiguous(), self.stated.double(), self.found.double())
        total = mapped.sum(0)
        shares = torch.where(total > 0, mapped / total, 1 / len(mapped))
        return shares.log().view(probs.shape).movedim(0, 1).to(logits.dtype)

    def extra_repr(self) -> str:
        return f"classes={len(self.stated)}"


def _isotonic_curve(probs: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    try:
        from sklearn.isotonic import IsotonicRegression
    except ImportError as error:
        raise ImportError(
            "IsotonicScaler.fit needs scikit-learn: install it (pip install scikit-learn), or use "
            "VectorScaler or EnsembleTemperatureScaler"
        ) from error
    curve = IsotonicRegression(y_min=0.0, y_max=1.0)
    curve.fit(probs.cpu().numpy(), positive.double().cpu().numpy())
    return torch.as_tensor(curve.X_thresholds_), torch.as_tensor(curve.y_thresholds_)


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values[-1:].expand(length - len(values))])


def _interpolate(x: Tensor, stated: Tensor, found: Tensor) -> Tensor:
    """Piecewise linear curves (C, K) at x (C, M); constant beyond their ends."""
    right = torch.searchsorted(stated, x).clamp(max=stated.shape[1] - 1)
    left = (right - 1).clamp_min(0)
    x_left, x_right = stated.gather(1, left), stated.gather(1, right)
    y_left, y_right = found.gather(1, left), found.gather(1, right)
    width = x_right - x_left
    share = torch.where(width > 0, (x - x_left) / width, 1.0).clamp(0, 1)
    return y_left + share * (y_right - y_left)
