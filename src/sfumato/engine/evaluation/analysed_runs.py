"""Analyses of finished runs, side by side: why trained networks behave as they do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sfumato._core.files import index_entries, unreadable_file, write_atomically, write_json
from sfumato._core.import_path import searching
from sfumato._core.text import progress_bar
from sfumato.augment import BatchAugment
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.engine.config.build import build_augmentation
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError
from sfumato.engine.evaluation.analyses import (
    ANALYSES,
    AnalysedRun,
    Analysis,
    Effort,
    ShownMaps,
    TrainedBatches,
    TrainedLoss,
    describe_objective,
    key_numbers,
)
from sfumato.engine.runs.directory import RunDirectory, title_of_run
from sfumato.engine.training.checkpoint import load_checkpoint, load_network, read_config
from sfumato.engine.training.steps import build_objective, load_splits
from sfumato.models import OnnxModel


def analyse(
    runs: Sequence[Path],
    out: Path,
    *,
    effort: Effort | None = None,
    only: Sequence[str] = (),
    modules: Path | None = None,
    show: bool = True,
    say: Callable[[str], None] = warnings.warn,
) -> dict[str, Any]:
    """Analyse the networks of finished runs; writes `analysis.json` and a picture for each kind."""
    chosen = _choose(only)
    effort = effort or Effort()
    titles, left_out = find_runs(runs)
    for line in left_out:
        say(line)
    results: dict[str, dict[str, Any]] = {each.name: {} for each in chosen}
    summary: dict[str, dict[str, float]] = {}
    objectives: dict[str, str] = {}
    with progress_bar("analysing", len(titles) * (len(chosen) + 1), show=show) as bar:
        for title, path in titles.items():
            analysed = read_analysed_run(path, effort, modules)
            objectives[title] = analysed.objective
            for each in chosen:
                found = each.measure(analysed, effort)
                if found is not None:
                    results[each.name][title] = found
                bar.advance(f"{title}: {each.name}")
            summary[title] = key_numbers(analysed, {n: r.get(title) for n, r in results.items()})
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


def find_runs(paths: Sequence[Path]) -> tuple[dict[str, Path], list[str]]:
    """Title to run directory, and a line for each study of which methods are left out.

    A study gives the first finished seed of each of its methods.
    """
    found: dict[str, Path] = {}
    lines = []
    for path in paths:
        if not (path / "study.json").exists():
            _check_run(path)
            _add(found, title_of_run(path), path)
            continue
        taken, missing = _first_seeds(path)
        if not taken:
            raise ConfigError(f"{path}: no run is finished; train one first (sfumato run)")
        if missing:
            lines.append(
                f"{path}: {len(missing)} of {len(taken) + len(missing)} methods are left out, "
                f"because no run of theirs is finished: {', '.join(missing)}"
            )
        for method, run in taken.items():
            _add(found, method, run)
    return found, lines


def _first_seeds(study: Path) -> tuple[dict[str, Path], list[str]]:
    """The first finished run of each method of a study, and the methods that have none."""
    entries = index_entries(study)
    found: dict[str, Path] = {}
    for entry in entries:
        run = study / "runs" / entry["run"]
        if entry["method"] not in found and RunDirectory(run).finished:
            found[entry["method"]] = run
    methods = dict.fromkeys(entry["method"] for entry in entries)
    return found, [method for method in methods if method not in found]


def _check_run(path: Path) -> None:
    if not (path / "config.yaml").exists():
        raise FileNotFoundError(f"{path} holds no config.yaml: pass a run's directory or a study's")


def _add(found: dict[str, Path], title: str, path: Path) -> None:
    # Two studies may call a method alike, and both are shown.
    while title in found:
        title += "'"
    found[title] = path


def _choose(only: Sequence[str]) -> list[Analysis]:
    names = [each.name for each in ANALYSES]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ConfigError(f"unknown analysis {unknown[0]!r}; choose from {', '.join(names)}")
    return [each for each in ANALYSES if not only or each.name in only]


def read_analysed_run(path: Path, effort: Effort, modules: Path | None) -> AnalysedRun:
    """The network of a run with the loss and the batches that it was trained on."""
    run = RunDirectory(path)
    _check_run(path)
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
        facts = trained.facts
        try:
            data = load_splits(config.data, fetch=False)
            objective = build_objective(config, data.train, facts.mean, facts.std)
        # Of a part inside another, which only building it looks at; of data of any size.
        except (MemoryError, RuntimeError, ValueError) as error:
            raise ConfigError(f"{path}: {str(error) or type(error).__name__}") from error
        checkpoint = load_checkpoint(run.checkpoint)
        if checkpoint is not None:
            # What it knew of each sample, or of confidences, at the end of the training.
            try:
                objective.loss.load_state_dict(checkpoint.loss)
            except (AttributeError, RuntimeError, TypeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise unreadable_file(run.checkpoint, reason) from None
        loss = TrainedLoss(objective.loss, config.train.passes)
        seen = _loader(objective.train, objective.augment, config, facts, effort)
        plain = build_augmentation(config.augment)
        loader = _loader(data.train, plain, config, facts, effort)
    rates = [m.p for m in trained.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    return AnalysedRun(
        trained.network,
        loader,
        TrainedBatches(seen, objective.inputs, loss.takes_index, loss.passes),
        loss,
        describe_objective(config),
        config.train.weight_decay,
        any(rates),
        TensorLoader(data.test, effort.batch_size, mean=facts.mean, std=facts.std),
    )


def _loader(
    train: ArrayDataset,
    augment: BatchAugment | None,
    config: RunConfig,
    facts: Any,
    effort: Effort,
) -> TensorLoader:
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
    """Dataclasses and named tuples of tensors as dicts of lists."""
    if isinstance(value, ShownMaps):
        return value.as_numbers()
    if isinstance(value, Tensor):
        return value.tolist()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
