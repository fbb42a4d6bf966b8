"""Export finished runs of a study to MLflow, Weights & Biases or TensorBoard."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sfumato._core.exports import optional
from sfumato._core.files import (
    MOST_JSON,
    UnreadableFileError,
    checked_file,
    plain_name,
    read_bytes,
    read_json,
    read_json_lines,
    write_json,
)
from sfumato._core.text import markdown_table
from sfumato._core.yaml_files import read_yaml

Tracker = Literal["mlflow", "wandb", "tensorboard"]
STORES: dict[str, str] = {
    "mlflow": "sqlite:///mlflow.db",
    "wandb": ".",
    "tensorboard": "tensorboard",
}


class StoreError(ValueError):
    """Nothing can be exported: there is no finished run, or the store can't be written."""


class Exported(NamedTuple):
    """How many runs were written to a store, and how many were in it already."""

    new: int
    known: int


@dataclass(frozen=True)
class TrackedRun:
    """The content that a tracker holds of one run, or of a study's report."""

    study: str  # title
    name: str  # method and seed
    key: str  # a hash of study, name and results, by which a store recognises the run
    config: dict[str, Any]  # options by their dotted names
    metrics: dict[str, float]  # final, such as `test/ece`, `test/ece_low` and `test/ece_high`
    curves: list[tuple[int, dict[str, float]]]  # numbers of each epoch
    files: dict[str, Path]  # to keep, by their names in the store


def export_runs(folder: str | Path, to: Tracker, store: str | None = None) -> Exported:
    """Write the finished runs of a study, and its report, to a tracker's own store.

    Runs that the store has are left alone, so that exporting again adds what is new. A run whose
    results changed is a new one.

    Args:
        folder: that `sfumato run` wrote.
        to: "mlflow", "wandb" (offline: `wandb sync` uploads) or "tensorboard".
        store: MLflow's tracking URI or folder (`sqlite:///mlflow.db`), W&B's folder (`.`) or
            TensorBoard's (`tensorboard`).
    """
    if to not in STORES:
        raise ValueError(f"to must be one of {', '.join(STORES)}, got {to!r}")
    runs = list(tracked_runs(Path(folder)))
    if not runs:
        raise StoreError(f"{folder} holds no finished run: give 'sfumato run' to finish some")
    place = STORES[to] if store is None else store
    try:
        write = {"mlflow": _mlflow, "wandb": _wandb, "tensorboard": _tensorboard}[to](place)
        written = [write(run) for run in runs]
    except (ImportError, OSError, UnreadableFileError):
        raise
    except Exception as error:  # each tracker has errors of its own
        why = str(error).partition("\n")[0] or type(error).__name__
        raise StoreError(f"{to} can't write to {place}: {why}") from error
    return Exported(sum(written), len(written) - sum(written))


def tracked_runs(folder: Path) -> Iterator[TrackedRun]:
    """Read the finished runs of a study, and at last its report where there is one."""
    index_file = folder / "study.json"
    if not index_file.exists():
        raise FileNotFoundError(
            f"{folder} holds no study.json: pass the folder that 'sfumato run' wrote"
        )
    index = read_json(index_file, within=folder)
    title, found = str(index["title"]), False
    for entry in index["runs"]:
        path = folder / "runs" / plain_name(entry["run"], index_file)
        if (path / "metrics.json").exists():
            found = True
            yield _tracked_run(path, folder, title, f"{entry['method']} seed {entry['seed']}")
    report = folder / "report"
    if found and (report / "index.html").exists():
        files = {
            f"report/{path.relative_to(report)}": checked_file(path, within=folder, most=MOST_JSON)
            for path in sorted(report.rglob("*"))
            if path.is_file()
        }
        yield TrackedRun(title, "report", _key(title, "report", files), {}, {}, [], files)


def _tracked_run(path: Path, folder: Path, study: str, name: str) -> TrackedRun:
    names = ("config.yaml", "metrics.json", "log.jsonl", "environment.json")
    files = {
        each: checked_file(path / each, within=folder, most=MOST_JSON)
        for each in names
        if (path / each).exists()
    }
    log = read_json_lines(path / "log.jsonl", within=folder) if "log.jsonl" in files else []
    curves = []
    for place, record in enumerate(log):
        numbers = dict(_numbers(record))
        curves.append((int(numbers.pop("epoch", place)), numbers))
    return TrackedRun(
        study,
        name,
        _key(study, name, files),
        dict(_flat(read_yaml(path / "config.yaml", within=folder), ".")),
        dict(_numbers(read_json(path / "metrics.json", within=folder))),
        curves,
        files,
    )


