"""What an analysis is told: how much to compute, and on what."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sfumato.data import TensorLoader
from sfumato.engine.evaluation.trained_batches import TrainedBatches, TrainedLoss


@dataclass(frozen=True)
class Effort:
    """How much is computed; the defaults take about a minute for a small ResNet.

    Attributes:
        batch_size: images per mini-batch of the Hessian (the paper's is 128).
        spectrum_batches: mini-batches, hence eigenvalues, of the Hessian max spectrum.
        density_probes: random vectors of the spectral density.
        points: points along each axis of the loss landscape.
        landscape_batches: mini-batches that the landscape is computed on.
        passes: stochastic passes for the variance of the loss.
    """

    batch_size: int = 128
    spectrum_batches: int = 10
    density_probes: int = 2
    points: int = 11
    landscape_batches: int = 2
    passes: int = 40


FULL_EFFORT = Effort(
    spectrum_batches=100, density_probes=10, points=21, landscape_batches=8, passes=200
)


@dataclass(frozen=True)
class Subject:
    """A trained network with its training images.

    Attributes:
        network: with its trained weights.
        loader: augmented training images with their classes, neither mixed nor mollified.
        batches: the same as the optimiser saw them, with the targets of `loss`.
        loss: that of the training.
        objective: what that is, in words.
        weight_decay: of the training.
        is_stochastic: whether it has dropout.
        test: test images in order, for what is shown.
    """

    network: nn.Module
    loader: TensorLoader
    batches: TrainedBatches
    loss: TrainedLoss
    objective: str
    weight_decay: float
    is_stochastic: bool
    test: TensorLoader
