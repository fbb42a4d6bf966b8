"""Feature clipping: features are clamped before the last layer, by as much as held-out data ask."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_class_indices, check_number, to_float64, to_float64_device

_CANDIDATES = 100


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a model, which gives its logits."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise ValueError(f"model must end in a linear layer, {type(model).__name__} has none")
    return layers[-1]


class ClippedFeatures(nn.Module):
    """A trained network whose features are clamped to [-c, c] before its last linear layer.

    Overconfident predictions come from a few features of great size. The weights stay as they are.

        z = W clamp(f(x), -c, c) + b

    Args:
        model: gives logits (B, C), the output of its last linear layer.
        threshold: c, above 0; infinity, with which nothing changes, until `fit` finds one.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> clipped = ClippedFeatures(net, threshold=0.5)
        >>> bool(clipped.features(torch.ones(1, 2)).max() > 0.5)  # as the network has them
        True
        >>> torch.equal(clipped(torch.ones(1, 2)), net(torch.ones(1, 2)))
        False

    Reference:
        Tao, Dong and Xu, "Feature Clipping for Uncertainty Calibration", AAAI 2025.
    """

    def __init__(self, model: nn.Module, *, threshold: float = math.inf) -> None:
        super().__init__()
        if threshold != math.inf:
            check_number("threshold", threshold, low=0.0, open_low=True)
        self.model = model
        self.threshold = threshold
        self._head = [last_linear(model)]  # in a list, so that it is the model's alone

    def get_extra_state(self) -> Tensor:
        """The threshold, as an entry of the state dict."""
        return torch.tensor(self.threshold, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.threshold = float(state)

    @property
    def head(self) -> nn.Linear:
        """The layer before which features are clamped."""
        return self._head[0]

    def forward(self, x: Tensor) -> Tensor:
        """Logits from clamped features."""

        def clamp(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0].clamp(-self.threshold, self.threshold), *inputs[1:])

        with self.head.register_forward_pre_hook(clamp):
            logits: Tensor = self.model(x)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Return the unclamped features before the last layer, for `fit`."""
        found: list[Tensor] = []

        with self.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])):
            self.model(x)
        return found[-1]

    @torch.no_grad()
    def fit(self, features: Tensor, target: Tensor) -> ClippedFeatures:
        """Find the threshold with the least NLL on held-out features; returns itself.

        Args:
            features: (N, D), what `features` gives for held-out images.
            target: class indices (N,).

        Differs:
            By NLL, as temperatures are fitted here; no clipping at all is a candidate too.
        """
        if features.ndim != 2 or target.shape != features.shape[:1] or not len(features):
            raise ValueError(
                "features must be (N, D) and target (N,) with N at least 1, got "
                f"{tuple(features.shape)} and {tuple(target.shape)}"
            )
        check_class_indices("target", target, self.head.out_features)
        features = features.to(self.head.weight)
        target = target.to(features.device)
        # Infinity is first, so that it wins among equals: no clipping without a gain.
        losses = {c: self._loss(features, target, c) for c in (math.inf, *_candidates(features))}
        self.threshold = min(losses, key=losses.__getitem__)
        return self

    def _loss(self, features: Tensor, target: Tensor, threshold: float) -> float:
        logits = self.head(features.clamp(-threshold, threshold))
        return float(F.cross_entropy(to_float64(logits), to_float64_device(target)))


def _candidates(features: Tensor) -> list[float]:
    """Sizes of features, from the median up and more of the larger ones."""
    sizes = to_float64(features.abs().flatten())
    sizes = sizes[sizes > 0].sort().values
    if not len(sizes):
        return []
    upper = 1 - 0.5 * torch.logspace(0, -6, _CANDIDATES, dtype=torch.float64, device=sizes.device)
    places = (upper * (len(sizes) - 1)).round().long()
    return [float(size) for size in sizes[places].unique()]
