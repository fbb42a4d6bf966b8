"""Altered test images: corrupted, perturbed, attacked, or changed in one band of frequencies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.corruptions import fgsm, frequency_mask, frequency_noise, pgd, read_corrupted
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.corruptions.storage import read_sequences
from sfumato.data import ArrayDataset
from sfumato.engine.config.sections import AttackConfig, FrequencyConfig
from sfumato.engine.evaluation.context import Context
from sfumato.engine.evaluation.corrupted import (
    StoredSets,
    corrupted_batches,
    measure_steadiness,
    perturbed_sequences,
    predict_altered,
    relative_scores,
)
from sfumato.engine.evaluation.splits import describe_units
from sfumato.engine.runs.directory import Arrays, Predictions
from sfumato.metrics.evaluate import check_resampling, draw_in_parts, intervals_of
from sfumato.metrics.groups import score
from sfumato.metrics.robustness import CellScores
from sfumato.predictions import TemperatureScaler

_TABLE = ("error", "nll", "ece")
# From images in [0, 1] and labels to other images in [0, 1].
Change = Callable[[Tensor, Tensor], Tensor]


def cell_arrays(logits: Tensor, labels: Tensor) -> Arrays:
    """Confidence, correctness and log likelihood of each image: 9 bytes, all that is measured."""
    found = score(logits, labels, from_logits=True)
    return {name: getattr(found, name).cpu().numpy() for name in CellScores._fields}


def stack_cells(cells: Sequence[Arrays]) -> CellScores:
    """All cells as one, images in the same order."""
    fields = (np.stack([cell[name] for cell in cells]) for name in CellScores._fields)
    return CellScores(*(torch.from_numpy(each) for each in fields))


def check_bands(wanted: FrequencyConfig, size: tuple[int, int]) -> None:
    for frequency in wanted.frequencies:
        if not bool(_mask(size, frequency, wanted.width).any()):
            raise ValueError(
                f"evaluate.frequency: the band at {frequency:g} pi, {wanted.width:g} pi wide, "
                f"holds no frequency of images of {size[0]} x {size[1]} pixels: make width larger"
            )


def _mask(size: tuple[int, int], frequency: float, width: float) -> Tensor:
    return frequency_mask(*size, frequency=math.pi * frequency, band=math.pi * width)


@dataclass(frozen=True)
class AlteredImages:
    """Measures the predictions of altered test images, cell by cell.

    A cell is one alteration of all images. Each is cached, so that one more costs only itself.
    """

    context: Context
    data: ArrayDataset
    stored: StoredSets = field(default_factory=StoredSets)

    def corruptions(self, scalers: Mapping[str, TemperatureScaler]) -> dict[str, dict[str, Any]]:
        """Measure the plain predictions (named "") and those after each scaler."""
        wanted, stored = self.context.config.evaluate, self.stored.corrupted
        names = wanted.corruption_names if stored is None else stored.names
        severities = wanted.severities
        cells: dict[str, list[Arrays]] = {"": [], **{split: [] for split in scalers}}
        with self.context.progress("corruptions", len(names) * len(severities)) as bar:
            for name in names:
                for severity in severities:
                    row = self._corrupted(name, severity, list(scalers.values()))
                    for kept, cell in zip(cells.values(), row, strict=True):
                        kept.append(cell)
                    bar.advance(f"{name} {severity}")
        found = {}
        for split, kept in cells.items():
            scores = stack_cells(kept)
            title = f"{split}.corrupted" if split else "corrupted"
            found[split] = {
                **self._measure(scores, self._labels, title),
                "names": list(names),
                "severities": list(severities),
                # Cells come type by type, the severities of a type together.
                "cells": self._table(scores, len(names), len(severities)),
            }
            if wanted.alexnet is not None:
                ratios = relative_scores(found[split], wanted.alexnet)
                found[split]["relative_to_alexnet"] = ratios
        return found

    def _corrupted(
        self, name: str, severity: int, scalers: Sequence[TemperatureScaler]
    ) -> list[Arrays]:
        """Score each image by the plain logits and by those of each scaler."""
        context, stored, labels = self.context, self.stored.corrupted, self._labels
        size, normalise = context.batch_size, context.normalise()

        @cache  # one set of passes for all scalers, and none where all cells are cached
        def logits() -> Tensor:
            if stored is None:
                batches = corrupted_batches(self.data, name, severity, size)
            else:
                batches = read_corrupted(
                    stored.folder, name, severity, batch_size=size, limit=len(labels)
                )
            return predict_altered(context.predictor, batches, normalise)[0]

        def cell(more: dict[str, Any], scale: Callable[[Tensor], Tensor]) -> Arrays:
            content = {**context.content, "images": len(labels), **more}
            if stored is not None:
                content["stored"] = stored.source
            what = f"corrupted-{name}-{severity}"
            return context.keep_arrays(what, content, lambda: cell_arrays(scale(logits()), labels))

        plain = cell({}, lambda plain: plain)
        return [plain, *(cell({"temperature": each.temperature}, each) for each in scalers)]

    @property
    def _labels(self) -> Tensor:
        stored = self.stored.corrupted
        return self.data.labels[:] if stored is None else stored.labels

    def perturbations(self) -> dict[str, Any]:
        """Measure steadiness sequence by sequence, and the means over them."""
        stored = self.stored.perturbed
        names = self.context.config.evaluate.perturbation_names if stored is None else stored.names
        cells: dict[str, dict[str, Any]] = {}
        with self.context.progress("perturbations", len(names)) as bar:
            for name in names:
                cells[name] = self._perturbed(name)
                bar.advance(name)
        means = {
            key: sum(cell[key] for cell in cells.values()) / len(cells)
            for key, value in next(iter(cells.values())).items()
            if isinstance(value, float)
        }
        return {**means, "cells": cells}

    def _perturbed(self, name: str) -> dict[str, Any]:
        context, stored = self.context, self.stored.perturbed

        def compute() -> dict[str, Any]:
            if stored is None:
                sequences = perturbed_sequences(self.data, name)
            else:
                frames = read_sequences(stored.folder, name, limit=stored.limit)
                sequences = ((each, None) for each in frames)
            return measure_steadiness(context.predictor, sequences, name, context.normalise())

        content: dict[str, Any] = context.content
        content["forms"] = "of the paper and of its code"  # an older version kept one of them
        if stored is not None:
            return context.keep(f"perturbed-{name}", {**content, **stored.content}, compute)
        content["images"] = len(self.data)
        # What an older version has kept lacks the relative confidence.
        content["relative confidence"] = "of each frame"
        return context.keep(f"perturbed-{name}", content, compute)

    def attacks(self, wanted: Mapping[str, AttackConfig], clean: Tensor) -> dict[str, Any]:
        """Measure each attack by its title; `clean` is True for images that were right before."""
        found: dict[str, Any] = {}
        with self.context.progress("attacks", len(wanted)) as bar:
            for title, attack in wanted.items():
                words = "-".join(re.findall(r"[A-Za-z0-9]+", title))
                cell = self._changed(
                    f"attacked-{words}",
                    {"attack": attack.model_dump(mode="json")},
                    # All methods start at the same points.
                    partial(self._attack, attack, None, "attack", attack.name),
                )
                scores, split = stack_cells([cell]), f"attacked.{title}"
                measured = self._measure(
                    scores, self.data.labels[:], split, _success(scores, clean)
                )
                found[title] = {"attack": attack.describe(), **measured}
                bar.advance(title)
        return found

    def bands(self, wanted: FrequencyConfig) -> dict[str, Any]:
        """Measure under `noise` and `attack`, as far as they are wanted, means and the curve."""
        kinds: dict[str, tuple[str, Callable[[float], Arrays]]] = {}
        if wanted.noise is not None:
            energy = ", equal energy" if wanted.equal_energy else ""
            said = f"noise {wanted.noise:g}, width {wanted.width:g} pi{energy}"
            kinds["noise"] = said, partial(self._noisy_band, wanted)
        if (attack := wanted.attack) is not None:
            said = f"{attack.describe()}, width {wanted.width:g} pi"
            kinds["attack"] = said, partial(self._attacked_band, attack, wanted.width)
        found = {}
        count = len(kinds) * len(wanted.frequencies)
        with self.context.progress("frequencies", count) as bar:
            for kind, (said, cell_of) in kinds.items():
                cells = []
                for frequency in wanted.frequencies:
                    cells.append(cell_of(frequency))
                    bar.advance(f"{kind} {frequency:g} pi")
                scores = stack_cells(cells)
                found[kind] = {
                    "change": said,
                    **self._measure(scores, self.data.labels[:], f"frequency.{kind}"),
                    "frequencies": wanted.frequencies,
                    "cells": self._table(scores, len(cells)),
                }
        return found

    def _measure(
        self,
        scores: CellScores,
        labels: Tensor,
        split: str,
        shares: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> dict[str, Any]:
        """Means over the cells, and of further shares, with their floors and intervals."""
        replicates, num_bins, units = self.context.replicates, self.context.bins[0], len(labels)
        whole = torch.ones(1, units, dtype=torch.float64)
        further = shares or {}
        values = scores.measure(num_bins)
        values |= {name: float(share(whole)) for name, share in further.items()}
        if not replicates.resamples:
            return values
        check_resampling(units, replicates.resamples, 0.95)
        draws = scores.resample(
            replicates.resamples, generator=replicates.generator(units), num_bins=num_bins
        )
        for name, share in further.items():
            # The same draws again: a generator of its own for each pass over the images.
            generator = replicates.generator(units)
            weights = draw_in_parts(units, replicates.resamples, generator=generator)
            draws[name] = torch.cat([share(part) for part in weights])
        replicates.add(split, describe_units(units, labels), draws)
        return values | intervals_of(values, draws, units=units, one_each=False)

    def _table(self, scores: CellScores, *shape: int) -> dict[str, Any]:
        found = scores.table(self.context.bins[0])._asdict()
        return {name: found[name].view(shape).tolist() for name in _TABLE}

    def _noisy_band(self, wanted: FrequencyConfig, frequency: float) -> Arrays:
        """Score each image after noise of one band, the same for all methods."""

        def change() -> Change:
            generator = seeded_generator(0, "frequency", math.pi * frequency)
            return lambda images, _: frequency_noise(
                images,
                frequency=math.pi * frequency,
                std=wanted.noise or 0.0,
                band=math.pi * wanted.width,
                equal_energy=wanted.equal_energy,
                generator=generator,
            )

        noise = wanted.model_dump(include={"width", "noise", "equal_energy"})
        return self._changed("frequency-noise", {"frequency": frequency, "noise": noise}, change)

    def _attacked_band(self, attack: AttackConfig, width: float, frequency: float) -> Arrays:
        """Score each image after an attack that changes one band, in units of pi."""
        rows, columns = self.data.images.shape[-2:]
        mask = _mask((rows, columns), frequency, width)
        content = {"frequency": frequency, "width": width, "attack": attack.model_dump(mode="json")}
        return self._changed(
            "frequency-attack", content, lambda: self._attack(attack, mask, "band", frequency)
        )

    def _attack(self, attack: AttackConfig, mask: Tensor | None, *stream: str | float) -> Change:
        network = nn.Sequential(self.context.normalise(), self.context.local_predictor)
        options = {**attack.options, "mask": mask}
        if attack.name == "pgd":
            options["generator"] = seeded_generator(0, *stream)
        function = fgsm if attack.name == "fgsm" else pgd
        return lambda images, labels: function(network, images, labels, **options)

    def _changed(
        self, name: str, content: Mapping[str, Any], change: Callable[[], Change]
    ) -> Arrays:
        """Score each image after a change that may depend on the network's own gradients."""
        context, labels = self.context, self.data.labels[:]

        def batches(change: Change) -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, len(self.data), context.gradient_batch):
                rows = slice(start, start + context.gradient_batch)
                images = self.data.images[rows].to(context.device) / 255
                yield change(images, labels[rows].to(context.device)), labels[rows]

        def compute() -> Arrays:
            model, normalise = context.local_predictor, context.normalise()
            return cell_arrays(predict_altered(model, batches(change()), normalise)[0], labels)

        whole = {**context.content, "images": len(self.data), **content}
        return context.keep_arrays(name, whole, compute)


def _success(scores: CellScores, clean: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Share of right predictions that an attack turned wrong, for weights of the images (R, U)."""
    if not bool(clean.any()):
        return {}  # where nothing was right, no attack can succeed
    counted = torch.stack([clean & ~scores.correct[0], clean]).double().T  # (N, 2)

    def success(weights: Tensor) -> Tensor:
        fooled, right = (weights @ counted).unbind(1)
        return fooled / right.clamp_min(1.0)

    return {"success_rate": success}


def right_images(found: Predictions, dataset: ArrayDataset) -> Tensor:
    """(N,) True where an image is right, in the order of the data and not of predictions."""
    right = torch.empty(len(dataset), dtype=torch.bool)
    right[dataset.index.argsort(stable=True)] = found.logits.argmax(1) == found.labels
    return right
