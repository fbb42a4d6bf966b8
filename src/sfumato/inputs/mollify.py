"""Mollification: degrade images by noise or heat blur, and smooth their labels to match.

Reference ("mollification paper" below): Heinonen et al., "Robust Classification by Coupling Data
Mollification with Label Smoothing", 2025.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from PIL import Image
from torch import Tensor, nn

from sfumato._core.checks import (
    check_batch,
    check_choice,
    check_floating,
    check_images,
    check_integer,
    check_number,
    is_traced,
    soft_labels,
    to_float64,
    with_float64,
    working_dtype,
)
from sfumato._core.seeds import sample_beta
from sfumato.labels.targets import smooth_labels, temper_labels


def per_image(
    name: str, value: Tensor | float, images: Tensor, *, high: float = math.inf
) -> Tensor:
    """`value` as one number per image, (N,), each checked to be in [0, high]."""
    if isinstance(value, bool) or not isinstance(value, Tensor | int | float):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    numbers = torch.as_tensor(value, dtype=working_dtype(images), device=images.device)
    if numbers.ndim > 1 or numbers.numel() not in (1, len(images)):
        raise ValueError(
            f"{name} must be a number or hold one per image, shape ({len(images)},), "
            f"got {tuple(numbers.shape)}"
        )
    if not is_traced():
        check_range(name, numbers, high)
    return numbers.expand(len(images))


def check_range(name: str, numbers: Tensor, high: float) -> None:
    """Raise unless every number is in [0, high]; NaN is not."""
    fits = (numbers >= 0) & (numbers <= high) & (numbers < math.inf)
    if not bool(fits.all()):
        interval = f"[0, {high:g}]" if high < math.inf else "[0, inf)"
        worst = numbers.detach()[~fits].flatten()[0].item()
        raise ValueError(f"{name} must be in {interval}, got {worst:g}")


def noise_label_decay(t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that noise of temperature t destroys.

    The label decays with the signal-to-noise ratio of the image, SNR = cos^2 / sin^2 (pi t / 2):

        gamma = (1 / (1 + SNR))^k = sin(pi t / 2)^(2k)                                 (Eq. 12)

    Args:
        t: temperatures in [0, 1], any shape.
        k: slope; below 1 the label decays faster, above 1 slower. The paper uses 1.

    Returns:
        gamma in [0, 1], shaped like `t`: 0 leaves a label as it is, 1 makes it uniform.

    Example:
        >>> noise_label_decay(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.5000, 1.0000])

    Reference: mollification paper, Eq. (12).
    """
    t = _temperatures(t, k)
    return torch.sin(t * (math.pi / 2)).pow(2 * k)  # Eq. (12)


