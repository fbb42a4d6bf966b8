"""Temperature scaling: one number that makes a trained classifier's confidences honest.

On Calibration of Modern Neural Networks, Guo et al., ICML 2017; the ECE grid as in Margin-based
Label Smoothing, Liu et al., CVPR 2022, appendix D.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import check_choice, check_floating, check_integer
from sfumato.predictions.held_out import (
    HIGHEST,
    LOWEST,
    ece_of_confidences,
    minimise,
    remember_fit,
)
from sfumato.predictions.scaler import Scaler

GRID = torch.arange(1, 101) / 10  # 0.1, 0.2, ... 10.0, the papers' grid


class TemperatureScaler(Scaler):
    """Divides logits by a temperature fitted on held-out predictions.

    Ranking and argmax of the classes never change; only how sure the prediction is. Fit on
    validation data: on the training set the network is right about nearly everything.

    Args:
        method: "nll" minimises the negative log-likelihood with L-BFGS over log T, within
            [0.01, 100]; "ece" takes the best of the papers' grid 0.1, 0.2, ... 10.0 by expected
            calibration error (the smallest temperature of equals).
        num_bins: bins of the calibration error, for "ece".

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, or nothing to fit on.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = TemperatureScaler().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 4)  # right in three of four cases
        0.75

    Reference:
        Guo et al. 2017, Sec. 4.2. Differs: the released MbLS, FLSD and ACLS codes choose the
        temperature by ECE on the grid ("ece"), the paper by NLL ("nll", the default).
    """

    _temperature: Tensor
    _is_fitted = False

    def __init__(self, method: Literal["nll", "ece"] = "nll", *, num_bins: int = 15) -> None:
        super().__init__()
        check_choice("method", method, ("nll", "ece"))
        check_integer("num_bins", num_bins, low=1)
        self.method = method
        self.num_bins = num_bins
        self.register_buffer("_temperature", torch.tensor(math.nan, dtype=torch.float64))
        self.register_load_state_dict_post_hook(remember_fit)

    @property
    def temperature(self) -> float:
        """The fitted temperature T: above 1 the network was overconfident, below 1 too modest."""
        return float(self._fitted())

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find the temperature on held-out logits."""
        if self.method == "nll":
            value = fit_likelihood(rows, labels)
        else:
            value = _fit_calibration(rows, labels, self.num_bins)
        warn_at_bound(value, *((LOWEST, HIGHEST) if self.method == "nll" else (GRID[0], GRID[-1])))
        self._temperature.fill_(value)
        self.note_fit()

    def forward(self, logits: Tensor) -> Tensor:
        check_floating("logits", logits)
        return logits / self._fitted()

    def note_fit(self) -> None:
        """Look whether the temperature is known; called where it may have changed."""
        self._is_fitted = not bool(self._temperature.isnan())

    def _fitted(self) -> Tensor:
        if not self._is_fitted:
            raise ValueError("the temperature is not known yet: call fit(logits, target) first")
        return self._temperature

    def extra_repr(self) -> str:
        return f"method={self.method!r}, temperature={float(self._temperature):.4g}"


def fit_likelihood(rows: Tensor, labels: Tensor) -> float:
    """The temperature of least negative log-likelihood, within [0.01, 100]."""
    log_temperature = torch.zeros((), dtype=torch.float64, device=rows.device, requires_grad=True)

    def loss() -> Tensor:
        bounded = log_temperature.clamp(math.log(LOWEST), math.log(HIGHEST))
        return F.cross_entropy(rows * (-bounded).exp(), labels)

    minimise(loss, [log_temperature])
    return min(max(float(log_temperature.detach().exp()), LOWEST), HIGHEST)


def warn_at_bound(temperature: float, lowest: float | Tensor, highest: float | Tensor) -> None:
    """Warn where the fit went as far as it may: such a temperature is no repair."""
    if temperature <= float(lowest):
        reason = "held-out predictions are never wrong, as on training data"
    elif temperature >= float(highest):
        reason = "held-out predictions know nothing of the labels, or rule some of them out"
    else:
        return
    warnings.warn(
        f"the temperature ended at its bound {temperature:g}: {reason}. Don't use it; look at the "
        "held-out labels, and at probabilities that are exactly 0 (UniformMixture).",
        stacklevel=3,
    )


def _fit_calibration(rows: Tensor, labels: Tensor, num_bins: int) -> float:
    correct = (rows.argmax(1) == labels).double()
    shifted = rows - rows.amax(1, keepdim=True)
    errors = []
    for temperature in GRID.tolist():
        confidence = (shifted / temperature).exp().sum(1).reciprocal()
        errors.append(ece_of_confidences(confidence, correct, num_bins))
    return float(GRID[int(torch.stack(errors).argmin())])
