"""What a run measures of images that are attacked, or changed in one band of frequencies only.

Reference: Park and Kim, Blurs Behave Like Ensembles, ICML 2022, figure 6c and table E.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.evaluation_mode import evaluating
from sfumato.corruptions import fgsm, frequency_mask, frequency_noise, pgd
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.data import ArrayDataset
from sfumato.data.normalise import Normalise
from sfumato.engine.config.attack_sections import AttackConfig, FrequencyConfig
from sfumato.engine.evaluation.corrupted import cell_arrays, measure_cells, stack_cells
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.runs.directory import Arrays

Change = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Changer:
    """Predicts images after a change that may depend on the network's own gradients.

    Args:
        model: gives logits of standardised images.
        mean: per channel.
        std: per channel.
        batch_size: images at once; gradients take as much memory as a training step.
        device: where to compute.
    """

    model: nn.Module
    mean: Sequence[float]
    std: Sequence[float]
    batch_size: int
    device: torch.device

    def attack(self, data: ArrayDataset, attack: AttackConfig) -> Arrays:
        """What is known of each image after an attack; all methods start at the same points."""
        return self._changed(data, self._attacking(data, attack, None, "attack", attack.name))

    def attack_band(
        self, data: ArrayDataset, attack: AttackConfig, frequency: float, width: float
    ) -> Arrays:
        """The same with a change that has one band of frequencies, in units of pi."""
        rows, columns = data.images.shape[-2:]
        mask = _mask((rows, columns), frequency, width)
        return self._changed(data, self._attacking(data, attack, mask, "band", frequency))

    def add_noise(self, data: ArrayDataset, wanted: FrequencyConfig, frequency: float) -> Arrays:
        """What is known of each image after noise of one band, the same for all methods."""
        generator = seeded_generator(0, "frequency", math.pi * frequency)

        def change(images: Tensor, _: Tensor) -> Tensor:
            return frequency_noise(
                images,
                frequency=math.pi * frequency,
                std=wanted.noise or 0.0,
                band=math.pi * wanted.width,
                equal_energy=wanted.equal_energy,
                generator=generator,
            )

        return self._changed(data, change)

    def _attacking(
        self, data: ArrayDataset, attack: AttackConfig, mask: Tensor | None, *stream: str | float
    ) -> Change:
        network = self._network(data)
        options = {**attack.options, "mask": mask}
        if attack.name == "pgd":
            options["generator"] = seeded_generator(0, *stream)
        function = fgsm if attack.name == "fgsm" else pgd
        return lambda images, labels: function(network, images, labels, **options)

    def _changed(self, data: ArrayDataset, change: Change) -> Arrays:
        network = self._network(data)
        with evaluating(network):
            logits = [network(change(*batch)).float().cpu() for batch in self._batches(data)]
        return cell_arrays(torch.cat(logits), data.labels[:])

    def _batches(self, data: ArrayDataset) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(data), self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield data.images[rows].to(self.device) / 255, data.labels[rows].to(self.device)

    def _network(self, data: ArrayDataset) -> nn.Module:
        """From images in [0, 1]."""
        normalise = Normalise(data.images.shape[1], self.mean, self.std).to(self.device)
        return nn.Sequential(normalise, self.model)


def measure_attack(
    attacked: Arrays,
    clean: Tensor,
    labels: Tensor,
    *,
    replicates: Replicates,
    split: str,
    num_bins: int,
) -> dict[str, Any]:
    """Error, NLL and calibration under attack, and `success_rate`.

    Args:
        attacked: of `Changer.attack`.
        clean: whether each image was right before.
        labels: of the images.
        replicates: where the resampled metrics go.
        split: what they are called there.
        num_bins: bins of the calibration errors.

    Returns:
        The metrics with their intervals; `success_rate` is the share of right predictions that the
        attack turned wrong, left out where nothing was right.
    """
    scores = stack_cells([attacked])
    counted = torch.stack([clean & ~scores.correct[0], clean]).double().T  # (N, 2)

    def success(weights: Tensor) -> Tensor:
        fooled, right = (weights @ counted).unbind(1)
        return fooled / right.clamp_min(1.0)

    shares = {"success_rate": success} if bool(clean.any()) else {}
    return measure_cells(
        scores, labels, replicates=replicates, split=split, shares=shares, num_bins=num_bins
    )


def measure_bands(
    cells: Sequence[Arrays],
    labels: Tensor,
    *,
    frequencies: Sequence[float],
    replicates: Replicates,
    split: str,
    num_bins: int,
) -> dict[str, Any]:
    """Means over the bands with their intervals, and the curve; Args as in `measure_attack`."""
    scores = stack_cells(cells)
    means = measure_cells(scores, labels, replicates=replicates, split=split, num_bins=num_bins)
    found = scores.table(num_bins)._asdict()
    curve = {name: found[name].tolist() for name in ("error", "nll", "ece")}
    return {**means, "frequencies": list(frequencies), "cells": curve}


def check_bands(wanted: FrequencyConfig, size: tuple[int, int]) -> None:
    """Raise where a band holds no frequency of images of this size.

    Raises:
        ValueError: nothing would be changed there.
    """
    for frequency in wanted.frequencies:
        if not bool(_mask(size, frequency, wanted.width).any()):
            raise ValueError(
                f"evaluate.frequency: the band at {frequency:g} pi, {wanted.width:g} pi wide, "
                f"holds no frequency of images of {size[0]} x {size[1]} pixels: make width larger"
            )


def _mask(size: tuple[int, int], frequency: float, width: float) -> Tensor:
    return frequency_mask(*size, frequency=math.pi * frequency, band=math.pi * width)
