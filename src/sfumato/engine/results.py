"""A run on disk: a directory named by the hash of its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sfumato._files import read_json, read_yaml, write_arrays, write_json, write_text, write_yaml


@dataclass(frozen=True)
class Predictions:
    """What a model said about a data set, sorted by the samples' index."""

    logits: Tensor
    labels: Tensor
    index: Tensor


@dataclass(frozen=True)
class RunDirectory:
    """Where a run keeps `config.yaml`, `log.jsonl`, `checkpoint`, `predictions`, `metrics.json`.

    `metrics.json` is written last: where it exists, the run is finished and is not touched again.
    """

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_yaml(self.path / "config.yaml", config)

    def config(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml")

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        if self.finished:
            raise FileExistsError(f"{self.path} is a finished run; it is never overwritten")
        write_json(self.path / "metrics.json", metrics)
        (self.path / "error.txt").unlink(missing_ok=True)

    def metrics(self) -> dict[str, Any]:
        return read_json(self.path / "metrics.json")

    def write_error(self, trace: str) -> None:
        """Record why the run failed; a later success removes it."""
        write_text(self.path / "error.txt", trace)

    def append_log(self, record: Mapping[str, Any]) -> None:
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log(self) -> list[dict[str, Any]]:
        path = self.path / "log.jsonl"
        if not path.exists():
            return []
        # A line that another process is still writing has no end yet.
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind_log(self, epoch: int) -> None:
        """Keep the records of finished epochs only, so that a resumed log has none twice."""
        path = self.path / "log.jsonl"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()[:epoch]
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def write_predictions(self, name: str, predictions: Predictions) -> None:
        arrays = {
            "logits": predictions.logits.float().cpu().numpy(),
            "labels": predictions.labels.cpu().numpy(),
            "index": predictions.index.cpu().numpy(),
        }
        write_arrays(self.path / "predictions" / f"{name}.npz", arrays)

    def predictions(self, name: str) -> dict[str, np.ndarray]:
        with np.load(self.path / "predictions" / f"{name}.npz", allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
