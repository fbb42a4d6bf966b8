"""Altered test images: corrupted, perturbed, attacked, changed in one band, made or stored."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato._core.spec import in_data_root
from sfumato.corruptions import (
    CORRUPTIONS,
    PERTURBATIONS,
    corrupt,
    corruption_generator,
    fgsm,
    frequency_mask,
    frequency_noise,
    is_ordered,
    perturb,
    pgd,
    read_corrupted,
)
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.corruptions.storage import (
    count_sequences,
    read_sequences,
    stored_classes,
    stored_corruptions,
    stored_labels,
    stored_perturbations,
)
from sfumato.data import ArrayDataset
from sfumato.data.dataset import Normalise
from sfumato.engine.config.sections import AttackConfig, EvaluateConfig, FrequencyConfig
from sfumato.engine.evaluation.context import Context
from sfumato.engine.evaluation.splits import describe_units
from sfumato.engine.runs.directory import Arrays, Predictions
from sfumato.engine.training.predict import predict_batches
from sfumato.metrics import (
    alexnet_scores,
    consistency,
    corruption_ratio,
    cross_entropy_consistency,
    relative_confidence,
)
from sfumato.metrics.evaluate import check_resampling, draw_in_parts, intervals_of
from sfumato.metrics.groups import score
from sfumato.metrics.robustness import BaselineMetric, CellScores
from sfumato.predictions import TemperatureScaler

RATIOS: dict[BaselineMetric, str] = {"error": "mean_ce", "nll": "mean_cnll", "ece": "mean_cece"}


def predict_altered(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], normalise: Normalise
) -> tuple[Tensor, Tensor]:
    """Predict batches of altered images, bytes or in [0, 1]; logits and labels on the CPU."""
    device = normalise.scale.device
    logits, labels = [], []

    def take(output: Tensor, target: Tensor) -> None:
        logits.append(output.float().cpu())
        labels.append(target)

    standardised = (
        (normalise(images.to(device), torch.channels_last), target) for images, target in batches
    )
    predict_batches(model, standardised, take)
    return torch.cat(logits), torch.cat(labels)


def relative_scores(
    corrupted: Mapping[str, Any], baseline: Literal["cifar10", "cifar100", "imagenet"]
) -> dict[str, Any]:
    """mCE, mCNLL and mCECE (Eq. 35-37) of what a run reports of corrupted images, to AlexNet."""
    columns = [severity - 1 for severity in corrupted["severities"]]
    ratios = {}
    for metric in RATIOS:
        own = torch.tensor(corrupted["cells"][metric], dtype=torch.float64)
        reference = alexnet_scores(baseline, metric, names=corrupted["names"])
        ratios[metric] = corruption_ratio(own, reference[:, columns])
    means = {name: float(ratios[metric].mean()) for metric, name in RATIOS.items()}
    return {**means, "cells": {metric: each.tolist() for metric, each in ratios.items()}}


def corrupted_batches(
    data: ArrayDataset, name: str, severity: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Corrupt a set batch by batch; the corruption depends on type, severity and sample."""
    generator = corruption_generator(0, name, severity)
    for start in range(0, len(data), batch_size):
        rows = slice(start, start + batch_size)
        yield corrupt(data.images[rows], name, severity, generator=generator), data.labels[rows]


_IMAGES_AT_A_TIME = 16
_SHOWN = 3