def blur_label_decay(t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that blur of temperature t destroys: gamma = t^k.

    Blur adds no noise; the label decays with the bits that are lost instead, which fall linearly
    in t. `information_label_decay` measures them.

    Args:
        t, k: as in `noise_label_decay`, and so is the result.

    Example:
        >>> blur_label_decay(torch.tensor([0.0, 0.5, 1.0]), k=2.0)
        tensor([0.0000, 0.2500, 1.0000])

    Reference: mollification paper, Eq. (13), right-hand side.
    """
    return _temperatures(t, k).pow(k)  # Eq. (13)


def blur_scale(t: Tensor | float, *, sigma_max: float, sigma_min: float = 0.3) -> Tensor:
    """Standard deviation of the blur in pixels, logarithmic in t.

        sigma_B = exp((1 - t) log sigma_min + t log sigma_max)                          (Eq. 6)

    Args:
        t: temperatures in [0, 1], any shape.
        sigma_max: scale at t = 1; the paper uses the image width.
        sigma_min: scale at t = 0; the paper uses 0.3, which is hardly visible.

    Example:
        >>> blur_scale(torch.tensor([0.0, 0.5, 1.0]), sigma_max=30.0)
        tensor([ 0.3000,  3.0000, 30.0000])

    Reference: mollification paper, Eq. (6).
    """
    check_number("sigma_min", sigma_min, low=0.0, open_low=True)
    check_number("sigma_max", sigma_max, low=sigma_min)
    t = _temperatures(t)
    return torch.exp((1 - t) * math.log(sigma_min) + t * math.log(sigma_max))  # Eq. (6)


def _temperatures(t: Tensor | float, k: float = 1.0) -> Tensor:
    check_number("k", k, low=0.0, open_low=True)
    t = torch.as_tensor(t)
    t = t if t.is_floating_point() else t.to(torch.get_default_dtype())
    if not is_traced():
        check_range("t", t, 1.0)
    return t


def diffuse(
    images: Tensor,
    t: Tensor | float,
    *,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mix each image with Gaussian noise, from the image itself (t = 0) to noise alone (t = 1).

    The cosine schedule keeps standardised images standardised.

        x_t = cos(pi t / 2) x + sin(pi t / 2) eps,   eps ~ N(0, 1)                      (Eq. 4)

    Args:
        images: (N, C, H, W), standardised to mean 0 and variance 1, floating point.
        t: temperature in [0, 1], one number or one per image (N,).
        noise: eps, shaped like `images`; drawn from `generator`, on any device, where it is None.

    Example:
        >>> image = torch.ones(1, 1, 1, 2)
        >>> diffuse(image, 1 / 3, noise=-image).flatten()
        tensor([0.3660, 0.3660])

    Reference: mollification paper, Eq. (4).
    """
    check_images(images)
    angle = per_image("t", t, images, high=1.0)[:, None, None, None] * (math.pi / 2)
    noise = _noise_like(images, noise, generator)
    # Eq. (4)
    return torch.addcmul(torch.cos(angle) * images, torch.sin(angle), noise).to(images.dtype)


def _noise_like(images: Tensor, noise: Tensor | None, generator: torch.Generator | None) -> Tensor:
    dtype = working_dtype(images)
    if noise is None:
        device = images.device if generator is None else generator.device
        drawn = torch.randn(images.shape, generator=generator, device=device, dtype=dtype)
        return drawn.to(images.device)
    if generator is not None:
        raise ValueError("noise is given, so there is nothing to draw: leave generator out")
    if noise.shape != images.shape:
        raise ValueError(
            f"noise must have the shape of images {tuple(images.shape)}, got {tuple(noise.shape)}"
        )
    return noise.to(dtype)


# Without gradients a batch goes through in parts of this many numbers, so that intermediate results
# stay in the cache: fresh memory would cost as much as the products themselves.
_PART = 2**18


def dissipate(
    images: Tensor, t: Tensor | float, *, sigma_min: float = 0.3, sigma_max: float | None = None
) -> Tensor:
    """Blur each image by the heat equation, from hardly (t = 0) to its mean colour (t = 1).

    Fine detail goes first, so that a network learns to rely on coarse structure. The scale grows
    logarithmically, which removes bits linearly.

        x_t = V exp(-tau Lambda) V^T x,   tau = sigma_B(t)^2 / 2                        (Eq. 5)
        sigma_B(t) = exp((1 - t) log sigma_min + t log sigma_max)                       (Eq. 6)

    Args:
        images: (N, C, H, W), floating point, any height and width.
        t: temperature in [0, 1], one number or one per image (N,).
        sigma_min: blur scale in pixels at t = 0; even there the image is blurred a little.
        sigma_max: blur scale in pixels at t = 1; None is the width of the images.

    Example:
        >>> image = torch.tensor([0.0, 0.0, 4.0, 0.0]).reshape(1, 1, 1, 4)
        >>> dissipate(image, 0.5).flatten()
        tensor([0.3094, 0.9642, 1.4909, 1.2355])

    Reference: mollification paper, Eq. (5) and (6).
    Differs: the released code needs square images, and lets autocast round the transform.
    """
    check_images(images)
    t = per_image("t", t, images, high=1.0)
    scale = float(images.shape[-1]) if sigma_max is None else sigma_max
    return _blur(images, blur_scale(t, sigma_min=sigma_min, sigma_max=scale))


def heat_blur(images: Tensor, sigma: Tensor | float) -> Tensor:
    """Blur each image by a Gaussian of its own width, mirrored at the borders.

    The heat equation after time sigma^2 / 2, with no flow through the borders: means stay and
    squared scales add. It is solved in the cosine transform, so that a scale below one pixel rings
    a little at edges. With the heat kernels K of height and width

        x_sigma = V exp(-sigma^2 / 2 Lambda) V^T x = K_H x K_W                          (Eq. 5)

    Args:
        images: (N, C, H, W), floating point.
        sigma: standard deviation in pixels, at least 0, one number or one per image (N,).

    Example:
        >>> image = torch.tensor([0.0, 0.0, 4.0, 0.0]).reshape(1, 1, 1, 4)
        >>> heat_blur(image, 0.5).flatten()
        tensor([-0.0360,  0.6106,  2.8586,  0.5668])

    Reference: mollification paper, Eq. (5).
    """
    check_images(images)
    return _blur(images, per_image("sigma", sigma, images))


def _cosine_sums(size: int, sigma: Tensor) -> Tensor:
    """Return g(m) / 2 for m from 1 - n to 2n - 1, (N, 3n - 1): all that a blur matrix holds.

        K = V exp(-sigma^2 / 2 Lambda) V^T,   Lambda_f = (pi f / n)^2                   (Eq. 5)

    With g(m) = 1/n sum_f c_f exp(-sigma^2 / 2 Lambda_f) cos(pi f m / n), c_0 = 1 and all other
    c_f = 2, the product of cosines makes every entry a sum of two values, the Gaussian and its
    mirror image K_ij = (g(i - j) + g(i + j + 1)) / 2: n^2 operations, not n^3.
    """
    frequency = torch.arange(size, device="cpu")
    offset = torch.arange(1 - size, 2 * size, device="cpu")
    # Whole periods are taken off as integers, so that the cosines are exact for every size.
    angle = (frequency[:, None] * offset) % (2 * size)
    cosines = torch.cos(angle.double() * (math.pi / size)) / size
    cosines[0] /= 2
    radians = frequency.to(sigma) * (math.pi / size)  # per pixel
    # exp(-80) is nothing in float64 too, but still a normal number: denormal ones are slow.
    exponent = (0.5 * (sigma[:, None] * radians).square()).clamp(max=80)
    return torch.exp(-exponent) @ cosines.to(sigma)


def _matrices(sums: Tensor) -> Tensor:
    """Build K, (N, n, n), from the cosine sums: two views of them, one mirrored."""
    size = (sums.shape[1] + 1) // 3
    lines = sums.unfold(1, size, 1)  # (N, 2n, n), line i begins at m = 1 - n + i
    return lines[:, :size].flip(2).add_(lines[:, size:])


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    with torch.autocast(device_type=images.device.type, enabled=False):
        pixels = images.to(working_dtype(images))
        across = _cosine_sums(width, sigma)
        down = across if height == width else _cosine_sums(height, sigma)
        wants_gradient = torch.is_grad_enabled() and (images.requires_grad or sigma.requires_grad)
        if wants_gradient or is_traced() or not images.is_cpu:
            rows, columns = _matrices(down)[:, None], _matrices(across)[:, None]
            return (rows @ (pixels @ columns)).to(images.dtype)  # Eq. (5)
        return _blur_in_parts(pixels, down, across).to(images.dtype)


def _blur_in_parts(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    total, channels, height, width = images.shape
    count = max(1, min(total, max(8, _PART // (channels * height * width))))
    blurred = torch.empty(images.shape, dtype=images.dtype, device=images.device)
    # All channels of a line beside each other: products of single channels are so small at 32
    # pixels that starting them costs more than computing them.
    lines = blurred.new_empty(count, height, channels, width)
    spread = torch.empty_like(lines)
    parts = (tensor.split(count) for tensor in (images, down, across, blurred))
    for part, part_down, part_across, out in zip(*parts, strict=True):
        columns = _matrices(part_across)
        rows = columns if down is across else _matrices(part_down)
        used, each = lines[: len(part)], spread[: len(part)]
        used.copy_(part.transpose(1, 2))
        torch.bmm(used.flatten(1, 2), columns, out=each.flatten(1, 2))
        torch.bmm(rows, each.flatten(2), out=used.flatten(2))  # Eq. (5)
        out.copy_(used.transpose(1, 2))
    return blurred


def png_sizes(images: Tensor) -> Tensor:
    """Number of bytes of each image as a PNG file (Lempel-Ziv and Huffman coding).

    Differs: the paper counts with `torchvision.io.encode_png`, which torchvision 0.29 deprecates;
        the files that Pillow writes have the same sizes within 1 %.
    """
    check_images(images)
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels for PNG, got {tuple(images.shape)}")
    levels = (images.detach().float() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    pixels = levels.permute(0, 2, 3, 1).squeeze(-1).numpy()  # (N, H, W, 3) or (N, H, W)
    sizes = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="PNG")
        sizes.append(file.tell())
    return torch.tensor(sizes, dtype=torch.int64)


def information_ratio(images: Tensor, t: Tensor | float) -> Tensor:
    """Share of each image's bits that is left after blurring to temperature t.

        size(x_t.png) / size(x_0.png),   x_t = dissipate(x, t)

    Args:
        images: (N, C, H, W) with 1 or 3 channels on the [0, 1] scale, floating point.
        t: temperature in [0, 1], one number or one per image (N,).

    Returns:
        float32, (N,): 1 at t = 0; a little above 1 where blurring turns flat areas into gradients.

    Example:
        >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> information_ratio(image, 1.0) < 0.05
        tensor([True])

    Reference: mollification paper, Fig. 3.
    """
    sharp = png_sizes(dissipate(images, 0.0))
    return png_sizes(dissipate(images, t)) / sharp


def information_label_decay(images: Tensor, t: Tensor | float, k: float = 1.0) -> Tensor:
    """Share of the label that blur destroys, by the bits that each image really loses.

        gamma = (1 - size(x_t.png) / size(x_0.png))^k                                  (Eq. 13)

    Args:
        images, t: as in `information_ratio`.
        k: as in `noise_label_decay`.

    Returns:
        float32, (N,), gamma in [0, 1]; just below 1 at t = 1, where a PNG header is left.

    Example:
        >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> information_label_decay(image, torch.tensor([0.0]))
        tensor([0.])

    Reference: mollification paper, Eq. (13), left-hand side.
    Differs: the equation is printed without "1 -", but the ratio falls from 1 to 0 as t rises, and
        both its approximation t^k and the text ask for a decay that rises.
    """
    check_number("k", k, low=0.0, open_low=True)
    return (1 - information_ratio(images, t)).clamp(0, 1).pow(k)  # Eq. (13)


def label_density(probs: Tensor, target: Tensor) -> Tensor:
    """The density Dir(f | 1 + y) of a prediction f under a label y.

    Its logarithm is the negative cross entropy up to a constant of y, so its mode is what the label
    asks for: certainty where it is one-hot or tempered, itself where it is smoothed.

    Args:
        probs: predictions f, (N, C), whose rows sum to 1.
        target: the label y, (C,), at least 0; a tempered label need not sum to 1.

    Example:
        >>> centre = torch.full((1, 3), 1 / 3)
        >>> label_density(centre, torch.tensor([1.0, 0.0, 0.0]))  # 3! / (1! 0! 0!) / 3
        tensor([2.0000], dtype=torch.float64)

    Reference: Eq. (10) and (11).
    """
    check_floating("probs", probs)
    check_floating("target", target)
    if probs.ndim != 2 or target.shape != probs.shape[1:]:
        raise ValueError(
            f"probs must be (N, C) and target (C,), got {tuple(probs.shape)} and "
            f"{tuple(target.shape)}"
        )
    if bool((target < 0).any()):
        raise ValueError(f"target must be at least 0, got {target.tolist()}")
    target, probs = to_float64(target), to_float64(probs)
    concentration = 1.0 + target
    normaliser = torch.lgamma(concentration.sum()) - torch.lgamma(concentration).sum()
    return (torch.xlogy(target, probs).sum(1) + normaliser).exp()  # Eq. (11)


def dct(images: Tensor) -> Tensor:
    """Two-dimensional discrete cosine transform (type II, orthonormal) of every channel.

    Args:
        images: (N, C, H, W), floating point.

    Returns:
        Coefficients like `images`; the mean of a channel times sqrt(H W) is at [..., 0, 0].

    Example:
        >>> dct(torch.tensor([[[[1.0, 2.0]]]])).flatten()
        tensor([ 2.1213, -0.7071])
    """
    check_images(images)
    with torch.autocast(device_type=images.device.type, enabled=False):
        pixels = images.to(working_dtype(images))
        height, width = (_cosines(size).to(pixels) for size in images.shape[-2:])
        return (height @ pixels @ width.T).to(images.dtype)


def dct_change(
    images: Tensor, corruption: Callable[[Tensor], Tensor], *, batch_size: int = 256
) -> Tensor:
    """Mean absolute change of each frequency under a corruption.

        1/N sum_i | DCT[corruption(x_i)] - DCT[x_i] |                                  (Eq. 16)

    Args:
        images: (N, C, H, W), floating point, or uint8 (both sides are then divided by 255).
        corruption: maps a batch to a batch of the same shape and kind.
        batch_size: images at a time.

    Returns:
        (H, W) float64, mean over images and channels; [0, 0] is the mean colour, the axes are the
        vertical and the horizontal frequency.

    Example:
        >>> dct_change(torch.zeros(3, 1, 2, 2), lambda x: x + 1)
        tensor([[2.0000, 0.0000],
                [0.0000, 0.0000]], dtype=torch.float64)

    Reference: mollification paper, Eq. (16) and Fig. 11.
    """
    check_batch(images)
    check_integer("batch_size", batch_size, low=1)
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got an empty batch")
    total = torch.zeros(images.shape[-2:], dtype=torch.float64)
    for batch in images.split(batch_size):
        corrupted = corruption(batch)
        if corrupted.shape != batch.shape or corrupted.dtype != batch.dtype:
            raise ValueError(
                f"corruption must return images like its input, {batch.dtype} "
                f"{tuple(batch.shape)}, got {corrupted.dtype} {tuple(corrupted.shape)}"
            )
        # The transform is linear, so that one of the difference is enough.
        before, after = (x if x.is_floating_point() else x / 255 for x in (batch, corrupted))
        change = dct(after - before).abs()
        total += to_float64(change).mean(1).sum(0).cpu()
    return total / len(images)  # Eq. (16)


def _cosines(size: int) -> Tensor:
    """The orthonormal transform of `size` numbers as a matrix, float64."""
    frequency = torch.arange(size, dtype=torch.float64)
    position = torch.arange(size, dtype=torch.float64) + 0.5
    matrix = torch.cos(frequency[:, None] * position * (math.pi / size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


LabelForm = Literal["smooth", "temper", "keep"]
BlurDecay = Literal["power", "png"]
CLEAN, NOISE, BLUR = 0, 1, 2


class MollifyDetails(NamedTuple):
    """The mollification of each image of a batch, (N,): 0 for clean images.

    Attributes:
        mode: int64, 0 clean, 1 noise, 2 blur.
        t: float32, temperature.
        decay: float32, the share gamma of the label that is lost.
    """

    mode: Tensor
    t: Tensor
    decay: Tensor


class Mollify(nn.Module):
    """Degrade the images of a batch at random and take the same share away from their labels.

    Each image stays clean, becomes noisy or is blurred, at a random temperature; its label is
    smoothed by as much as the image has lost. The network learns to be as sure as an image allows.

        t ~ Beta(alpha, beta)
        noise:  x_t = cos(pi t / 2) x + sin(pi t / 2) eps                                (Eq. 4)
                gamma = sin(pi t / 2)^(2k)                                              (Eq. 12)
        blur:   x_t = V exp(-tau(t) Lambda) V^T x                                        (Eq. 5)
                gamma = t^k, or 1 - the share of PNG bytes left, to the power of k      (Eq. 13)
        smooth: y_t = (1 - gamma) y + gamma / C                                          (Eq. 8)
        temper: y_t = (1 - gamma) y                                                      (Eq. 7)

    It comes last: after augmentation, normalisation and MixUp or CutMix, whose soft labels it
    accepts. Like torchvision's transforms it acts whenever it is called.

    Args:
        num_classes: C.
        modes: probabilities of clean, noise and blur.
        alpha: first parameter of the Beta distribution of t.
        beta: second parameter; larger values degrade less. The mean of t is alpha / (alpha + beta).
        noise_k, blur_k: slopes of the label decay; below 1 labels decay faster.
        blur_decay: "power" (t^k) or "png": the bits that each image really loses, by two PNG files
            of each on the CPU; it needs `mean` and `std`.
        labels: "smooth" (the paper's), "temper", or "keep" (labels as they are).
        mean: of each channel, where images are on the [0, 1] scale; noise then has the strength it
            would have after standardising, and the images stay on their scale. None means that the
            images are standardised.
        std: of each channel; goes with `mean`.
        standardised: whether images are standardised by `mean` and `std` already.

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
        if self.mean is not None and len(self.mean) != images.shape[1]:
            raise ValueError(
                f"images must have {len(self.mean)} channels, as mean and std have, "
                f"got {tuple(images.shape)}"
            )
        soft_target = soft_labels(target, images, self.num_classes)
        details = self.draw(len(images), generator=generator)
        if self.blur_decay == "png":
            details = self._measured(images, details)
        images = self._degrade(images, details, generator)
        soft_target = self._decay(soft_target, details.decay.to(soft_target))
        return (images, soft_target, details) if return_details else (images, soft_target)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> MollifyDetails:
        """Mode, temperature and label decay of `count` images, on the CPU.

        With `blur_decay="png"` the decay of blurred images is still that of "power".
        """
        generator = with_float64(generator)
        device = None if generator is None else generator.device
        weights = torch.tensor(self.modes, dtype=torch.float64, device=device)
        # `multinomial` refuses to draw nothing.
        drawn = weights.multinomial(max(count, 1), replacement=True, generator=generator)[:count]
        mode, t = drawn.cpu(), sample_beta(count, self.alpha, self.beta, generator=generator).cpu()
        t = torch.where(mode == CLEAN, 0.0, t)
        noise, blur = noise_label_decay(t, self.noise_k), blur_label_decay(t, self.blur_k)
        return MollifyDetails(mode, t, torch.where(mode == NOISE, noise, blur))

    def extra_repr(self) -> str:
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
        """Replace the label decay of blurred images by that of their PNG files."""
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
    for center, spread in zip(mean, std, strict=True):
        check_number("mean", center)
        check_number("std", spread, low=0.0, open_low=True)
