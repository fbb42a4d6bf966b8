"""`sfumato.evaluate`: the numbers of a run for a network that was trained anywhere."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from sfumato._core.checks import check_integer
from sfumato._core.files import file_in_the_way
from sfumato._core.spec import Spec
from sfumato._core.text import terminal
from sfumato.data import DataSplits
from sfumato.engine import RunDirectory, parse
from sfumato.engine.config.sections import EvaluateConfig, PredictConfig
from sfumato.engine.evaluation.external import (
    ExternalEvaluation,
    ExternalModel,
    Numbers,
    Split,
    as_network,
    device_of,
    members_of,
    read_data,
    read_numbers,
)
from sfumato.engine.evaluation.splits import PlainSections

_SEVERITIES = (1, 2, 3, 4, 5)
_NOTE = (
    "in brackets the 95 % interval over the test images (bootstrap); 'perfect' is what a perfectly "
    "calibrated network would show with as many images"
)


def evaluate(
    model: ExternalModel,
    data: Spec | DataSplits | Split,
    *,
    validation: Split | None = None,
    ood: Spec | DataSplits | Split | Mapping[str, Any] | None = None,
    train: Split | None = None,
    features: str | None = None,
    corruptions: str | Sequence[str] = (),
    severities: Sequence[int] = _SEVERITIES,
    corrupted_images: int | None = None,
    temperature: bool = False,
    ensemble: int | Sequence[ExternalModel] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    resamples: int = 1000,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure a trained classifier as a study measures its own: every metric, with intervals.

    Args:
        model: an `nn.Module`, or a function, from images to logits (N, C); a module is in
            evaluation mode meanwhile. One that has `returns_probabilities = True`, such as
            `MCDropout` and `DeepEnsemble`, gives probabilities instead.
        data: the test images with their labels. A `DataLoader` of (images, labels), which gives
            images as the model takes them; an `ArrayDataset`, or `DataSplits` with its validation
            set, of `sfumato.data`; or a name as in a study, as `{"name": "folder", ...}`.
        validation: held-out images with labels, a loader or a set, for `temperature`.
        ood: strange inputs, of none of the classes, as `data`, with images of the same shape; or a
            mapping of names to several. A loader may give images alone: labels are not read.
        train: training images with labels, a loader or a set without augmentation, that the
            distances (nearest neighbours, Mahalanobis) of strange inputs are fitted on; without
            them these two are left out. `DataSplits` and names have their own.
        features: name of the layer before which features are taken; None finds the last one.
        corruptions: types of corruption, or one of them, or "all" for the fifteen of the benchmark.
        severities: of each type, 1 to 5.
        corrupted_images: how many images are corrupted, the first ones; None takes all. Those of a
            loader are kept in memory as bytes meanwhile.
        temperature: whether to measure also after temperature scaling, fitted on `validation`.
        ensemble: a number of dropout masks to average over (MC dropout), or other models, which
            are averaged with `model` (a deep ensemble). Smaller ensembles are measured too.
        mean, std: with what the model's images are standardised, (x - mean) / std for x in [0, 1]:
            done to the images of our own sets, undone for corruptions of a loader's. A number for
            each channel, or one for all; None: they are not.
        resamples: bootstrap resamples of the intervals; 0 for none.
        batch_size: images at a time, where no loader decides it.
        device: where images go; by default where the model's weights are.
        out: a folder to write: a run directory, which `sfumato report`, `compare` and `audit` read.
        quiet: print neither progress nor table.

    Returns:
        What a run's `metrics.json` holds: `result["test"]["ece"]`, `["ece_interval"]`, and with
        what was asked for `result["validation"]`, `["corrupted"]`, `["scaled"]`, `["ensemble"]`;
        of strange inputs `result["ood"]["strange"]["energy"]["auroc"]`, by name and score.

    Raises:
        TypeError, ValueError: a model that returns no logits, data without labels, a key that is
            not known; the message says what came and what to do.
        FileExistsError: `out` is there already.
        NotADirectoryError: a file stands where a folder above `out` should be.

    Example:
        >>> from sfumato.data import scenes
        >>> from sfumato.models import resnet
        >>> data = scenes.generate(60, size=16)
        >>> network = resnet(8, num_classes=10, width=4)
        >>> result = evaluate(network, data, resamples=0, quiet=True)
        >>> sorted(result), result["test"]["samples"]
        (['test'], 60)
    """
    folder = None if out is None else _new_folder(out)
    check_integer("batch_size", batch_size, low=1)
    statistics = read_numbers("mean", mean), read_numbers("std", std)
    names = [corruptions] if isinstance(corruptions, str) else list(corruptions)
    sections = _sections(
        ensemble,
        resamples=resamples,
        corruptions="all" if names == ["all"] else names,
        severities=list(severities),
        corrupted_images=corrupted_images,
        temperature=temperature,
    )
    if not names and tuple(severities) != _SEVERITIES:
        raise ValueError(
            f"severities={list(severities)} is of corruptions, and none are asked for: pass "
            'corruptions= too, as "fog" or "all"'
        )
    network = as_network(model, ensemble)
    found = read_data(data, validation, ood, train)
    if features is not None and found.train is None:
        raise ValueError("features is for the distances of strange inputs: pass ood= and train=")
    if temperature and found.validation is None:
        raise ValueError(
            "temperature=True needs held-out images to fit it on: pass validation=, a loader or a "
            "set that was not trained on"
        )
    evaluation = ExternalEvaluation(
        network,
        found,
        sections,
        *statistics,
        batch_size,
        device_of(network, device),
        not quiet,
        features,
    )
    metrics = evaluation.measure()
    title = type(members_of(network)[0].model).__name__ if folder is None else folder.name
    if not quiet:
        _show(title, metrics)
    if folder is not None:
        # Written beside its place and renamed: whole or not at all.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".evaluate-") as place:
            run = RunDirectory(Path(place) / title)
            run.path.mkdir()
            evaluation.write(run)
            run.path.rename(folder)
        if not quiet:
            terminal().print(Text.assemble("Run: ", (str(folder), "bold")), soft_wrap=True)
    return metrics


