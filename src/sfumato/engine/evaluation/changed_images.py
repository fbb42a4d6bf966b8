"""The sections `evaluate.attacks` and `evaluate.frequency` of a run: kept cell by cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.data import ArrayDataset
from sfumato.engine.config.attack_sections import AttackConfig, FrequencyConfig
from sfumato.engine.evaluation.attacked import Changer, measure_attack, measure_bands
from sfumato.engine.evaluation.replicates import Replicates
from sfumato.engine.runs.directory import Arrays, Predictions, RunDirectory
from sfumato.engine.runs.progress import progress_bar


@dataclass(frozen=True)
class ChangedImages:
    """Measures the predictions of images that were attacked, or changed in one band.

    Args:
        changer: predicts changed images.
        part: the images.
        run: where what was computed is kept.
        content: all that decides the predictions besides the weights and the change.
        seed: seeds the random numbers of a part of the evaluation, by its name.
        replicates: where resampled metrics go.
        num_bins: bins of the calibration errors.
        show: whether to draw progress bars.
    """

    changer: Changer
    part: ArrayDataset
    run: RunDirectory
    content: Mapping[str, Any]
    seed: Callable[[str], None]
    replicates: Replicates
    num_bins: int
    show: bool

    def attacks(self, wanted: Mapping[str, AttackConfig], clean: Tensor) -> dict[str, Any]:
        """Each attack by its title; `clean` is whether each image was right before."""
        found: dict[str, Any] = {}
        with progress_bar("attacks", len(wanted), show=self.show) as bar:
            for title, attack in wanted.items():
                cell = self._attacked(title, attack)
                found[title] = {
                    "attack": attack.describe(),
                    **measure_attack(
                        cell,
                        clean,
                        self.part.labels[:],
                        replicates=self.replicates,
                        split=f"attacked.{title}",
                        num_bins=self.num_bins,
                    ),
                }
                bar.advance(title)
        return found

    def bands(self, wanted: FrequencyConfig) -> dict[str, Any]:
        """Under `noise` and `attack`, as far as they are wanted: means over bands and the curve."""
        kinds: dict[str, tuple[str, Callable[[float], Arrays]]] = {}
        if wanted.noise is not None:
            energy = ", equal energy" if wanted.equal_energy else ""
            said = f"noise {wanted.noise:g}, width {wanted.width:g} pi{energy}"
            kinds["noise"] = said, lambda frequency: self._noisy(wanted, frequency)
        if (attack := wanted.attack) is not None:
            said = f"{attack.describe()}, width {wanted.width:g} pi"
            kinds["attack"] = said, lambda each: self._attacked_band(attack, each, wanted.width)
        found = {}
        count = len(kinds) * len(wanted.frequencies)
        with progress_bar("frequencies", count, show=self.show) as bar:
            for kind, (said, cell_of) in kinds.items():
                cells = []
                for frequency in wanted.frequencies:
                    cells.append(cell_of(frequency))
                    bar.advance(f"{kind} {frequency:g} pi")
                values = measure_bands(
                    cells,
                    self.part.labels[:],
                    frequencies=wanted.frequencies,
                    replicates=self.replicates,
                    split=f"frequency.{kind}",
                    num_bins=self.num_bins,
                )
                found[kind] = {"change": said, **values}
        return found

    def _attacked(self, title: str, attack: AttackConfig) -> Arrays:
        words = "-".join(re.findall(r"[A-Za-z0-9]+", title))
        content = {"attack": attack.model_dump(mode="json")}
        return self._kept(
            f"attacked-{words}", content, lambda: self.changer.attack(self.part, attack)
        )

    def _noisy(self, wanted: FrequencyConfig, frequency: float) -> Arrays:
        content = {
            "frequency": frequency,
            "noise": wanted.model_dump(include={"width", "noise", "equal_energy"}),
        }
        return self._kept(
            "frequency-noise",
            content,
            lambda: self.changer.add_noise(self.part, wanted, frequency),
        )

    def _attacked_band(self, attack: AttackConfig, frequency: float, width: float) -> Arrays:
        content = {
            "frequency": frequency,
            "width": width,
            "attack": attack.model_dump(mode="json"),
        }
        return self._kept(
            "frequency-attack",
            content,
            lambda: self.changer.attack_band(self.part, attack, frequency, width),
        )

    def _kept(self, what: str, content: Mapping[str, Any], compute: Callable[[], Arrays]) -> Arrays:
        def seeded() -> Arrays:
            self.seed(what)
            return compute()

        whole = {**self.content, "images": len(self.part), **content}
        return self.run.keep_arrays(what, whole, seeded)


def right_images(found: Predictions, dataset: ArrayDataset) -> Tensor:
    """(N,) whether each image is right, in the order of the data and not of predictions."""
    right = torch.empty(len(dataset), dtype=torch.bool)
    right[dataset.index.argsort(stable=True)] = found.logits.argmax(1) == found.labels
    return right
