"""A run on disk: results, log, environment and title, and the training that it shares."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._core.files import (
    MOST_JSON,
    check_inside,
    index_entries,
    parse_json,
    plain_name,
    read_arrays,
    read_bytes,
    read_json,
    read_json_lines,
    read_or_set_aside,
    read_text,
    set_aside,
    unreadable_file,
    write_arrays,
    write_atomically,
    write_json,
    write_text,
)
from sfumato._core.spec import content_hash
from sfumato._core.yaml_files import read_yaml, write_yaml
from sfumato.engine.fabric import Fabric
from sfumato.ops.library import kernel_level


@dataclass(frozen=True)
class EpochRecords:
    training: Path

    @property
    def path(self) -> Path:
        return self.training / "log.jsonl"

    def append(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """The records that are whole, in the order of the epochs."""
        return [record for record in self._read() if record is not None]

    def rewind(self, epoch: int) -> None:
        """Keep the records of finished epochs only, so that a resumed log has none twice."""
        if self.path.exists():
            self._write([record for record in self.read() if record["epoch"] < epoch])

    def repair(self) -> None:
        """Set an unreadable log aside and keep the records that can be read."""
        records = self.read()
        if lost := len(self._read()) - len(records):
            set_aside(
                self.path,
                f"the curves and times of {lost} epochs are lost, the weights are not affected",
            )
            self._write(records)

    def _read(self) -> list[dict[str, Any] | None]:
        """The record of each line, None of an unreadable one."""
        if not self.path.exists():
            return []
        content = read_bytes(self.path, within=self.training, most=MOST_JSON)
        # A line that another process is still writing has no end yet.
        return [_record(line) for line in content.rpartition(b"\n")[0].splitlines()]

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in records))


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "epoch" in record else None


Arrays = dict[str, np.ndarray]
TRAININGS = "trainings"
KEPT = "kept.json"  # which weights predict, where that was a choice
_POINTER = "training.json"
_SKIPPED = "skipped_images.json"
_CONTENT = "content"  # of a kept part, for the reader of the file


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for a data set, sorted by the samples' index."""

    logits: Tensor
    labels: Tensor
    index: Tensor


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run; where `metrics.json` exists, it is finished and is not touched again.

    A directory without a pointer to a training holds its own (as the first version wrote them).
    """

    path: Path

    @property
    def training(self) -> Path:
        """The directory of the training whose weights this run evaluates."""
        pointer = self._pointer()
        if not pointer:
            return self.path
        training = self.path.parent / TRAININGS / pointer["training"]
        check_inside(training, self.path.parent)
        return training

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
        # Runs that predict alike share their predictions, under the name of `predict`.
        pointer = {"training": name, "predictor": content_hash(config["predict"])}
        write_json(self.path / _POINTER, pointer)
        write_yaml(self.path / "config.yaml", config)
        write_yaml(self.path.parent / TRAININGS / name / "config.yaml", training)

    def config(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml", within=self.path)

    def write_metrics(
        self, metrics: Mapping[str, Any], *, training_seconds: float | None = None
    ) -> None:
        """Finish the run: its log and its cost, then the metrics.

        `training_seconds` are of networks that other trainings have logged.
        """
        if self.finished:
            raise FileExistsError(f"{self.path} is a finished run; it is never overwritten")
        for name in ("log.jsonl", KEPT):
            file = self.training / name
            if self.training != self.path and file.exists():
                write_text(self.path / name, read_text(file))
        known = {} if training_seconds is None else {"training_seconds": training_seconds}
        write_json(self.path / "cost.json", {**self._cost(), **known})
        skipped = self.path / _SKIPPED
        counted = {"skipped_images": read_json(skipped)["count"]} if skipped.exists() else {}
        write_json(self.path / "metrics.json", {**metrics, **counted})
        (self.path / "error.txt").unlink(missing_ok=True)

    def set_aside_damage(self) -> None:
        """Set unreadable files of a finished run aside; it is measured anew from its training."""
        if not self.finished:
            return
        again = "the run is measured anew"
        files = [path for path in self.path.iterdir() if path.suffix in _READERS]
        found = [read_or_set_aside(path, _READERS[path.suffix], again) for path in files]
        if any(content is None for content in found) and self.finished:
            (self.path / "metrics.json").rename(self.path / "metrics.json.before")

    def log(self) -> list[dict[str, Any]]:
        return self.records.read()

    def metrics(self) -> dict[str, Any]:
        return read_json(self.path / "metrics.json", within=self.path)

    def write_skipped(self, skipped: Mapping[str, str]) -> None:
        """List the images that can't be decoded; `write_metrics` counts them in `metrics.json`."""
        path = self.path / _SKIPPED
        if skipped:
            write_json(path, {"count": len(skipped), "images": dict(skipped)})
        else:  # nor are there any of a run that failed before files were repaired
            path.unlink(missing_ok=True)

    def write_error(self, trace: str) -> None:
        """Record why the run failed; a later success removes it."""
        write_text(self.path / "error.txt", trace)

    def write_predictions(
        self, name: str, predictions: Predictions, *, seconds: float | None = None, source: str = ""
    ) -> None:
        """Keep a split's predictions, and how long they took, for every run that predicts so.

        `source` names the data, where that is not the data of the training.
        """
        arrays = {key: getattr(predictions, key).cpu().numpy() for key in ("labels", "index")}
        arrays["logits"] = predictions.logits.float().cpu().numpy()
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
        if read_or_set_aside(kept, read_arrays) is None:
            return False
        # A directory that holds its own training has the file in place already.
        if kept != own:
            write_atomically(own, lambda temporary: _link(kept, temporary))
        return True

    def predictions(self, name: str) -> Arrays:
        return read_arrays(self.path / "predictions" / f"{name}.npz", within=self.path)

    def read_predictions(self, name: str) -> Predictions:
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
            compute: gives plain data.
        """
        path = self.training / "parts" / f"{name}-{content_hash(content)}.json"
        values = read_or_set_aside(path, _read_part)
        if values is None:
            write_json(path, {"content": content, "values": compute()})
            # Read back, so that both ways give the same rounding and nulls.
            values = _read_part(path)
        return values

    def keep_arrays(
        self, name: str, content: Mapping[str, Any], compute: Callable[[], Arrays]
    ) -> Arrays:
        """`keep` for arrays of one number for each image; Args as there."""
        path = self.training / "parts" / f"{name}-{content_hash(content)}.npz"
        arrays = read_or_set_aside(path, read_arrays)
        if arrays is None:
            write_arrays(path, {**compute(), _CONTENT: np.array(json.dumps(content))})
            arrays = read_arrays(path)
        return {key: value for key, value in arrays.items() if key != _CONTENT}

    def _pointer(self) -> dict[str, str]:
        path = self.path / _POINTER
        if not path.exists():
            return {}
        found = read_json(path, within=self.path)
        if not isinstance(found, dict) or "training" not in found:
            raise unreadable_file(path, "it names no training")
        return {key: plain_name(value, path) for key, value in found.items()}

    def _kept_predictions(self, name: str) -> Path:
        return self.training / "predictions" / self._pointer().get("predictor", "") / f"{name}.npz"

    def _cost(self) -> dict[str, Any]:
        """Seconds of training (without validation), and of predicting one test image."""
        timing = self._kept_predictions("test").with_suffix(".json")
        inference = read_or_set_aside(timing, read_json, "the time of a prediction is lost")
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
        raise unreadable_file(path, "it holds no values")
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


def title_of_run(path: Path) -> str:
    """`method, seed 0` where the study's index names the run, else the directory's name."""
    # The folder of runs may be a link to a larger disk, or the run to where it is needed.
    for place in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        index = place.parent.parent / "study.json"
        entries = index_entries(index.parent) if index.exists() else []
        for entry in entries:
            if entry["run"] == place.name:
                return f"{entry['method']}, seed {entry['seed']}"
    return Path(os.path.abspath(path)).name


@contextmanager
def training_log(
    run: RunDirectory, start_epoch: int, active: bool
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give what writes an epoch's record; only the first process of a distributed run writes."""
    if not active:
        yield lambda record: None
        return
    run.records.rewind(start_epoch)
    if importlib.util.find_spec("tensorboard") is None:
        yield run.records.append
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.training / "tensorboard"), purge_step=start_epoch) as board:

        def write(record: Mapping[str, Any]) -> None:
            run.records.append(record)
            for name, value in record.items():
                if name != "epoch":
                    board.add_scalar(name, value, record["epoch"])

        yield write


PACKAGES = ("sfumato", "torch", "torchvision", "torchmetrics", "lightning-fabric", "numpy")


def environment_facts(fabric: Fabric) -> dict[str, Any]:
    """Versions, processor, cores, threads, devices and compiled kernels, as plain data."""
    device = fabric.device
    graphics = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": graphics or _processor(),
        "accelerator": device.type,
        "devices": fabric.world_size,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernel_level(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
