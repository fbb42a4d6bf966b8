"""Ensemble temperature scaling: tempered, raw and uniform probabilities, mixed.

Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep Learning,
Zhang, Kailkhura and Han, ICML 2020.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.predictions.held_out import HIGHEST, LOWEST, check_logits, minimise, remember_fit
from sfumato.predictions.scaler import Scaler
from sfumato.predictions.temperature import fit_likelihood, warn_at_bound


class EnsembleTemperatureScaler(Scaler):
    """Mixes tempered, raw and uniform probabilities with weights fitted on held-out predictions.

    p = w_1 softmax(z / T) + w_2 softmax(z) + w_3 / C with w >= 0, sum w = 1. T is that of
    temperature scaling; the two free weights then let confidences below those of a single
    temperature appear where the network is surely wrong at times. The order of the classes stays.

    The call gives log p, which serves as logits: softmax gives p back.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, or nothing to fit on.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = EnsembleTemperatureScaler().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 3)
        0.75

    Reference:
        Zhang et al. 2020, Sec. 4 (ETS). Differs: the released code offers squared error beside
        the likelihood that is used here, and keeps T within [0.05, 5] instead of [0.01, 100].
    """

    _state: Tensor  # T, w_1, w_2, w_3
    _is_fitted = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_state", torch.full((4,), math.nan, dtype=torch.float64))
        self.register_load_state_dict_post_hook(remember_fit)

    @property
    def temperature(self) -> float:
        """The fitted temperature T of the first part."""
        return float(self._fitted()[0])

    @property
    def weights(self) -> tuple[float, float, float]:
        """The fitted weights of the tempered, raw and uniform probabilities; they sum to 1."""
        tempered, raw, uniform = self._fitted()[1:].tolist()
        return tempered, raw, uniform

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find the temperature, then the weights, on held-out logits."""
        temperature = rows.new_tensor(fit_likelihood(rows, labels))
        warn_at_bound(float(temperature), LOWEST, HIGHEST)
        parts = _log_parts(rows, temperature)  # (3, M, C)
        true = parts.gather(2, labels.expand(3, -1).unsqueeze(2))[..., 0]  # (3, M)
        scores = rows.new_zeros(3).requires_grad_()

        def loss() -> Tensor:
            return -(scores.log_softmax(0)[:, None] + true).logsumexp(0).mean()

        minimise(loss, [scores])
        self._state.copy_(torch.cat([temperature.view(1), scores.detach().softmax(0)]))
        self.note_fit()

    def forward(self, logits: Tensor) -> Tensor:
        check_logits(logits)
        state = self._fitted().to(logits.device)
        weights = state[1:].log().to(logits.dtype).view(3, *[1] * logits.ndim)
        return (_log_parts(logits, state[0]) + weights).logsumexp(0)

    def note_fit(self) -> None:
        """Look whether the weights are known; called where they may have changed."""
        self._is_fitted = not bool(self._state.isnan().any())

    def _fitted(self) -> Tensor:
        if not self._is_fitted:
            raise ValueError("the weights are not known yet: call fit(logits, target) first")
        return self._state

    def extra_repr(self) -> str:
        temperature, *weights = self._state.tolist()
        return f"temperature={temperature:.4g}, weights={[round(w, 4) for w in weights]}"


def _log_parts(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logarithms of the tempered, the raw and the uniform probabilities, (3, N, C, ...)."""
    uniform = torch.full_like(logits, -math.log(logits.shape[1]))
    return torch.stack([(logits / temperature).log_softmax(1), logits.log_softmax(1), uniform])
