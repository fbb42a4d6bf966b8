"""Smooth: Blur after Prob, the spatial smoothing layer (Eq. 5)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sfumato.features.blurring import Blur, Padding, blur_features, check_kernel, check_map
from sfumato.features.fused import fused_smooth, is_standard_layer, may_fuse
from sfumato.features.probability import Prob, ProbKind, bound_features, check_prob, split_bound


def smooth_features(
    z: Tensor,
    kernel: Sequence[float] = (1, 1),
    *,
    prob: ProbKind = "tanh",
    temperature: float = 10.0,
    padding: Padding = "zeros",
) -> Tensor:
    r"""Smooth a feature map: bound it, then average neighbours.

    Each point of a map is one prediction for nearly the same data as its neighbours', so their mean
    is an ensemble that costs one pass. It damps the high-frequency noise of (MC) dropout, makes the
    loss landscape flatter, and lets two dropout samples do the work of fifty.

        Smooth(z) = Blur(Prob(z))                                                        (Eq. 5)

    Args:
        z: feature map, best the output of a whole stage, before the next one down-samples it.
        kernel: vector of the blur (Eq. 8); the paper's (1, 1) by default.
        prob: bound of Prob; `tanh` by default. `identity` gives Blur alone.
        temperature: bound of `tanh`, divisor of `scale`; the paper's 10.
        padding: see `blur_features`.

    Shape:
        z: (N, C, H, W). Output: the same; (N, C, H + 1, W + 1) for `grow` with an even kernel.

    Raises:
        ValueError, TypeError: as `bound_features` and `blur_features`.

    Example:
        >>> import torch
        >>> smooth_features(torch.full((1, 1, 3, 3), 100.0))[0, 0]
        tensor([[10.0000, 10.0000,  5.0000],
                [10.0000, 10.0000,  5.0000],
                [ 5.0000,  5.0000,  2.5000]])

    Reference:
        Park & Kim, Blurs Behave Like Ensembles, ICML 2022, **Eq. (5)**.
    """
    check_map(z)
    check_prob(prob, temperature, name="prob")
    if is_standard_layer(check_kernel(kernel), prob, padding) and may_fuse(z):
        return fused_smooth(z, temperature)
    bounded = bound_features(z, prob, temperature=temperature)
    return blur_features(bounded, kernel, padding=padding)  # Eq. (5)


class Smooth(nn.Module):
    """The spatial smoothing layer; see `smooth_features`. No weights, no state-dict entries.

    Args:
        kernel: vector of the blur.
        prob: bound of Prob.
        temperature: bound of `tanh`, divisor of `scale`.
        padding: what lies outside the map.
        inplace: overwrite the input. Only where nothing else reads it, as with `nn.ReLU`.

    Example:
        >>> import torch
        >>> Smooth(padding="replicate")(torch.full((1, 1, 2, 2), 1.0))[0, 0]
        tensor([[0.9967, 0.9967],
                [0.9967, 0.9967]])
    """

    def __init__(
        self,
        kernel: Sequence[float] = (1, 1),
        *,
        prob: ProbKind = "tanh",
        temperature: float = 10.0,
        padding: Padding = "zeros",
        inplace: bool = False,
    ) -> None:
        super().__init__()
        check_prob(prob, temperature, name="prob")
        self.prob = Prob(prob, temperature)
        self.blur = Blur(kernel, padding)
        self.inplace = inplace

    def forward(self, z: Tensor) -> Tensor:
        check_map(z)
        if is_standard_layer(self.blur.kernel, self.prob.kind, self.blur.padding) and may_fuse(z):
            return fused_smooth(z, self.prob.temperature)
        bounded, gain = split_bound(z, self.prob.kind, self.prob.temperature, inplace=self.inplace)
        return self.blur.scaled(bounded, gain)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""
