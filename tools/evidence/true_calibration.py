"""Which estimator of calibration should one trust? On scenes the truth is known: ask it.

Run: python tools/evidence/true_calibration.py FOLDER studies/results/true-calibration.json
FOLDER is what `sfumato run studies/after-the-papers.yaml` wrote. The test images are the
population: how often a prediction of each is right is known from the image's posterior. Test sets
of several sizes are drawn from it with replacement, each label from its image's posterior, for
every network as trained and after its temperature. An estimator is held to what it becomes when
every correctness is replaced by its probability on the whole population, and asked which of two
networks is calibrated better: right is what the true ECE of 15 bins says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato.data import load_data
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.training.checkpoint import read_config
from sfumato.metrics.calibration import (
    debiased_error_of_bins,
    error_of_bins,
    ks_calibration_error,
    smooth_calibration_error,
)
from sfumato.metrics.groups import Bins, Groups, Samples, group_by_value, mass_bins, width_bins

SIZES = (300, 1000, 4000)
DRAWS = 20
BINS = 15


@dataclass(frozen=True)
class Network:
    """A trained network on the population: its confidences and how often they are right."""

    method: str
    seed: int
    is_scaled: bool
    confidence: Tensor  # (N,)
    chance: Tensor  # (N,)

    @property
    def name(self) -> str:
        return f"{self.method}{', temperature' if self.is_scaled else ''}"


@dataclass(frozen=True)
class Estimator:
    """What is computed from labels, and what it is meant to find."""

    estimate: Callable[[Groups], Tensor]
    truth: Callable[[Groups], Tensor]


def _of_bins(
    make: Callable[[Groups, int], Bins], error: Callable[[Bins], Tensor]
) -> Callable[[Groups], Tensor]:
    return lambda groups: error(make(groups, BINS))


WIDTH, MASS = (
    _of_bins(make, lambda bins: error_of_bins(bins, "l1")) for make in (width_bins, mass_bins)
)
ROOT_MEAN_SQUARE = _of_bins(width_bins, lambda bins: error_of_bins(bins, "l2"))
LARGEST = _of_bins(width_bins, lambda bins: error_of_bins(bins, "max"))
ESTIMATORS = {
    "ECE": Estimator(WIDTH, WIDTH),
    "ECE, debiased": Estimator(
        _of_bins(width_bins, lambda b: debiased_error_of_bins(b, "l1")), WIDTH
    ),
    "AECE": Estimator(MASS, MASS),
    "AECE, debiased": Estimator(
        _of_bins(mass_bins, lambda b: debiased_error_of_bins(b, "l1")), MASS
    ),
    "RMSCE": Estimator(ROOT_MEAN_SQUARE, ROOT_MEAN_SQUARE),
    "RMSCE, debiased": Estimator(
        _of_bins(width_bins, lambda b: debiased_error_of_bins(b, "l2")), ROOT_MEAN_SQUARE
    ),
    "smooth ECE": Estimator(smooth_calibration_error.of_groups, smooth_calibration_error.of_groups),
    "KS": Estimator(ks_calibration_error.of_groups, ks_calibration_error.of_groups),
    "MCE": Estimator(LARGEST, LARGEST),
}


def networks(folder: Path) -> Iterator[Network]:
    index = json.loads((folder / "study.json").read_text())
    posterior = None
    for entry in index["runs"]:
        run = RunDirectory(folder / "runs" / entry["run"])
        if not (run.path / "metrics.json").exists():
            continue
        if posterior is None:  # the same images for all
            posterior = load_data(read_config(run).data).test.posterior
        found = run.read_predictions("test")
        temperature = json.loads((run.path / "metrics.json").read_text())["scaled"]["temperature"]
        for is_scaled in (False, True):
            probs = (found.logits.double() / (temperature if is_scaled else 1)).softmax(1)
            confidence, predicted = probs.max(1)
            chance = posterior.gather(1, predicted[:, None]).flatten().double()
            yield Network(entry["method"], entry["seed"], is_scaled, confidence, chance)


def groups_of(confidence: Tensor, correct: Tensor) -> Groups:
    return group_by_value(Samples(confidence, correct, torch.zeros_like(confidence)))


def study(found: list[Network]) -> dict[str, Any]:
    population = [groups_of(network.confidence, network.chance) for network in found]
    truth = {
        name: torch.stack([estimator.truth(groups) for groups in population])
        for name, estimator in ESTIMATORS.items()
    }
    rows = []
    for size in SIZES:
        estimates = _draws(found, size)
        for name, values in estimates.items():  # (draws, networks)
            error = values - truth[name]
            rows.append(
                {
                    "size": size,
                    "estimator": name,
                    "truth": float(truth[name].mean()),
                    "bias": float(error.mean()),
                    "rmse": float(error.square().mean().sqrt()),
                    "right_pairs": _right_pairs(values, truth["ECE"], found),
                }
            )
    return {
        "networks": len(found),
        "draws": DRAWS,
        "rows": rows,
        "methods": _by_method(found, truth),
    }


def _draws(found: list[Network], size: int) -> dict[str, Tensor]:
    """Every estimate of every network on the same drawn test sets, (draws, networks)."""
    generator = torch.Generator().manual_seed(size)
    number = len(found[0].confidence)
    values: dict[str, list[list[Tensor]]] = {name: [] for name in ESTIMATORS}
    for _ in range(DRAWS):
        chosen = torch.randint(number, (size,), generator=generator)
        luck = torch.rand(size, generator=generator, dtype=torch.float64)
        # One draw of luck for all networks, as one drawn label is shared by all that predict it.
        drawn = [
            groups_of(network.confidence[chosen], luck < network.chance[chosen])
            for network in found
        ]
        for name, estimator in ESTIMATORS.items():
            values[name].append([estimator.estimate(groups) for groups in drawn])
    return {name: torch.tensor(found) for name, found in values.items()}


def _right_pairs(values: Tensor, truth: Tensor, found: list[Network]) -> float:
    """How often the better calibrated of two networks of a seed seems so; a tie is half."""
    shares = [
        (values[:, a] - values[:, b]).sign() * (truth[a] - truth[b]).sign()
        for a, b in combinations(range(len(found)), 2)
        if found[a].seed == found[b].seed
    ]
    return float((1 + torch.stack(shares)).mean() / 2)


def _by_method(found: list[Network], truth: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The true errors of each method over its seeds, and the error image by image."""
    rows = []
    for name in dict.fromkeys(network.name for network in found):
        places = [place for place, network in enumerate(found) if network.name == name]
        by_image = [
            (found[place].confidence - found[place].chance).abs().mean() for place in places
        ]
        rows.append(
            {
                "method": name,
                "seeds": len(places),
                "true_ece": [float(truth["ECE"][place]) for place in places],
                "true_error_by_image": [float(value) for value in by_image],
            }
        )
    return rows


if __name__ == "__main__":
    source, target = (Path(argument) for argument in sys.argv[1:3])
    target.write_text(json.dumps(study(list(networks(source))), indent=1) + "\n")
