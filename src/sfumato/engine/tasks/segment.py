"""The task `segment`: one label for each pixel."""

from __future__ import annotations

import shutil
import time
from functools import partial

import torch
from torch import nn

from sfumato._core.seeds import fold_seed
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    median_frequency_weights,
)
from sfumato.engine.config.components import (
    build_augmentation,
    build_loss,
    build_model,
    check_void,
)
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import content_hash
from sfumato.engine.evaluation.pixel_sums import PixelSums
from sfumato.engine.evaluation.pixels import (
    PixelEvaluator,
    measure_pixels,
    smooth_streams,
    sums_for,
)
from sfumato.engine.evaluation.replicates import Replicates, describe_units
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.networks import write_network_facts
from sfumato.engine.runs.splits import image_statistics, load_splits
from sfumato.engine.tasks.classify import Loaders
from sfumato.engine.training.label_step import LabelStep
from sfumato.engine.training.loop import Trainer
from sfumato.engine.training.notes import validation_notes


def execute(fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool) -> None:
    """Train, predict and evaluate a segmenter; all processes train, the first one evaluates.

    With several processes each takes the mean over its own labelled pixels, and the means are
    weighted by images: where images differ in void pixels this is close to the mean over all
    pixels, not equal to it.
    """
    data = load_splits(config.data)
    if fabric.is_global_zero:
        directory.write_skipped(data.skipped)
    loaders = Loaders(config, fabric, *image_statistics(config, data.train))
    for part in (data.validation, data.test):
        smooth_streams(config.predict.temporal, part)
    network = build_trainer(fabric, config, data, loaders, directory, show).fit()
    if fabric.is_global_zero:
        evaluate(fabric, config, directory, data, network, loaders, show)
    fabric.barrier()


def build_trainer(
    fabric: Fabric,
    config: RunConfig,
    data: DataSplits,
    loaders: Loaders,
    directory: RunDirectory,
    show: bool,
) -> Trainer:
    """The trainer of a configuration, with initial weights from its seed."""
    loss = _build_loss(config, data)
    if fabric.is_global_zero:
        write_network_facts(directory, data.train, loaders.mean, loaders.std)
    loader = loaders.training(data.train, build_augmentation(config.augment))
    torch.manual_seed(fold_seed(config.seed, "initial weights"))
    return Trainer(
        fabric=fabric,
        model=build_model(config.model, data.train),
        step=LabelStep(fabric, loss, loader, config.seed, passes=config.train.passes),
        train_loader=loader,
        validation_loader=loaders.evaluation(data.validation),
        config=config.train,
        seed=config.seed,
        run=directory,
        show=show,
        measure=partial(measure_pixels, note=validation_notes(loss)),
    )


def _build_loss(config: RunConfig, data: DataSplits) -> nn.Module:
    train = data.train
    weight = None
    if config.class_weight == "median_frequency":
        weight = median_frequency_weights(train.labels, train.num_classes, void=train.void)
    loss = build_loss(
        config.loss,
        num_samples=len(train),
        num_classes=train.num_classes,
        epochs=config.train.epochs,
        class_weight=weight,
    )
    check_void(loss, train)
    return loss


def evaluate(
    fabric: Fabric,
    config: RunConfig,
    directory: RunDirectory,
    data: DataSplits,
    network: nn.Module,
    loaders: Loaders,
    show: bool,
) -> None:
    """Predict and measure both splits, as one process does alone."""
    evaluator = build_evaluator(fabric, config, network, loaders, show)
    metrics, replicates = {}, Replicates(config.evaluate.resamples)
    for name, part in (("validation", data.validation), ("test", data.test)):
        found, draws = _kept_sums(evaluator, name, part, config, directory), None
        units = len(found.rows)
        if name == "test" and replicates.resamples and units > 1:
            draws = found.resample(replicates.resamples, generator=replicates.generator(units))
            replicates.add(name, describe_units(units, part.labels), draws)
        metrics[name] = {**found.summary(classes=part.classes, draws=draws), "samples": len(part)}
    replicates.write(directory.path)
    directory.write_metrics(metrics)


def build_evaluator(
    fabric: Fabric, config: RunConfig, network: nn.Module, loaders: Loaders, show: bool
) -> PixelEvaluator:
    """Predicts as the configuration says, without the wrapper that Fabric puts around a network."""
    inner = getattr(network, "module", network)
    return PixelEvaluator(
        network=inner if isinstance(inner, nn.Module) else network,
        predict=config.predict,
        mean=loaders.mean,
        std=loaders.std,
        batch_size=config.train.batch_size,
        device=fabric.device,
        show=show,
        num_bins=config.evaluate.all_bins[0],
    )


def _kept_sums(
    evaluator: PixelEvaluator,
    name: str,
    part: ArrayDataset,
    config: RunConfig,
    directory: RunDirectory,
) -> PixelSums:
    """Sums of a split, predicted where the training has none yet that were predicted so."""
    content = config.predict.model_dump(mode="json")
    kept_maps = directory.training / "maps" / content_hash(content)

    def compute() -> dict[str, list[float]]:
        torch.manual_seed(fold_seed(config.seed, "predictions", name, 0))
        began = time.perf_counter()
        found = evaluator.sums(name, part, maps=kept_maps if name == "test" else None)
        directory.write_timing(name, len(part), time.perf_counter() - began)
        return found.as_dict()

    # Rows of another length were kept by a version that measured something else.
    empty = sums_for(part, evaluator.num_bins)
    key = {**content, "length": empty.length}
    rows = directory.keep(f"pixels-{name}", key, compute)
    if name == "test" and kept_maps.exists():
        shutil.copytree(kept_maps, directory.path / "maps", dirs_exist_ok=True)
    return empty.restore(rows)