def _key(study: str, name: str, files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256(json.dumps([study, name]).encode())
    for each, path in files.items():
        if each != "environment.json":
            digest.update(each.encode() + read_bytes(path, most=MOST_JSON))
    return digest.hexdigest()[:16]


def _copy(files: Mapping[str, Path], folder: Path) -> list[str]:
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(read_bytes(path, most=MOST_JSON))
    return list(files)


def _allowed(text: str, extra: str, other: str) -> str:
    """Letters, digits and the `extra` characters of a text; `other` in the place of the rest."""
    return "".join(each if each.isalnum() or each in extra else other for each in text)


def _folder_name(text: str) -> str:
    """A name for a folder of the store, which leads to no other place."""
    return _allowed(text, "_-. ", "-")[:50].strip(". ") or "study"


def _flat(value: Any, separator: str, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _flat(each, separator, f"{name}{separator}{key}" if name else str(key))
    else:
        yield name, value


def _numbers(content: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Finite numbers by their paths; an interval is a lower and an upper end."""
    for name, value in _flat(content, "/"):
        ends = {name: value}
        if name.endswith("_interval") and isinstance(value, list) and len(value) == 2:
            stem = name.removesuffix("_interval")
            ends = {f"{stem}_low": value[0], f"{stem}_high": value[1]}
        for key, each in ends.items():
            if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each):
                yield key, float(each)


def _mlflow(store: str) -> Callable[[TrackedRun], bool]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would ask a host of its own
    mlflow = optional("mlflow", "exporting to MLflow needs", "trackers")
    client = mlflow.MlflowClient(tracking_uri=store)
    files = None  # of a remote server: its own place
    if store.startswith("sqlite:///"):  # beside the database, wherever the command was given
        files = (Path(store.removeprefix("sqlite:///")).absolute().parent / "mlartifacts").as_uri()

    def write(run: TrackedRun) -> bool:
        known = client.get_experiment_by_name(run.study)
        create = client.create_experiment
        experiment = known.experiment_id if known else create(run.study, artifact_location=files)
        # A run that was cut off did not finish, and is written anew.
        wanted = f"tags.`sfumato.key` = '{run.key}' and attributes.status = 'FINISHED'"
        if client.search_runs([experiment], wanted):
            return False
        tags = {"sfumato.key": run.key, "mlflow.runName": run.name}
        number = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        for name, value in run.config.items():
            client.log_param(number, _allowed(name, "_-./ ", "_")[:250], str(value)[:6000])
        for step, values in [*run.curves, (None, run.metrics)]:
            for name, each in values.items():
                client.log_metric(number, _allowed(name, "_-./ ", "_")[:250], each, step=step)
        for name, path in run.files.items():
            client.log_artifact(number, str(path), str(Path(name).parent) if "/" in name else None)
        client.set_terminated(number)
        return True

    return write


def _wandb(store: str) -> Callable[[TrackedRun], bool]:
    wandb = optional("wandb", "exporting to Weights & Biases needs", "trackers")
    folder = Path(store)

    def write(run: TrackedRun) -> bool:
        if any(folder.glob(f"wandb/*run-*-{run.key}/files/sfumato.json")):
            return False
        folder.mkdir(parents=True, exist_ok=True)
        tracked = wandb.init(
            project=_allowed(run.study, "_-.", "-")[:128],
            name=run.name,
            id=run.key,
            config=run.config,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=wandb.Settings(silent=True, x_disable_stats=True, x_disable_meta=True),
        )
        for step, values in run.curves:
            tracked.log(values, step=step)
        tracked.summary.update(run.metrics)
        kept = Path(tracked.dir)
        for name in _copy(run.files, kept):
            tracked.save(str(kept / name), base_path=str(kept), policy="end")
        tracked.finish()
        write_json(kept / "sfumato.json", {"key": run.key})
        return True

    return write


def _tensorboard(store: str) -> Callable[[TrackedRun], bool]:
    tensorboard = optional(
        "torch.utils.tensorboard", "exporting to TensorBoard needs tensorboard:", "trackers"
    )

    def write(run: TrackedRun) -> bool:
        name = f"{_folder_name(run.name)} {run.key}"
        place = Path(store) / _folder_name(run.study) / name
        if place.exists():
            return False
        # Renamed when complete, so that a folder is a whole run.
        unfinished = place.with_name(f".{name}")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        with tensorboard.SummaryWriter(str(unfinished)) as writer:
            options = [(key, str(value)) for key, value in run.config.items()]
            writer.add_text("config", "\n".join(markdown_table(("option", "value"), options)))
            last = max((step for step, _ in run.curves), default=0)
            for step, values in [*run.curves, (last, run.metrics)]:
                for key, each in values.items():
                    writer.add_scalar(key, each, step)
        _copy(run.files, unfinished)
        unfinished.rename(place)
        return True

    return write
