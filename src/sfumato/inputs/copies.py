"""Test-time augmentation: the mean prediction over flipped, shifted and mollified copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import (
    check_choice,
    check_class_indices,
    check_integer,
    check_number,
    to_float64,
)
from sfumato.inputs.mollify import heat_blur

Weights = Literal["equal", "likelihood"]
_STEPS = 200


class AveragedCopies(nn.Module):
    """Averages the probabilities of a network over changed copies of each image.

    What a prediction owes to the exact position or the finest detail of an image is averaged away.
    n copies cost n passes.

        p = sum_i w_i softmax(f(T_i x))

    Args:
        model: gives logits (B, C).
        flip: whether to have a copy that is mirrored from left to right.
        crop: pixels by which four copies are shifted, one to each corner, over a repeated border; 0
            for none.
        blur: standard deviations in pixels of mollified copies, each above 0.
        weights: "equal", or "likelihood" for those that `fit` finds.

    Shape:
        images: (B, channels, H, W), standardised; probabilities (B, C).

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> predictor = AveragedCopies(net, flip=True, blur=[0.5])
        >>> predictor.count, predictor(torch.zeros(2, 1, 2, 2)).shape
        (3, torch.Size([2, 3]))

    Reference:
        Shanmugam et al., "Better Aggregation in Test-Time Augmentation", ICCV 2021, who fit weights
        for each class and copy, by gradient descent.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        flip: bool = True,
        crop: int = 0,
        blur: Sequence[float] = (),
        weights: Weights = "equal",
    ) -> None:
        super().__init__()
        check_integer("crop", crop, low=0)
        for sigma in blur:
            check_number("blur", sigma, low=0.0, open_low=True)
        check_choice("weights", weights, ("equal", "likelihood"))
        self.model = model
        self.flip, self.crop, self.blur = flip, crop, tuple(blur)
        self.count = 1 + int(flip) + 4 * (crop > 0) + len(self.blur)
        if self.count == 1:
            raise ValueError("nothing to average: ask for flip, a crop or blur")
        self.is_fitted = weights == "equal"
        share = 1 / self.count if self.is_fitted else math.nan
        self.register_buffer("shares", torch.full((self.count,), share))
        self.register_load_state_dict_post_hook(AveragedCopies._look_whether_fitted)

    shares: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Weighted mean of the copies' probabilities."""
        if not self.is_fitted:
            raise ValueError(
                'weights="likelihood" are not known yet: call fit(each(images), target) with '
                "held-out images first"
            )
        pairs = zip(self.shares, self.copies(images), strict=True)
        return reduce(torch.add, (share * self._probabilities(copy) for share, copy in pairs))

    def each(self, images: Tensor) -> Tensor:
        """Probabilities of every copy, (B, n, C), to fit on."""
        return torch.stack([self._probabilities(copy) for copy in self.copies(images)], 1)

    def fit(self, probs: Tensor, target: Tensor) -> AveragedCopies:
        """Find the weights under which held-out labels are most likely; returns itself.

        Expectation maximisation, since the likelihood of a mixture is concave in its weights.

        Args:
            probs: (N, n, C), what `each` gives for held-out images.
            target: class indices (N,).
        """
        if probs.ndim != 3 or probs.shape[1] != self.count or target.shape != probs.shape[:1]:
            raise ValueError(
                f"probs must be (N, {self.count}, C) and target (N,), got {tuple(probs.shape)} "
                f"and {tuple(target.shape)}"
            )
        if not len(probs):
            raise ValueError("there is nothing to fit on: probs is empty")
        check_class_indices("target", target, probs.shape[2])
        places = target.view(-1, 1, 1).expand(-1, self.count, 1)
        likelihood = to_float64(probs.detach().gather(2, places)).squeeze(2)  # (N, n)
        # A label that no copy gives any probability would make every share 0 / 0.
        likelihood = likelihood.clamp_min(torch.finfo(torch.float64).tiny)
        shares = likelihood.new_full((self.count,), 1 / self.count)
        for _ in range(_STEPS):
            joint = shares * likelihood
            shares = (joint / joint.sum(1, keepdim=True)).mean(0)
        self.shares.copy_(shares)
        self.is_fitted = True
        return self

    def copies(self, images: Tensor) -> Iterator[Tensor]:
        """The images themselves and their changed copies, one batch after the other."""
        yield images
        if self.flip:
            yield images.flip(-1)
        if self.crop:
            (height, width), by = images.shape[-2:], self.crop
            if by >= min(height, width):
                raise ValueError(
                    f"crop must be below the size of the images {height, width}, got {by}"
                )
            padded = F.pad(images, (by, by, by, by), mode="replicate")
            for top, left in product((0, 2 * by), repeat=2):
                yield padded[..., top : top + height, left : left + width]
        for sigma in self.blur:
            yield heat_blur(images, sigma)

    def _look_whether_fitted(self, _: Any) -> None:
        self.is_fitted = not bool(self.shares.isnan().any())

    def _probabilities(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        # Half precision would round probabilities before they are averaged.
        return logits.softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))
