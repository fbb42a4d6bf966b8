"""Spline scaling: a temperature that depends on how far the first class is ahead of the second.

After the spline calibration of Lucena (2018, arXiv 1809.07751), which fits a spline to scores, and
of Gupta et al. (ICLR 2021), here by likelihood on the margin of the logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._core.checks import check_integer, check_number
from sfumato.predictions.held_out import adopt_shapes, check_logits, minimise
from sfumato.predictions.scaler import Scaler


class SplineScaler(Scaler):
    """Scales the logits of each sample by h(m) / m, m the margin of its two largest logits.

    h is continuous, increasing and linear between knots at quantiles of the held-out margins:
    h(m) = sum_j slope_j clip(m - knot_j, 0, knot_(j+1) - knot_j). One temperature is the case of
    equal slopes; a spline also repairs networks that are too sure only where they are very sure.
    The order of the classes stays.

    Args:
        pieces: stretches of the spline, at least 1; fewer where margins coincide.
        penalty: weight of the squared differences of neighbouring log slopes, over the number of
            samples.

    Shape:
        logits: (N, C) or (N, C, d1, ...); target: class indices (N, d1, ...).

    Raises:
        ValueError: used before `fit`, or nothing to fit on.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = SplineScaler().fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 2)
        0.75
    """

    knots: Tensor  # (J,) begin of each stretch; the first is 0
    slopes: Tensor  # (J,)

    def __init__(self, *, pieces: int = 6, penalty: float = 1.0) -> None:
        super().__init__()
        check_integer("pieces", pieces, low=1)
        check_number("penalty", penalty, low=0.0)
        self.pieces, self.penalty = pieces, penalty
        self.register_buffer("knots", torch.empty(0, dtype=torch.float64))
        self.register_buffer("slopes", torch.empty(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def fit_rows(self, rows: Tensor, labels: Tensor) -> None:
        """Find the slopes on held-out logits."""
        below, margin = _below_top(rows)
        shares = torch.linspace(0, 1, self.pieces + 1, dtype=rows.dtype)[1:-1].to(rows.device)
        inner = margin.quantile(shares) if len(shares) else margin[:0]
        knots = torch.cat([inner.new_zeros(1), inner[inner > 0].unique()])
        lengths = _lengths(margin, knots)
        log_slopes = torch.zeros_like(knots).requires_grad_()

        def loss() -> Tensor:
            scale = _ratio(lengths @ log_slopes.exp(), margin, log_slopes[0].exp())
            rough = log_slopes.diff().square().sum() * self.penalty / len(labels)
            return F.cross_entropy(below * scale.unsqueeze(1), labels) + rough

        minimise(loss, [log_slopes])
        self.knots, self.slopes = knots, log_slopes.detach().exp()

    def forward(self, logits: Tensor) -> Tensor:
        check_logits(logits)
        if not self.slopes.numel():
            raise ValueError("the spline is not known yet: call fit(logits, target) first")
        below, margin = _below_top(logits)
        slopes = self.slopes.to(logits)
        height = _lengths(margin, self.knots.to(logits)) @ slopes
        return below * _ratio(height, margin, slopes[0]).unsqueeze(1)

    def extra_repr(self) -> str:
        return f"pieces={self.pieces}, penalty={self.penalty:g}"


def _below_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits less their largest, (N, C, ...), and the margin of the two largest, (N, ...)."""
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return logits - first.unsqueeze(1), first - second


def _lengths(margin: Tensor, knots: Tensor) -> Tensor:
    """How much of each stretch lies below the margin, (..., J); the last has no end."""
    widths = torch.cat([knots.diff(), knots.new_full((1,), torch.inf)])
    return torch.minimum((margin.unsqueeze(-1) - knots).clamp(min=0), widths)


def _ratio(height: Tensor, margin: Tensor, first: Tensor) -> Tensor:
    """h(m) / m; at 0 its limit, the first slope."""
    tied = margin <= 0
    return (height / margin.masked_fill(tied, 1.0)).where(~tied, first)
