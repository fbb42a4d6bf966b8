"""Why trained networks behave as they do: the analyses on finished runs, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sfumato._core.files import read_json, write_atomically, write_json
from sfumato._core.import_path import searching
from sfumato.augment import BatchAugment
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.engine.config.components import build_augmentation
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError
from sfumato.engine.evaluation.analyses import ANALYSES, Analysis, Effort, Subject, key_numbers
from sfumato.engine.evaluation.shown_analyses import ShownMaps
from sfumato.engine.evaluation.trained_batches import (
    TrainedBatches,
    TrainedLoss,
    describe_objective,
)
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.networks import load_network, read_config
from sfumato.engine.runs.progress import progress_bar
from sfumato.engine.runs.splits import load_splits
from sfumato.engine.runs.titles import title_of_run
from sfumato.engine.training.checkpoint import load_checkpoint
from sfumato.engine.training.objective import build_objective
from sfumato.models import OnnxModel


def analyse(
    runs: Sequence[Path],
    out: Path,
    *,
    effort: Effort | None = None,
    only: Sequence[str] = (),
    modules: Path | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Analyse the trained networks of finished runs; `analysis.json` and a picture for each kind.

    Args:
        runs: directories of runs, or of studies, whose first seed of every method is taken.
        out: folder to write.
        effort: how much to compute.
        only: names of the analyses wanted; all if empty.
        modules: the folder of the modules that runs name by import path; they are imported only
            where this is given.
        show: whether to draw a progress bar.

    Returns:
        What `analysis.json` holds: for each analysis its caption, picture, numbers of each network;
        and `summary`, a few numbers of each network.

    Raises:
        ConfigError: an unknown name in `only`, or a run that is not of a classifier.
        FileNotFoundError: a directory that is no run.
    """
    chosen = _choose(only)
    effort = effort or Effort()
    titles = find_runs(runs)
    results: dict[str, dict[str, Any]] = {each.name: {} for each in chosen}
    summary: dict[str, dict[str, float]] = {}
    objectives: dict[str, str] = {}
    with progress_bar("analysing", len(titles) * (len(chosen) + 1), show=show) as bar:
        for title, path in titles.items():
            subject = read_subject(path, effort, modules)
            objectives[title] = subject.objective
            for each in chosen:
                found = each.measure(subject, effort)
                if found is not None:
                    results[each.name][title] = found
                bar.advance(f"{title}: {each.name}")
            summary[title] = key_numbers(subject, {n: r.get(title) for n, r in results.items()})
            bar.advance(title)
    sections = [_write_section(each, results[each.name], out, objectives) for each in chosen]
    content = {
        "titles": list(titles),
        "objectives": objectives,
        "summary": summary,
        "sections": [section for section in sections if section is not None],
    }
    write_json(out / "analysis.json", content)
    return content


def find_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Title to run directory; a study gives the first seed of each of its methods."""
    found: dict[str, Path] = {}
    for path in paths:
        index = path / "study.json"
        if not index.exists():
            _add(found, title_of_run(path), path)
            continue
        for entry in read_json(index)["runs"]:
            if entry["method"] not in found:
                _add(found, entry["method"], path / "runs" / entry["run"])
    return found


def _add(found: dict[str, Path], title: str, path: Path) -> None:
    while title in found:
        title += "'"
    found[title] = path


def _choose(only: Sequence[str]) -> list[Analysis]:
    names = [each.name for each in ANALYSES]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ConfigError(f"unknown analysis {unknown[0]!r}; choose from {', '.join(names)}")
    return [each for each in ANALYSES if not only or each.name in only]


def read_subject(path: Path, effort: Effort, modules: Path | None) -> Subject:
    """The network of a run with the loss and the batches that it was trained on.

    Raises:
        ConfigError: a run that is not of a classifier, or of an ONNX file.
        FileNotFoundError: a directory that is no run.
    """
    run = RunDirectory(path)
    if not (path / "config.yaml").exists():
        raise FileNotFoundError(f"{path} holds no config.yaml: pass a run's directory or a study's")
    config = read_config(run, modules=modules)
    if config.task != "classify":
        raise ConfigError(f"{path}: only classifiers can be analysed, not the task {config.task!r}")
    trained = load_network(run, modules=modules)
    if isinstance(trained.network, OnnxModel):
        raise ConfigError(
            f"{path}: a network in an ONNX file has neither gradients nor feature maps to analyse; "
            "analyse the network that it was exported from"
        )
    with searching(config.modules):
        data = load_splits(config.data)
        facts = trained.facts
        objective = build_objective(config, data.train, facts.mean, facts.std)
        loss = TrainedLoss(_with_history(objective.loss, run), config.train.passes)
        seen = _loader(objective.train, objective.augment, config, facts, effort)
        plain = build_augmentation(config.augment)
        loader = _loader(data.train, plain, config, facts, effort)
    rates = [m.p for m in trained.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    return Subject(
        trained.network,
        loader,
        TrainedBatches(seen, objective.inputs, loss.takes_index, loss.passes),
        loss,
        describe_objective(config),
        config.train.weight_decay,
        any(rates),
        TensorLoader(data.test, effort.batch_size, mean=facts.mean, std=facts.std),
    )


def _with_history(loss: nn.Module, run: RunDirectory) -> nn.Module:
    """The loss with what it knew of each sample, or of confidences, at the end of the training."""
    checkpoint = load_checkpoint(run.checkpoint)
    if checkpoint is not None:
        loss.load_state_dict(checkpoint.loss)
    return loss


def _loader(
    train: ArrayDataset,
    augment: BatchAugment | None,
    config: RunConfig,
    facts: Any,
    effort: Effort,
) -> TensorLoader:
    """Training images in a random order, augmented as in training."""
    return TensorLoader(
        train,
        min(effort.batch_size, len(train)),
        shuffle=True,
        drop_last=True,
        augment=augment,
        channels_last=config.train.channels_last,
        mean=facts.mean,
        std=facts.std,
    )


def _write_section(
    kind: Analysis, results: Mapping[str, Any], out: Path, objectives: Mapping[str, str]
) -> dict[str, Any] | None:
    if not results:
        return None
    picture = f"{kind.name}.png"
    figure = kind.draw(results)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / picture, lambda path: figure.savefig(path, format="png", dpi=130))
    return {
        "name": kind.name,
        "caption": kind.caption + (_trained_for(objectives) if kind.of_training else ""),
        "picture": picture,
        "results": {title: _plain(result) for title, result in results.items()},
    }


def _trained_for(objectives: Mapping[str, str]) -> str:
    """On what the loss is computed: as in the training of each network."""
    said = "; ".join(f"{title}: {what}" for title, what in objectives.items())
    differ = len(set(objectives.values())) > 1
    heights = " Heights of different losses can't be compared." if differ else ""
    return (
        " Of the loss that was trained, on training samples as the optimiser saw them. "
        f"{said}.{heights}"
    )


def _plain(value: Any) -> Any:
    """Dataclasses of tensors as dicts of lists."""
    if isinstance(value, ShownMaps):
        return value.as_numbers()
    if isinstance(value, Tensor):
        return value.tolist()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
