"""A run on disk: its results, and the training that it shares with runs that only evaluate anew.

`runs/<hash of the whole configuration>/` holds what a reader wants: `config.yaml`, `metrics.json`,
`log.jsonl`, `cost.json`, `predictions/`. `runs/trainings/<hash of what decides the weights>/`
holds what is expensive: `checkpoint/`, the growing `log.jsonl`, predictions and parts of
evaluations by content. Two runs that differ in `predict` or `evaluate` only have one training.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._core.files import (
    damaged,
    read_arrays,
    read_json,
    read_json_lines,
    read_unless_damaged,
    write_arrays,
    write_atomically,
    write_json,
    write_text,
)
from sfumato._core.yaml_files import read_yaml, write_yaml
from sfumato.engine.config.sections import content_hash
from sfumato.engine.runs.epoch_records import EpochRecords

Arrays = dict[str, np.ndarray]

TRAININGS = "trainings"
KEPT = "kept.json"  # which weights predict, where that was a choice
_POINTER = "training.json"
_SKIPPED = "skipped_images.json"
_CONTENT = "content"  # of a kept part, for the reader of the file


@dataclass(frozen=True)
class Predictions:
    """What a model said about a data set, sorted by the samples' index."""

    logits: Tensor
    labels: Tensor
    index: Tensor


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run, wherever they lie.

    `metrics.json` is written last: where it exists, the run is finished and is not touched again.
    A directory without a pointer to a training holds its own (as the first version wrote them).
    """

    path: Path

    @property
    def training(self) -> Path:
        """The directory of the training whose weights this run evaluates."""
        pointer = self._pointer()
        return self.path.parent / TRAININGS / pointer["training"] if pointer else self.path

    @property
    def checkpoint(self) -> Path:
        return self.training / "checkpoint"

    @property
    def records(self) -> EpochRecords:
        return EpochRecords(self.training)

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def begin(self, config: Mapping[str, Any], training: Mapping[str, Any]) -> None:
        """Write the configuration, the training that it belongs to, and where that is."""
        name = content_hash(training)
        write_json(
            self.path / _POINTER,
            {"training": name, "predictor": content_hash(config["predict"])},
        )
        write_yaml(self.path / "config.yaml", config)
        write_yaml(self.path.parent / TRAININGS / name / "config.yaml", training)

    def config(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml")

    def write_metrics(
        self, metrics: Mapping[str, Any], *, training_seconds: float | None = None
    ) -> None:
        """Finish the run: its log and its cost, then the metrics.

        Args:
            metrics: what the run has measured.
            training_seconds: of networks that other trainings have logged.
        """
        if self.finished:
            raise FileExistsError(f"{self.path} is a finished run; it is never overwritten")
        for name in ("log.jsonl", KEPT):
            file = self.training / name
            if self.training != self.path and file.exists():
                write_text(self.path / name, file.read_text(encoding="utf-8"))
        known = {} if training_seconds is None else {"training_seconds": training_seconds}
        write_json(self.path / "cost.json", {**self._cost(), **known})
        write_json(self.path / "metrics.json", {**metrics, **self._skipped_count()})
        (self.path / "error.txt").unlink(missing_ok=True)

    def set_aside_damage(self) -> None:
        """Set damaged files of a finished run aside; it then counts as unfinished.

        It is measured anew from its training, which computes only what is damaged there too.
        """
        if not self.finished:
            return
        again = "the run is measured anew"
        files = [path for path in self.path.iterdir() if path.suffix in _READERS]
        found = [read_unless_damaged(path, _READERS[path.suffix], again) for path in files]
        if any(content is None for content in found) and self.finished:
            (self.path / "metrics.json").rename(self.path / "metrics.json.before")

    def log(self) -> list[dict[str, Any]]:
        """The record of each epoch of the training."""
        return self.records.read()

    def metrics(self) -> dict[str, Any]:
        return read_json(self.path / "metrics.json")

    def write_skipped(self, skipped: Mapping[str, str]) -> None:
        """List the images that were left out because they can't be decoded, if there are any.

        `write_metrics` counts them in `metrics.json`.
        """
        if not skipped:  # nor are there any of a run that failed before files were mended
            (self.path / _SKIPPED).unlink(missing_ok=True)
            return
        content = {"count": len(skipped), "images": dict(skipped)}
        write_json(self.path / _SKIPPED, content)

    def write_error(self, trace: str) -> None:
        """Record why the run failed; a later success removes it."""
        write_text(self.path / "error.txt", trace)

    def write_predictions(
        self,
        name: str,
        predictions: Predictions,
        *,
        seconds: float | None = None,
        source: str = "",
    ) -> None:
        """Keep a split's predictions, and how long they took, for every run that predicts so.

        Args:
            name: of the split.
            predictions: its predictions.
            seconds: how long they took.
            source: names the data, where that is not the data of the training.
        """
        arrays = {
            "logits": predictions.logits.float().cpu().numpy(),
            "labels": predictions.labels.cpu().numpy(),
            "index": predictions.index.cpu().numpy(),
        }
        if seconds is not None:
            self.write_timing(f"{name}{source}", len(predictions.labels), seconds)
        write_arrays(self._kept_predictions(f"{name}{source}"), arrays)
        self.link_predictions(name, source)

    def write_timing(self, name: str, images: int, seconds: float) -> None:
        """Keep how long it took to predict a split, for the cost of every run that predicts so."""
        timing = {"images": images, "seconds": round(seconds, 6)}
        write_json(self._kept_predictions(name).with_suffix(".json"), timing)

    def link_predictions(self, name: str, source: str = "") -> bool:
        """Give this run the kept predictions of a split; False where there are none yet."""
        kept = self._kept_predictions(f"{name}{source}")
        own = self.path / "predictions" / f"{name}.npz"
        if read_unless_damaged(kept, read_arrays) is None:
            return False
        if kept != own:
            write_atomically(own, lambda temporary: _link(kept, temporary))
        return True

    def predictions(self, name: str) -> Arrays:
        return read_arrays(self.path / "predictions" / f"{name}.npz")

    def read_predictions(self, name: str) -> Predictions:
        """The kept predictions of a split as tensors."""
        arrays = self.predictions(name)
        fields = ("logits", "labels", "index")
        return Predictions(*(torch.from_numpy(arrays[key]) for key in fields))

    def keep(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """A part of an evaluation: read where this training has it, else computed and kept.

        Args:
            name: what it is, for the reader of the directory ("corrupted-fog-3").
            content: everything besides the weights that decides the part's numbers.
            compute: called where the part is not there; its result must be plain data.
        """
        path = self.training / "parts" / f"{name}-{content_hash(content)}.json"
        values = read_unless_damaged(path, _read_part)
        if values is None:
            write_json(path, {"content": content, "values": compute()})
            # Read back, so that both ways give the same rounding and nulls.
            values = _read_part(path)
        return values

    def keep_arrays(
        self,
        name: str,
        content: Mapping[str, Any],
        compute: Callable[[], Arrays],
    ) -> Arrays:
        """`keep` for arrays of one number for each image; Args as there."""
        path = self.training / "parts" / f"{name}-{content_hash(content)}.npz"
        arrays = read_unless_damaged(path, read_arrays)
        if arrays is None:
            write_arrays(path, {**compute(), _CONTENT: np.array(json.dumps(content))})
            arrays = read_arrays(path)
        return {key: value for key, value in arrays.items() if key != _CONTENT}

    def _skipped_count(self) -> dict[str, int]:
        path = self.path / _SKIPPED
        return {"skipped_images": read_json(path)["count"]} if path.exists() else {}

    def _pointer(self) -> dict[str, str]:
        path = self.path / _POINTER
        return read_json(path) if path.exists() else {}

    def _kept_predictions(self, name: str) -> Path:
        return self.training / "predictions" / self._pointer().get("predictor", "") / f"{name}.npz"

    def _cost(self) -> dict[str, Any]:
        """Seconds of training (without validation), and of predicting one test image."""
        timing = self._kept_predictions("test").with_suffix(".json")
        inference = read_unless_damaged(timing, read_json, "the time of a prediction is lost")
        records = self.log()
        return {
            "training_seconds": sum(record.get("seconds", 0.0) for record in records),
            "epochs": len(records),
            "inference_seconds_per_image": inference
            and inference["seconds"] / max(1, inference["images"]),
        }


def _read_part(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("values"), dict):
        raise damaged(path, "it holds no values")
    values: dict[str, Any] = content["values"]
    return values


_READERS: dict[str, Callable[[Path], Any]] = {
    ".json": read_json,
    ".jsonl": read_json_lines,
    ".npz": read_arrays,
    ".yaml": read_yaml,
}


def _link(source: Path, target: Path) -> None:
    target.unlink()
    try:
        os.link(source, target)
    except OSError:  # some shared folders know no hard links
        shutil.copyfile(source, target)