def _sections(ensemble: object, **wanted: Any) -> PlainSections:
    """Check what is to be measured, as a study's is."""
    samples = None
    if isinstance(ensemble, int) and not isinstance(ensemble, bool):
        check_integer("ensemble", ensemble, low=1)
        samples = ensemble
        # 1, 2, 4, ... and all: each size keeps the whole predictions, and a curve needs no more.
        powers = {2**power for power in range(samples.bit_length())}
        wanted["ensemble_sizes"] = sorted({*powers, samples})
    elif not (ensemble is None or isinstance(ensemble, Sequence)) or isinstance(ensemble, str):
        raise TypeError(
            "ensemble must be a number of dropout masks or a list of models, got "
            f"{type(ensemble).__name__} {ensemble!r}"
        )
    return PlainSections(
        predict=PredictConfig(mc_dropout=samples),
        evaluate=parse(EvaluateConfig, wanted, "evaluate"),
    )


def _new_folder(out: str | Path) -> Path:
    folder = Path(out).expanduser().absolute()
    if folder.exists():
        raise FileExistsError(
            f"out: {folder} is there already, and results are never overwritten. Choose another "
            "name, or delete it"
        )
    if (blocking := file_in_the_way(folder.parent)) is not None:
        raise NotADirectoryError(
            f"out: {blocking} is a file, so there can be no folder {folder} in it. Choose another "
            "place"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _show(title: str, metrics: Mapping[str, Any]) -> None:
    from sfumato.report.export import metrics_tables

    tables = metrics_tables(title, metrics)
    tables[-1].caption = _NOTE
    console = terminal()
    for table in tables:
        console.print(table)
