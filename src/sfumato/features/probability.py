"""Prob: from feature maps to unnormalised probabilities (spatial smoothing, Eq. 6-7, B.1)."""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import check_choice, check_floating, check_number

ProbKind = Literal["tanh", "relu6", "scale", "none", "identity"]


def bound_features(z: Tensor, kind: ProbKind = "tanh", *, temperature: float = 10.0) -> Tensor:
    r"""Bound every point of a feature map, so that it can stand for a probability.

    A stage of a network is read as many small binary classifiers, one at each point. Their outputs
    can only be averaged in a meaningful way if none is unbounded: one huge activation would
    outvote all its neighbours. Each kind is followed by ReLU:

        Prob(z) = ReLU(tanh_tau(z)),  tanh_tau(z) = tau tanh(z / tau)

    Args:
        z: feature map of any shape.
        kind: `tanh` (Eq. 7, range [0, temperature)); `relu6`, min(z, 6); `scale`, z / temperature;
            `none`, no bound at all; `identity`, not even ReLU (blur alone, Appendix F).
        temperature: tau; used by `tanh` (the paper's 10) and `scale` (the paper takes 5).

    Raises:
        ValueError: unknown kind, or temperature not positive.
        TypeError: z is not floating point.

    Example:
        >>> import torch
        >>> bound_features(torch.tensor([-3.0, 1.0, 10.0, 100.0]))
        tensor([ 0.0000,  0.9967,  7.6159, 10.0000])

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (6)**, **Eq. (7)**, Appendix B.1.

    Differs: the released `scale` leaves out the ReLU; the paper's Prob always has it.
    """
    check_prob(kind, temperature)
    check_floating("z", z)
    bounded, gain = split_bound(z, kind, temperature)
    return bounded if gain == 1.0 else bounded * gain


def check_prob(kind: ProbKind, temperature: float, *, name: str = "kind") -> None:
    """Raise unless the two describe a Prob; `name` is what the caller calls its kind."""
    check_choice(name, kind, get_args(ProbKind))
    check_number("temperature", temperature, low=0.0, open_low=True)


def split_bound(
    z: Tensor, kind: ProbKind, temperature: float, *, inplace: bool = False
) -> tuple[Tensor, float]:
    """Prob as a tensor and a factor still to be multiplied in.

    What follows Prob is linear, so the factor can go into its kernel: a pass over memory less.
    """
    if kind == "tanh":
        scaled = z.mul_(1 / temperature) if inplace else z * (1 / temperature)
        return _relu(scaled.tanh_()), temperature  # Eq. (6), (7)
    if kind == "scale":
        return F.relu(z, inplace=inplace), 1 / temperature
    if kind == "relu6":
        return F.relu6(z, inplace=inplace), 1.0
    return (z if kind == "identity" else F.relu(z, inplace=inplace)), 1.0


def _relu(fresh: Tensor) -> Tensor:
    # tanh keeps its output for the backward pass: only without one may it be overwritten.
    return F.relu(fresh, inplace=not fresh.requires_grad)


class Prob(nn.Module):
    """Bounds a feature map; see `bound_features`.

    Example:
        >>> import torch
        >>> Prob("relu6")(torch.tensor([-1.0, 3.0, 9.0]))
        tensor([0., 3., 6.])
    """

    def __init__(self, kind: ProbKind = "tanh", temperature: float = 10.0) -> None:
        super().__init__()
        check_prob(kind, temperature)
        self.kind: ProbKind = kind
        self.temperature = temperature

    def forward(self, z: Tensor) -> Tensor:
        return bound_features(z, self.kind, temperature=self.temperature)

    def extra_repr(self) -> str:
        tau = f", temperature={self.temperature:g}" if self.kind in ("tanh", "scale") else ""
        return f"{self.kind!r}{tau}"
