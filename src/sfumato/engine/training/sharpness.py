"""Sharpness-aware minimisation: the gradient where the loss is highest in a small ball.

Sharpness-Aware Minimization for Efficiently Improving Generalization, Foret et al., ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def at_worst_point(parameters: Sequence[nn.Parameter], rho: float) -> Iterator[None]:
    """Within, weights w are w + rho g / |g| for their gradients g; afterwards exactly w again.

    Where the norm is 0 or not finite (an overflow in half precision), they stay w.

    Args:
        parameters: with the gradients of the first pass.
        rho: radius of the ball; 0.05 in the paper for CIFAR and ImageNet.

    Reference:
        Foret et al. 2021, Eq. (2), p = 2.
    """
    moved = [(each, each.grad) for each in parameters if each.grad is not None]
    before = [each.detach().clone() for each, _ in moved]
    norm = torch.nn.utils.get_total_norm([gradient for _, gradient in moved])
    is_sound = torch.isfinite(norm) & (norm > 0)
    with torch.no_grad():
        for each, gradient in moved:
            step = gradient * (rho / norm).to(gradient)  # Eq. (2)
            each.add_(torch.where(is_sound, step, torch.zeros_like(step)))
    try:
        yield
    finally:
        with torch.no_grad():
            for (each, _), kept in zip(moved, before, strict=True):
                each.copy_(kept)


@contextmanager
def statistics_held(model: nn.Module) -> Iterator[None]:
    """Within, batch normalisation in training mode leaves its running statistics alone."""
    layers = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    kept = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, tracks in zip(layers, kept, strict=True):
            layer.track_running_stats = tracks


class Moment:
    """What a pass depends on besides weights and batch, to be gone through once more.

    Random numbers (dropout masks) and what the loss remembers of samples: the second pass sees
    both as the first one did, and leaves both as the first one left them.

    Args:
        device: whose random numbers are remembered besides those of the CPU.
        loss: whose buffers are remembered.
    """

    def __init__(self, device: torch.device, loss: nn.Module) -> None:
        self._device = device
        self._loss = loss
        self._memory = _copied(loss)
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, everything is as it was when this was made."""
        after = _copied(self._loss)
        self._loss.load_state_dict(self._memory)
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        try:
            yield
        finally:
            self._loss.load_state_dict(after)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}
