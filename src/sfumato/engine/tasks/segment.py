"""The task `segment`: one label for each pixel."""

from __future__ import annotations

import shutil
import time

from torch import nn

from sfumato._core.spec import content_hash
from sfumato.data import ArrayDataset, DataSplits
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.evaluation.pixels import (
    PixelEvaluator,
    PixelSums,
    smooth_streams,
    sums_for,
)
from sfumato.engine.evaluation.splits import describe_units
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.tasks.classify import Setup, build_trainer, set_up
from sfumato.engine.training.steps import load_splits


def execute(fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool) -> None:
    """Train, predict and evaluate a segmenter; all processes train, the first one evaluates.

    Each takes the mean over its own labelled pixels, weighted by images: where these differ in
    void pixels this is close to the mean over all pixels, not equal to it.
    """
    data = load_splits(config.data)
    setup = set_up(fabric, config, directory, data, show)
    for part in (data.validation, data.test):
        smooth_streams(config.predict.temporal, part)  # raises before the training, not after
    network = build_trainer(setup, data).fit()
    if fabric.is_global_zero:
        evaluate(setup, data, network)
    fabric.barrier()


def evaluate(setup: Setup, data: DataSplits, network: nn.Module) -> None:
    """Predict and measure both splits, as one process does alone."""
    evaluator = PixelEvaluator(setup.context(network))
    metrics, replicates = {}, evaluator.context.replicates
    for name, part in (("validation", data.validation), ("test", data.test)):
        found, draws = _kept_sums(evaluator, name, part, setup.directory), None
        units = len(found.rows)
        if name == "test" and replicates.resamples and units > 1:
            draws = found.resample(replicates.resamples, generator=replicates.generator(units))
            replicates.add(name, describe_units(units, part.labels), draws)
        metrics[name] = {**found.summary(classes=part.classes, draws=draws), "samples": len(part)}
    replicates.write(setup.directory.path)
    setup.directory.write_metrics(metrics)


def _kept_sums(
    evaluator: PixelEvaluator, name: str, part: ArrayDataset, directory: RunDirectory
) -> PixelSums:
    """Sums of a split, predicted where the training has none yet that were predicted so."""
    context = evaluator.context
    content = context.config.predict.model_dump(mode="json")
    kept_maps = directory.training / "maps" / content_hash(content)

    def compute() -> dict[str, list[float]]:
        context.seed(name)
        began = time.perf_counter()
        found = evaluator.sums(name, part, maps=kept_maps if name == "test" else None)
        directory.write_timing(name, len(part), time.perf_counter() - began)
        return found.as_dict()

    # Rows of another length were kept by a version that measured something else.
    empty = sums_for(part, context.bins[0])
    key = {**content, "length": empty.length}
    rows = context.keep(f"pixels-{name}", key, compute)
    if name == "test" and kept_maps.exists():
        shutil.copytree(kept_maps, directory.path / "maps", dirs_exist_ok=True)
    return empty.restore(rows)
