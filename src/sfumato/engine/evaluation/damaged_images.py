"""The sections of a run about corrupted and perturbed images, drawn or stored: kept by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data import ArrayDataset
from sfumato.engine.evaluation.corrupted import cell_arrays, measure_corrupted
from sfumato.engine.evaluation.measured import Measured
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.evaluation.robustness import predict_corrupted, relative_scores
from sfumato.engine.evaluation.steadiness import evaluate_steadiness
from sfumato.engine.evaluation.stored_sets import (
    StoredCorruptions,
    StoredSequences,
    evaluate_stored,
)
from sfumato.engine.runs.directory import Arrays, RunDirectory
from sfumato.engine.runs.progress import progress_bar
from sfumato.predictions import TemperatureScaler


@dataclass(frozen=True)
class DamagedImages:
    """Measures the predictions of corrupted images, and along sequences of perturbed ones.

    Args:
        predictor: gives logits of standardised images.
        part: the images; stored sets bring their own.
        run: where what was computed is kept.
        config: says which damage, and how predictions are made.
        mean: per channel.
        std: per channel.
        device: where to compute.
        batch_size: images at once.
        seed: seeds the random numbers of a part of the evaluation, by its name.
        replicates: where resampled metrics go.
        show: whether to draw progress bars.
    """

    predictor: nn.Module
    part: ArrayDataset
    run: RunDirectory
    config: Measured
    mean: Sequence[float]
    std: Sequence[float]
    device: torch.device
    batch_size: int
    seed: Callable[[str], None]
    replicates: Replicates
    show: bool

    def perturbations(self, stored: StoredSequences | None) -> dict[str, Any]:
        """Steadiness sequence by sequence, and the means over them."""
        names = self.config.evaluate.perturbation_names if stored is None else stored.names
        cells: dict[str, dict[str, Any]] = {}
        with progress_bar("perturbations", len(names), show=self.show) as bar:
            for name in names:
                cells[name] = self._perturbed(name, stored)
                bar.advance(name)
        means = {
            key: sum(cell[key] for cell in cells.values()) / len(cells)
            for key, value in next(iter(cells.values())).items()
            if isinstance(value, float)
        }
        return {**means, "cells": cells}

    def _perturbed(self, name: str, stored: StoredSequences | None) -> dict[str, Any]:
        what = f"perturbed-{name}"

        def compute() -> dict[str, Any]:
            self.seed(what)
            if stored is not None:
                return evaluate_stored(
                    self.predictor, stored, name, mean=self.mean, std=self.std, device=self.device
                )
            return evaluate_steadiness(
                self.predictor, self.part, name, mean=self.mean, std=self.std, device=self.device
            )

        content: dict[str, Any] = {"predict": self.config.predict.model_dump(mode="json")}
        if stored is not None:
            return self.run.keep(what, {**content, **stored.content}, compute)
        content["images"] = len(self.part)
        # What an older version has kept lacks the relative confidence.
        return self.run.keep(what, {**content, "relative confidence": "of each frame"}, compute)

    def corruptions(
        self, scalers: Mapping[str, TemperatureScaler], stored: StoredCorruptions | None
    ) -> dict[str, dict[str, Any]]:
        """Robustness of the plain predictions (named "") and of those after each scaler.

        Cell by cell, so that one more type or severity costs only itself.
        """
        wanted = self.config.evaluate
        names = wanted.corruption_names if stored is None else stored.names
        severities = wanted.severities
        cells: dict[str, list[Arrays]] = {"": [], **{split: [] for split in scalers}}
        with progress_bar("corruptions", len(names) * len(severities), show=self.show) as bar:
            for name in names:
                for severity in severities:
                    cell_of = partial(self._corrupted, name, severity)
                    row = cell_of(list(scalers.values()), stored)
                    for kept, cell in zip(cells.values(), row, strict=True):
                        kept.append(cell)
                    bar.advance(f"{name} {severity}")
        found = {}
        for split, kept in cells.items():
            found[split] = measure_corrupted(
                kept,
                self._labels(stored),
                names=names,
                severities=severities,
                replicates=self.replicates,
                split=f"{split}.corrupted" if split else "corrupted",
                num_bins=wanted.all_bins[0],
            )
            if wanted.alexnet is not None:
                ratios = relative_scores(found[split], wanted.alexnet)
                found[split]["relative_to_alexnet"] = ratios
        return found

    def _corrupted(
        self,
        name: str,
        severity: int,
        scalers: Sequence[TemperatureScaler],
        stored: StoredCorruptions | None,
    ) -> list[Arrays]:
        """What is known of each image, from the plain logits and from those of each scaler."""
        what = f"corrupted-{name}-{severity}"
        labels = self._labels(stored)

        @cache  # one set of passes for all, and none where all are kept
        def logits() -> Tensor:
            self.seed(what)
            found, _ = predict_corrupted(
                self.predictor,
                self.part,
                name,
                severity,
                mean=self.mean,
                std=self.std,
                batch_size=self.batch_size,
                stored=None if stored is None else stored.folder,
                limit=len(labels),
                device=self.device,
            )
            return found

        def kept(content: dict[str, Any], scale: Callable[[Tensor], Tensor]) -> Arrays:
            def compute() -> Arrays:
                return cell_arrays(scale(logits()), labels)

            return self.run.keep_arrays(what, content, compute)

        content = {"predict": self.config.predict.model_dump(mode="json"), "images": len(labels)}
        if stored is not None:
            content["stored"] = stored.source
        plain = kept(content, lambda plain: plain)
        scaled = [kept({**content, "temperature": each.temperature}, each) for each in scalers]
        return [plain, *scaled]

    def _labels(self, stored: StoredCorruptions | None) -> Tensor:
        return self.part.labels[:] if stored is None else stored.labels
