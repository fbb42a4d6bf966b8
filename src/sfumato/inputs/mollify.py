"""Mollification of a training batch: images degraded at random, labels smoothed to match.

Reference: Heinonen et al., "Robust Classification by Coupling Data Mollification with Label
Smoothing", 2025.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args, overload

import torch
from torch import Tensor, nn

from sfumato._core.beta import sample_beta
from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato._core.images import check_images, soft_labels
from sfumato.inputs.heat import dissipate
from sfumato.inputs.information import information_label_decay
from sfumato.inputs.noise import diffuse
from sfumato.inputs.schedules import blur_label_decay, noise_label_decay
from sfumato.labels.targets import smooth_labels, temper_labels

LabelForm = Literal["smooth", "temper", "keep"]
BlurDecay = Literal["power", "png"]

CLEAN, NOISE, BLUR = 0, 1, 2


class MollifyDetails(NamedTuple):
    """What was drawn for each image of a batch.

    Attributes:
        mode: int64, (N,), 0 clean, 1 noise, 2 blur.
        t: float32, (N,), temperature; 0 for clean images.
        decay: float32, (N,), the share gamma of the label that is lost; 0 for clean images.
    """

    mode: Tensor
    t: Tensor
    decay: Tensor


class Mollify(nn.Module):
    """Degrade the images of a batch at random and take the same share away from their labels.

    Each image stays clean, is drowned in noise or is blurred, at a random temperature; its label
    is smoothed by as much as the image has lost. The network learns to be as sure as an image
    allows, which makes it more robust and better calibrated on corrupted images.

        t ~ Beta(alpha, beta)
        noise:  x_t = cos(pi t / 2) x + sin(pi t / 2) eps                                (Eq. 4)
                gamma = sin(pi t / 2)^(2k)                                              (Eq. 12)
        blur:   x_t = V exp(-tau(t) Lambda) V^T x                                        (Eq. 5)
                gamma = t^k, or 1 - the share of PNG bytes left, to the power of k      (Eq. 13)
        smooth: y_t = (1 - gamma) y + gamma / C                                          (Eq. 8)
        temper: y_t = (1 - gamma) y                                                      (Eq. 7)

    It comes last: after augmentation, normalisation and MixUp or CutMix, whose soft labels it
    accepts. Like torchvision's transforms it acts whenever it is called, in train and eval mode.

    Args:
        num_classes: C.
        modes: probabilities of clean, noise and blur.
        alpha: first parameter of the Beta distribution of t.
        beta: second parameter; larger values degrade less. The mean of t is alpha / (alpha + beta).
        noise_k: slope of the label decay of noisy images; below 1 labels decay faster.
        blur_k: slope of the label decay of blurred images.
        blur_decay: of blurred images, "power" (t^k) or "png": the bits that each image really
            loses, see `information_label_decay`. It writes two PNG files for each of them, on the
            CPU, and needs `mean` and `std`.
        labels: "smooth" (the paper's), "temper", or "keep" (labels as they are).
        mean: of each channel, if the images are on the [0, 1] scale and not yet standardised;
            noise then has the strength it would have after standardising, and the images stay on
            their scale. None means that the images are standardised.
        std: of each channel; goes with `mean`.
        standardised: whether images are standardised by `mean` and `std` already, which "png"
            undoes for its files.

    Shape:
        images: (N, C, H, W), floating point. target: (N,) class indices or (N, num_classes) soft.
        Returns images like the input and soft labels (N, num_classes).

    Example:
        >>> mollify = Mollify(10)
        >>> images, target = torch.randn(8, 3, 32, 32), torch.arange(8)
        >>> generator = torch.Generator().manual_seed(0)
        >>> images, soft_target, details = mollify(
        ...     images, target, generator=generator, return_details=True
        ... )
        >>> details.mode
        tensor([2, 2, 1, 2, 1, 2, 0, 1])

    Reference: mollification paper, Sec. 3.2-3.3 and "Mini-batching" in Sec. 4.
    Differs: the released code draws from NumPy's global generator, which nothing seeds.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        num_classes: int,
        *,
        modes: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
        alpha: float = 1.0,
        beta: float = 2.0,
        noise_k: float = 1.0,
        blur_k: float = 1.0,
        blur_decay: BlurDecay = "power",
        labels: LabelForm = "smooth",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        standardised: bool = False,
    ) -> None:
        super().__init__()
        check_integer("num_classes", num_classes, low=2)
        _check_modes(modes)
        positive = {"alpha": alpha, "beta": beta, "noise_k": noise_k, "blur_k": blur_k}
        for name, value in positive.items():
            check_number(name, value, low=0.0, open_low=True)
        check_choice("blur_decay", blur_decay, get_args(BlurDecay))
        check_choice("labels", labels, get_args(LabelForm))
        _check_statistics(mean, std)
        if mean is None and (standardised or blur_decay == "png"):
            raise ValueError(
                "blur_decay='png' and standardised=True need the mean and std of each channel: PNG "
                "files hold pixels in [0, 1]"
            )
        self.num_classes = num_classes
        self.modes = tuple(modes)
        self.alpha, self.beta = alpha, beta
        self.noise_k, self.blur_k = noise_k, blur_k
        self.blur_decay: BlurDecay = blur_decay
        self.labels: LabelForm = labels
        self.standardised = standardised
        for name, values in (("mean", mean), ("std", std)):
            tensor = None if values is None else torch.tensor(values).float().view(-1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)

    @overload
    def forward(
        self, images: Tensor, target: Tensor, *, generator: torch.Generator | None = ...
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(
        self,
        images: Tensor,
        target: Tensor,
        *,
        generator: torch.Generator | None = ...,
        return_details: Literal[True],
    ) -> tuple[Tensor, Tensor, MollifyDetails]: ...

    def forward(
        self,
        images: Tensor,
        target: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_details: bool = False,
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, MollifyDetails]:
        """Mollified images and soft labels; with `return_details`, also what was drawn."""
        check_images(images)
        self._check_channels(images)
        soft_target = soft_labels(target, images, self.num_classes)
        details = self.draw(len(images), generator=generator)
        if self.blur_decay == "png":
            details = self._measured(images, details)
        images = self._degrade(images, details, generator)
        soft_target = self._decay(soft_target, details.decay.to(soft_target))
        return (images, soft_target, details) if return_details else (images, soft_target)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> MollifyDetails:
        """Mode, temperature and label decay of `count` images, on the CPU.

        With `blur_decay="png"` the decay of blurred images is that of "power": which it really is
        depends on the images.
        """
        device = None if generator is None else generator.device
        weights = torch.tensor(self.modes, dtype=torch.float64, device=device)
        mode = weights.multinomial(max(count, 1), replacement=True, generator=generator)[:count]
        t = sample_beta(count, self.alpha, self.beta, generator=generator)
        mode, t = mode.cpu(), t.cpu()
        t = torch.where(mode == CLEAN, 0.0, t)
        noise, blur = noise_label_decay(t, self.noise_k), blur_label_decay(t, self.blur_k)
        return MollifyDetails(mode, t, torch.where(mode == NOISE, noise, blur))

    def extra_repr(self) -> str:
        """The parameters, for printing."""
        modes = ", ".join(f"{share:.3g}" for share in self.modes)
        return (
            f"{self.num_classes}, modes=({modes}), alpha={self.alpha:g}, beta={self.beta:g}, "
            f"noise_k={self.noise_k:g}, blur_k={self.blur_k:g}, labels={self.labels!r}"
            f"{', blur_decay=' + repr(self.blur_decay) if self.blur_decay != 'power' else ''}"
        )

    def _degrade(
        self, images: Tensor, details: MollifyDetails, generator: torch.Generator | None
    ) -> Tensor:
        degraded = images.clone()
        for mode in (NOISE, BLUR):
            rows = (details.mode == mode).nonzero().flatten()
            if len(rows) == 0:
                continue
            where, t = rows.to(images.device), details.t[rows]
            part = images[where]
            if mode == BLUR:
                degraded[where] = dissipate(part, t)
            elif self.mean is None or self.std is None or self.standardised:
                degraded[where] = diffuse(part, t, generator=generator)
            else:
                mean, std = self.mean.to(images.device), self.std.to(images.device)
                noisy = diffuse((part - mean) / std, t, generator=generator)
                degraded[where] = (noisy * std + mean).to(images.dtype)
        return degraded

    def _measured(self, images: Tensor, details: MollifyDetails) -> MollifyDetails:
        """What was drawn, with the label decay of blurred images by their PNG files."""
        rows = (details.mode == BLUR).nonzero().flatten()
        if len(rows) == 0:
            return details
        pixels = images[rows.to(images.device)]
        if self.standardised and self.mean is not None and self.std is not None:
            pixels = pixels * self.std.to(images.device) + self.mean.to(images.device)
        decay = details.decay.clone()
        decay[rows] = information_label_decay(pixels, details.t[rows], self.blur_k)  # Eq. (13)
        return details._replace(decay=decay)

    def _decay(self, soft_target: Tensor, decay: Tensor) -> Tensor:
        if self.labels == "keep":
            return soft_target
        if self.labels == "temper":
            return temper_labels(soft_target, decay, num_classes=self.num_classes)  # Eq. (7)
        return smooth_labels(soft_target, decay, num_classes=self.num_classes)  # Eq. (8)

    def _check_channels(self, images: Tensor) -> None:
        if self.mean is not None and len(self.mean) != images.shape[1]:
            raise ValueError(
                f"images must have {len(self.mean)} channels, as mean and std have, "
                f"got {tuple(images.shape)}"
            )


def _check_modes(modes: Sequence[float]) -> None:
    if len(modes) != 3:
        raise ValueError(
            f"modes must be three probabilities (clean, noise, blur), got {len(modes)}: {modes!r}"
        )
    for share in modes:
        check_number("modes", share, low=0.0, high=1.0)
    if not math.isclose(sum(modes), 1.0, abs_tol=1e-6):
        raise ValueError(
            f"modes must sum to 1, got {tuple(modes)} with sum {sum(modes):g}. "
            "Give the probabilities of clean, noise and blur."
        )


def _check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    if (mean is None) != (std is None):
        raise ValueError("mean and std go together: give both (images in [0, 1]) or neither")
    if mean is None or std is None:
        return
    if len(mean) != len(std) or len(mean) == 0:
        raise ValueError(
            f"mean and std must have one entry per channel, got {len(mean)} and {len(std)}"
        )
    for value in mean:
        check_number("mean", value)
    for value in std:
        check_number("std", value, low=0.0, open_low=True)
