"""Gradient attacks, for evaluating the robustness of one's own model.

The model maps images in [0, 1] to logits or log-probabilities; put the normalisation inside it. It
is used in the mode in which it comes: leave dropout active to attack a stochastic model.

Reference: Goodfellow et al., ICLR 2015 (FGSM); Madry et al., ICLR 2018 (PGD); used in Park and Kim,
ICML 2022, appendix E.1, table E.2.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_class_indices, check_integer, check_number
from sfumato.corruptions.catalogue import check_corruptible
from sfumato.corruptions.frequency import keep_band
from sfumato.corruptions.random_numbers import Streams, draw_seeds

Norm = Literal["linf", "l2"]


class AttackScores(NamedTuple):
    """Accuracy under an attack, and the share of right predictions that it turned wrong."""

    accuracy: float
    success_rate: float


def fgsm(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
    samples: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """One step of size epsilon up the loss: how wrong the model gets close to its images.

    x + epsilon * sign(g) for "linf", x + epsilon * g / |g| for "l2", g the gradient of the cross
    entropy, clipped to [0, 1].

    Args:
        model: maps images in [0, 1] to logits; parameters and their gradients are not touched.
        images: (N, C, H, W), floating point in [0, 1]; the result is like them.
        target: (N,) true classes.
        epsilon: radius of the ball, in units of the images; 8/255 is usual for "linf" at 32 pixels.
        norm: "linf" bounds every value, "l2" the length over the whole image.
        samples: forward passes over which the gradient is averaged, for models with dropout.
        mask: (H, W) frequencies to which the step is restricted, from `frequency_mask`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2, bias=False))
        >>> model[1].weight.data = torch.tensor([[0.01], [0.0]]).expand(2, 256)
        >>> images, target = torch.full((1, 1, 16, 16), 0.5), torch.tensor([0])
        >>> fgsm(model, images, target, epsilon=0.1).unique()
        tensor([0.4000])
    """
    _check(images, target, epsilon=epsilon, norm=norm, samples=samples, mask=mask)
    step = epsilon * _direction(_gradient(model, images, target, samples), norm)
    return (images + _project(step, epsilon, norm, mask)).clamp_(0.0, 1.0)


def pgd(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    *,
    epsilon: float,
    norm: Norm = "linf",
    steps: int = 10,
    step_size: float | None = None,
    random_start: bool = True,
    samples: int = 1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Repeated steps up the loss, each brought back into the ball: a stronger `fgsm`.

    Args:
        steps: number of steps.
        step_size: length of a step; None is 2.5 * epsilon / steps.
        random_start: begin at a random point of the ball rather than at the image.
        mask: frequencies to which the change is restricted (before it is clipped to [0, 1]).
        generator: a CPU generator for the random start, one seed for each image.
        model, images, target, epsilon, norm, samples: as in `fgsm`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
        >>> images, target = torch.rand(2, 1, 16, 16), torch.tensor([0, 1])
        >>> attacked = pgd(model, images, target, epsilon=0.03)
        >>> bool((attacked - images).abs().max() <= 0.03 + 1e-6)
        True
    """
    _check(images, target, epsilon=epsilon, norm=norm, samples=samples, mask=mask)
    check_integer("steps", steps, low=1)
    if step_size is None:
        step_size = 2.5 * epsilon / steps
    check_number("step_size", step_size, low=0.0)
    change = _start(images, generator, epsilon, norm) if random_start else torch.zeros_like(images)
    for _ in range(steps):
        attacked = (images + _project(change, epsilon, norm, mask)).clamp_(0.0, 1.0)
        step = step_size * _direction(_gradient(model, attacked, target, samples), norm)
        # From the clipped image: what [0, 1] cut off is not walked again.
        change = attacked - images + step
    return (images + _project(change, epsilon, norm, mask)).clamp_(0.0, 1.0)


def attack_scores(clean: Tensor, attacked: Tensor, target: Tensor) -> AttackScores:
    """Accuracy under attack, and success rate: the share of right predictions that became wrong.

    Args:
        clean, attacked: (N, K) logits or probabilities on the clean and on the attacked images.
        target: (N,) true classes. The success rate is nan where none was found.

    Example:
        >>> clean = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
        >>> attacked = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> attack_scores(clean, attacked, torch.tensor([0, 0, 0]))
        AttackScores(accuracy=0.3333333432674408, success_rate=0.5)
    """
    if clean.shape != attacked.shape or target.shape != clean.shape[:1]:
        raise ValueError(
            f"clean and attacked must be (N, K) with target (N,), got {tuple(clean.shape)}, "
            f"{tuple(attacked.shape)} and {tuple(target.shape)}"
        )
    check_class_indices("target", target, clean.shape[1])
    before, after = (outputs.argmax(dim=1) == target for outputs in (clean, attacked))
    fooled = (~after)[before].float().mean()
    return AttackScores(accuracy=float(after.float().mean()), success_rate=float(fooled))


def _check(
    images: Any, target: Tensor, *, epsilon: float, norm: str, samples: int, mask: Any
) -> None:
    check_corruptible(images)
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point in [0, 1], got {images.dtype}")
    if target.shape != images.shape[:1]:
        raise ValueError(
            f"target must be ({len(images)},), one class for each image, got {tuple(target.shape)}"
        )
    check_number("epsilon", epsilon, low=0.0)
    check_choice("norm", norm, ("linf", "l2"))
    check_integer("samples", samples, low=1)
    if mask is not None and mask.shape != images.shape[-2:]:
        raise ValueError(
            f"mask must be {tuple(images.shape[-2:])} like the images, got {tuple(mask.shape)}. "
            "Make it with frequency_mask(height, width, ...)."
        )


def _gradient(model: nn.Module, images: Tensor, target: Tensor, samples: int) -> Tensor:
    total = torch.zeros_like(images)
    for _ in range(samples):
        # Evaluation runs without gradients.
        with torch.enable_grad():
            inputs = images.detach().requires_grad_()
            logits = model(inputs)
            check_class_indices("target", target, logits.shape[1])
            loss = F.cross_entropy(logits, target, reduction="sum")
            total += torch.autograd.grad(loss, inputs)[0]
    return total / samples


def _length(change: Tensor) -> Tensor:
    return change.flatten(1).norm(dim=1).view(-1, 1, 1, 1).clamp_min(1e-12)


def _direction(gradient: Tensor, norm: Norm) -> Tensor:
    return gradient.sign() if norm == "linf" else gradient / _length(gradient)


def _start(images: Tensor, generator: torch.Generator | None, epsilon: float, norm: Norm) -> Tensor:
    streams = Streams(draw_seeds(len(images), generator), device=images.device)
    shape = images.shape[1:]
    if norm == "linf":
        return streams.uniform(*shape, low=-epsilon, high=epsilon).to(images.dtype)
    change = streams.normal(*shape)
    radius = epsilon * streams.uniform(1, 1, 1).pow(1.0 / change[0].numel())
    return (change * (radius / _length(change))).to(images.dtype)


def _project(change: Tensor, epsilon: float, norm: Norm, mask: Tensor | None) -> Tensor:
    """The change within the ball, and within the band if there is one.

    In a band the whole change is scaled down: cutting single values would leave the band.
    """
    if mask is not None:
        change = keep_band(change, mask)
    elif norm == "linf":
        return change.clamp(-epsilon, epsilon)
    size = change.abs().amax(dim=(1, 2, 3), keepdim=True) if norm == "linf" else _length(change)
    return change * (epsilon / size.clamp_min(1e-12)).clamp_max(1.0)