def perturbed_sequences(data: ArrayDataset, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Frames of one kind of perturbation with labels, a few images at a time."""
    generator = torch.Generator().manual_seed(fold_seed(0, "perturbation", name))
    few = (each.split(_IMAGES_AT_A_TIME) for each in (data.images, data.labels))
    for images, labels in zip(*few, strict=True):
        yield perturb(images, name, generator=generator), labels.cpu()


def measure_steadiness(
    model: nn.Module,
    sequences: Iterable[tuple[Tensor, Tensor | None]],
    name: str,
    normalise: Normalise,
) -> dict[str, Any]:
    """Consistency along the frames of one kind of perturbation, averaged over images."""
    # Noise has no order in time: CIFAR-10-P is usually measured against its clean first frame.
    reference: Literal["previous", "first"] = "previous" if is_ordered(name) else "first"
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "consistency": partial(consistency, reference=reference),
        # Table E.3 has this (Eq. 38) and `cec_released`: Eq. 39 over the number of classes, frames
        # exchanged, as the authors' code has it.
        "consistency_to_previous": partial(consistency, reference="previous"),
        "cec": cross_entropy_consistency,
        "cec_released": partial(cross_entropy_consistency, form="released"),
    }
    found: dict[str, list[Tensor]] = {name: [] for name in measures}
    relative = []

    def batches() -> Iterator[tuple[Tensor, tuple[int, Tensor | None]]]:
        for frames, labels in sequences:
            single = frames.flatten(0, 1).to(normalise.scale.device)
            yield normalise(single, torch.channels_last), (len(frames), labels)

    def take(logits: Tensor, known: tuple[int, Tensor | None]) -> None:
        count, labels = known
        probs = logits.float().cpu().softmax(1).unflatten(0, (count, -1))
        if labels is not None:
            relative.append(relative_confidence(probs, labels))  # (N, T)
        for key, measure in measures.items():
            found[key].append(measure(probs))

    predict_batches(model, batches(), take)
    means = {key: float(torch.cat(each).double().mean()) for key, each in found.items()}
    values: dict[str, Any] = {**means, "flip_rate": 1 - means["consistency"]}
    if relative:
        every = torch.cat(relative)
        values["relative_confidence"] = float(every.mean(1).double().mean())
        values["along"] = every[:_SHOWN].tolist()
    return values


@dataclass(frozen=True)
class Stored:
    """A folder in the layout of CIFAR-10-C, ImageNet-C or CIFAR-10-P."""

    source: str
    folder: Path
    names: tuple[str, ...]
    # Images of each cell, or sequences of each type.
    count: int
    # Of corrupted images.
    labels: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class StoredSets:
    """Sets that are read instead of made; None is made from the test images where asked for."""

    corrupted: Stored | None = None
    perturbed: Stored | None = None


def open_stored(
    wanted: EvaluateConfig, *, classes: Sequence[str], image: Sequence[int]
) -> StoredSets:
    """The sets of `evaluate.stored`, of which no image but the first has been read."""
    sets: dict[str, Stored] = {}
    for source in wanted.stored_folders:
        folder = in_data_root(source)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder.absolute()}: no such folder")
        found = stored_perturbations(folder)
        kind = "perturbed" if found else "corrupted"
        if kind in sets:
            raise ValueError(
                f"{source} and {sets[kind].source} are two sets of one kind: name one of them, and "
                "the other in a study of its own"
            )
        if found:
            sets[kind] = _sequences(wanted, source, folder, found, image)
        else:
            sets[kind] = _corruptions(wanted, source, folder, classes, image)
    return StoredSets(**sets)


def _corruptions(
    wanted: EvaluateConfig, source: str, folder: Path, classes: Sequence[str], image: Sequence[int]
) -> Stored:
    there = stored_corruptions(folder)
    names = wanted.corruption_names or tuple(name for name in CORRUPTIONS if name in there) or there
    cells = [(name, severity) for name in names for severity in wanted.severities]
    labels = stored_labels(folder, *cells[0], limit=wanted.corrupted_images)
    for name, severity in cells:
        found = stored_labels(folder, name, severity, limit=wanted.corrupted_images)
        if not torch.equal(found, labels):
            raise ValueError(
                f"{folder}: {name} {severity} has other labels than {cells[0][0]} {cells[0][1]} "
                f"({len(found)} and {len(labels)} images): all cells must hold the same images"
            )
    _check_classes(folder, stored_classes(folder, *cells[0]), labels, classes)
    first, _ = next(read_corrupted(folder, *cells[0], batch_size=1, limit=1))
    _check_image(folder, tuple(first.shape[1:]), image)
    return Stored(source, folder, names, len(labels), labels)


def _sequences(
    wanted: EvaluateConfig,
    source: str,
    folder: Path,
    found: tuple[str, ...],
    image: Sequence[int],
) -> Stored:
    names = wanted.perturbation_names or tuple(n for n in PERTURBATIONS if n in found) or found
    for name in names:
        first = next(read_sequences(folder, name, batch_size=1, limit=1))
        _check_image(folder / f"{name}.npy", tuple(first.shape[2:]), image)
    there = count_sequences(folder, names[0])
    return Stored(source, folder, names, min(there, wanted.corrupted_images or there))


def _check_classes(
    folder: Path, named: Sequence[str] | None, labels: Tensor, classes: Sequence[str]
) -> None:
    """Class folders may have other names than the classes (WordNet's), but not other classes."""
    highest = int(labels.max())
    if highest >= len(classes):
        raise ValueError(
            f"{folder}: has a label {highest}, and the training set has {len(classes)} classes"
        )
    if named is None:
        return
    if len(named) != len(classes):
        raise ValueError(
            f"{folder}: has {len(named)} classes, and the training set has {len(classes)}"
        )
    if set(named) & set(classes) and tuple(named) != tuple(classes):
        raise ValueError(
            f"{folder}: its classes {', '.join(named[:3])}, ... are not those of the training set "
            f"in their order, {', '.join(classes[:3])}, ..."
        )


def _check_image(where: Path, found: tuple[int, ...], image: Sequence[int]) -> None:
    if found != tuple(image):
        raise ValueError(
            f"{where}: has images of {found} (channels, height, width), and the network is trained "
            f"on {tuple(image)}"
        )


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
            for name, severity in itertools.product(names, severities):
                row = self._corrupted(name, severity, list(scalers.values()))
                for kept, cell in zip(cells.values(), row, strict=True):
                    kept.append(cell)
                bar.advance(f"{name} {severity}")
        found = {}
        for split, kept in cells.items():
            scores = stack_cells(kept)
            found[split] = {
                **self._measure(scores, self._labels, f"{split}.corrupted".removeprefix(".")),
                "names": list(names),
                "severities": list(severities),
                # Cells come type by type, the severities of a type together.
                "cells": self._table(scores, len(names), len(severities)),
            }
            if wanted.alexnet is not None:
                found[split]["relative_to_alexnet"] = relative_scores(found[split], wanted.alexnet)
        return found

    def _corrupted(
        self, name: str, severity: int, scalers: Sequence[TemperatureScaler]
    ) -> list[Arrays]:
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
        first, *_ = cells.values()
        means = {
            key: sum(cell[key] for cell in cells.values()) / len(cells)
            for key, value in first.items()
            if isinstance(value, float)
        }
        return {**means, "cells": cells}

    def _perturbed(self, name: str) -> dict[str, Any]:
        context, stored = self.context, self.stored.perturbed
        # Older versions kept one of the forms, and no relative confidence.
        content: dict[str, Any] = {**context.content, "forms": "of the paper and of its code"}
        sequences: Iterable[tuple[Tensor, Tensor | None]]
        if stored is None:
            content |= {"images": len(self.data), "relative confidence": "of each frame"}
            sequences = perturbed_sequences(self.data, name)
        else:
            limit = context.config.evaluate.corrupted_images
            content |= {"stored": stored.source, "sequences": limit}
            sequences = ((each, None) for each in read_sequences(stored.folder, name, limit=limit))
        return context.keep(
            f"perturbed-{name}",
            content,
            lambda: measure_steadiness(context.predictor, sequences, name, context.normalise()),
        )

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
