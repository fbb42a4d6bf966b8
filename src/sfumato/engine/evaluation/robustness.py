"""How a classifier fares when the world damages its images: every corruption, every severity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
    corruption_generator,
    read_corrupted,
)
from sfumato.data import ArrayDataset
from sfumato.data.normalise import Normalise
from sfumato.engine.evaluation.predict import predict_batches
from sfumato.engine.runs.progress import progress_bar
from sfumato.metrics import alexnet_scores, corruption_ratio, evaluate_predictions

METRICS = ("error", "nll", "ece")
RATIOS = {"error": "mean_ce", "nll": "mean_cnll", "ece": "mean_cece"}


@dataclass(frozen=True)
class Robustness:
    """Error, NLL and ECE of each type and severity, each (types, severities)."""

    names: tuple[str, ...]
    severities: tuple[int, ...]
    error: Tensor
    nll: Tensor
    ece: Tensor

    def means(self) -> dict[str, float]:
        """Plain means over all types and severities, the convention for CIFAR-C."""
        return {name: float(getattr(self, name).mean()) for name in METRICS}

    def relative_to(
        self, baseline: Robustness | Literal["cifar10", "cifar100", "imagenet"]
    ) -> dict[str, Tensor]:
        """CE, CNLL and CECE of each type (Eq. 35-37): relative to AlexNet or to another model.

        Their means over the types are mCE, mCNLL and mCECE.
        """
        ratios = {}
        for name in METRICS:
            if isinstance(baseline, Robustness):
                if (self.names, self.severities) != (baseline.names, baseline.severities):
                    raise ValueError("both models must be evaluated on the same corruptions")
                reference = getattr(baseline, name)
            else:
                table = alexnet_scores(baseline, name, names=self.names)  # type: ignore[arg-type]
                reference = table[:, [severity - 1 for severity in self.severities]]
            ratios[name] = corruption_ratio(getattr(self, name), reference)
        return ratios

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `metrics.json`: the means, and the whole table."""
        cells = {name: getattr(self, name).tolist() for name in METRICS}
        names, severities = list(self.names), list(self.severities)
        return {**self.means(), "names": names, "severities": severities, "cells": cells}


def evaluate_robustness(
    model: nn.Module,
    data: ArrayDataset,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    batch_size: int = 256,
    seed: int = 0,
    stored: Path | str | None = None,
    device: torch.device | str | None = None,
    show: bool = True,
) -> Robustness:
    """Stream every corruption and severity of a data set through a classifier.

    Nothing is stored but the logits of one cell; the damage depends on `seed`, type, severity and
    sample only, so two models see the same images.

    Args:
        model: gives logits; evaluated in evaluation mode.
        data: clean images with labels.
        mean: per channel, for standardising after the damage.
        std: per channel.
        names: types of corruption.
        severities: 1 to 5.
        batch_size: images at a time.
        seed: of the random damage.
        stored: a folder of ready-made corrupted images (CIFAR-10-C or ImageNet-C layout) to read
            instead of damaging `data`; labels come from there too.
        device: where to compute.
        show: whether to draw a progress bar.
    """
    table = torch.zeros(len(METRICS), len(names), len(severities), dtype=torch.float64)
    with progress_bar("corruptions", len(names) * len(severities), show=show) as bar:
        for row, name in enumerate(names):
            for column, severity in enumerate(severities):
                logits, labels = predict_corrupted(
                    model,
                    data,
                    name,
                    severity,
                    mean=mean,
                    std=std,
                    batch_size=batch_size,
                    seed=seed,
                    stored=stored,
                    device=device,
                )
                table[:, row, column] = _scores(logits, labels)
                bar.advance(f"{name} {severity}")
    return Robustness(tuple(names), tuple(severities), *table)


def predict_corrupted(
    model: nn.Module,
    data: ArrayDataset,
    name: str,
    severity: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    batch_size: int = 256,
    seed: int = 0,
    stored: Path | str | None = None,
    limit: int | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits and labels of one type and severity; Args as in `evaluate_robustness`.

    `limit` is how many of the stored images are read.
    """
    device = data.images.device if device is None else device
    normalise = Normalise(data.images.shape[1], mean, std).to(device)
    if stored is None:
        damaged = _damaged(data, name, severity, batch_size, seed)
    else:
        damaged = read_corrupted(stored, name, severity, batch_size=batch_size, limit=limit)
    logits, labels = [], []

    def take(output: Tensor, target: Tensor) -> None:
        logits.append(output.float().cpu())
        labels.append(target)

    batches = (
        (normalise(images.to(device), torch.channels_last), target) for images, target in damaged
    )
    predict_batches(model, batches, take)
    return torch.cat(logits), torch.cat(labels)


def robustness_from(content: Mapping[str, Any]) -> Robustness:
    """The inverse of `Robustness.as_dict`."""
    cells = [torch.tensor(content["cells"][name], dtype=torch.float64) for name in METRICS]
    return Robustness(tuple(content["names"]), tuple(content["severities"]), *cells)


def relative_scores(
    corrupted: Mapping[str, Any], baseline: Literal["cifar10", "cifar100", "imagenet"]
) -> dict[str, Any]:
    """mCE, mCNLL and mCECE (Eq. 35-37) of what a run reports of corrupted images, to AlexNet.

    Returns:
        `mean_ce`, `mean_cnll`, `mean_cece`, and under `cells` CE, CNLL and CECE of each type.
    """
    ratios = robustness_from(corrupted).relative_to(baseline)
    means = {name: float(ratios[metric].mean()) for metric, name in RATIOS.items()}
    return {**means, "cells": {metric: ratios[metric].tolist() for metric in METRICS}}


def _damaged(
    data: ArrayDataset,
    name: str,
    severity: int,
    batch_size: int,
    seed: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    generator = corruption_generator(seed, name, severity)
    for start in range(0, len(data), batch_size):
        rows = slice(start, start + batch_size)
        yield corrupt(data.images[rows], name, severity, generator=generator), data.labels[rows]


def _scores(logits: Tensor, labels: Tensor) -> Tensor:
    found = evaluate_predictions(labels, logits=logits, splits=False)
    values = [1 - found["accuracy"], found["nll"], found["ece"]]
    return torch.tensor(values, dtype=torch.float64)
